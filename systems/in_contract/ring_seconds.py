"""Seconds of groups of samples in rings, as compiled functions: alone, together, and with samples exchanged.

What a group is is said by arrays that rings fills in: order, the samples, longest first; size, the place of each
group's ring in RingRates.sizes; group, of every sample; state, float64 [3, groups], tokens of a rank and hop seconds.
"""

from collections.abc import Sequence

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.systems.in_contract.rates import RingRates


@nb.njit(**INNER)
def ring_layer_seconds(rates, k, tokens, ahead, back):  # type: ignore[no-untyped-def]
    """Returns the seconds of a layer, both directions, of a ring of the k-th size. tokens: of a rank; ahead, back: of a
    hop's attention."""
    linear = rates.fixed + rates.token * tokens
    ahead, back = ahead + rates.start[k, 0], back + rates.start[k, 1]
    size = rates.sizes[k]
    if size == 1:
        return linear + ahead + back
    hop = rates.hop[k] * tokens + rates.latency[k]
    if rates.across[k] == 0:
        return linear + ahead + (size - 1) * max(ahead, hop) + back + (size - 1) * max(back, rates.again * hop)
    # Across nodes only some of the links are slow: ranks are in different layers, and linear modules are hidden too.
    hops = max(size - rates.across[k], 1)
    share = rates.token * tokens / 3 + rates.fixed / 3
    return max(share + size * ahead, hops * hop) + max(2 * share + size * back, rates.again * hops * hop)


@nb.njit(**INNER)
def seconds_alone(rates, s, k):  # type: ignore[no-untyped-def]
    """Returns the seconds of a layer of sample s alone in a ring of the k-th size."""
    return ring_layer_seconds(rates, k, rates.length[s] / rates.sizes[k], rates.ahead[s, k], rates.back[s, k])


@nb.njit(**INNER)
def sum_groups(rates, order, count, size, group, state):  # type: ignore[no-untyped-def]
    """Adds up every group anew and returns its seconds, float64 [count]."""
    state[:, :count] = 0.0
    for s in order:
        g = group[s]
        if g >= 0:
            k = size[g]
            state[0, g] += rates.length[s] / rates.sizes[k]
            state[1, g] += rates.ahead[s, k]
            state[2, g] += rates.back[s, k]
    out = np.empty(count)
    for g in range(count):
        out[g] = ring_layer_seconds(rates, size[g], state[0, g], state[1, g], state[2, g])
    return out


@nb.njit(**INNER)
def seconds_at(rates, order, group, g, k):  # type: ignore[no-untyped-def]
    """Returns the seconds of group g if it had the k-th size."""
    tokens, ahead, back = 0.0, 0.0, 0.0
    for s in order:
        if group[s] == g:
            tokens += rates.length[s] / rates.sizes[k]
            ahead += rates.ahead[s, k]
            back += rates.back[s, k]
    return ring_layer_seconds(rates, k, tokens, ahead, back)


@nb.njit(**INNER)
def with_exchanged(rates, state, g, k, added, taken):  # type: ignore[no-untyped-def]
    """Returns (tokens of a rank, seconds) of group g with one sample more, one less (-1: none), or both."""
    tokens, ahead, back = state[0, g], state[1, g], state[2, g]
    if added >= 0:
        tokens += rates.length[added] / rates.sizes[k]
        ahead += rates.ahead[added, k]
        back += rates.back[added, k]
    if taken >= 0:
        tokens -= rates.length[taken] / rates.sizes[k]
        ahead -= rates.ahead[taken, k]
        back -= rates.back[taken, k]
    return tokens, ring_layer_seconds(rates, k, tokens, ahead, back)


@nb.njit(**ENTERED)
def _layers(rates, sizes, sums):  # type: ignore[no-untyped-def]
    """Returns the seconds of groups, float64 [G], of sums [G, 3] as ring_layer_seconds takes them."""
    out = np.empty(len(sizes))
    for g in range(len(sizes)):
        out[g] = ring_layer_seconds(rates, sizes[g], sums[g, 0], sums[g, 1], sums[g, 2])
    return out


def seconds_of_groups(rates: RingRates, sizes: Sequence[int], samples: Sequence[Sequence[int]]) -> Floats:
    """Returns the seconds of a layer of every group's samples in a ring of the k-th size, k of `sizes`: float64 [G]."""
    sums = np.zeros((len(sizes), 3))
    for g, (size, seqs) in enumerate(zip(sizes, samples, strict=True)):
        mine = np.asarray(seqs, np.int64)
        sums[g] = (
            (rates.length[mine] / rates.sizes[size]).sum(),
            rates.ahead[mine, size].sum(),
            rates.back[mine, size].sum(),
        )
    found: Floats = _layers(rates, np.asarray(sizes, np.int64), sums)
    return found
