"""Inside a node: which sequences stay on one GPU, and how heads and homes of the others fill the GPUs. Pure: no torch.

Short sequences stay local. The tokens of the others are at home where GPUs lack tokens, one by one; their heads go to
the GPUs that are least loaded then, head by head. A head of all shared sequences together is a large part of a GPU's
work, so they are in groups, each with a split of heads of its own: what one leaves uneven the next fills.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from systems.nodewise_work import Rates
from zbench.plan import Ints

Floats = NDArray[np.float64]
TRIES = 8  # most sequences of a node whose heads are shared, beyond those that have to be
SLACK = 1.02  # sequences of more than so many even shares of a GPU have to be


@dataclass(frozen=True, slots=True)
class Node:
    """num_ranks: GPUs. num_heads: of the model. capacity: tokens of a GPU. chunks: parts of the only group's heads.

    groups: most groups of shared sequences. homes: whether tokens go where GPUs lack them (otherwise evenly).
    """

    num_ranks: int
    num_heads: int
    capacity: int
    chunks: int
    groups: int
    homes: bool


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """rank: int64 [n] GPU of the node for each of its whole sequences, -1 where its heads are shared.

    group: int64 [n] group of those whose heads are shared, -1 for the others. heads: int64 [G, P + 1], bounds of
    every GPU's heads of each group. share: float64 [P], of the tokens of shared and cut sequences that each GPU is
    home of; sums up to 1. seconds: estimate.
    """

    rank: Ints
    group: Ints
    heads: Ints
    share: Floats
    seconds: float


def inside(lengths: Ints, attention: Floats, cut_tokens: int, cut_attention: float, rates: Rates, node: Node) -> Inside:
    """For whole sequences (their lengths and attention, [n]) and what of cut ones is on the node."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    away = rates.exchange * (node.num_ranks - 1) / node.num_ranks**2  # of a token's exchange what a GPU's port carries
    found = _split(
        lengths[order], attention[order], cut_tokens, cut_attention, rates.token, rates.repack, away, rates.call,
        rates.forward, node.num_ranks, node.num_heads, node.capacity, node.chunks, node.groups, node.homes,
    )  # fmt: skip
    rank, group = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    rank[order], group[order], heads, share, seconds = found
    return Inside(rank, group, heads, share, float(seconds))


@nb.njit(cache=True)
def _split(  # type: ignore[no-untyped-def]
    tokens, attention, cut_tokens, cut_attention, token, repack, away, call, forward, num_ranks, num_heads, capacity,
    chunks, most, homes,
):  # fmt: skip
    """Sequences sorted, most work first. Shares the first k in up to `most` groups; the best estimate is taken."""
    count = len(tokens)
    total = cut_attention + cut_tokens * (token + repack)
    for s in range(count):
        total += attention[s] + token * tokens[s]
    must = 0
    while num_ranks > 1 and must < count and attention[must] + token * tokens[must] > total / num_ranks * SLACK:
        must += 1
    even = np.arange(num_ranks + 1) * num_heads // num_ranks  # of cut sequences: as on the other nodes
    base = (cut_attention + repack * cut_tokens) * np.diff(even) / num_heads
    best, best_rank, best_group = np.inf, np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    best_heads, best_home = np.zeros((0, num_ranks + 1), np.int64), np.ones(num_ranks)
    for k in range(must, min(count, must + (TRIES if num_ranks > 1 else 0)) + 1):
        rank, load, held, fits = _local(tokens, attention, k, base, token, num_ranks, capacity)
        if not fits:
            continue
        local = (load - base - token * held).min()
        pool = float(cut_tokens + tokens[:k].sum())
        home = np.maximum(_level(held, pool) - held, 0.0) if homes else np.full(num_ranks, pool / num_ranks)
        load += token * home
        for groups in range(min(k, 1), min(k, most) + 1):
            group, work, size = _groups(tokens, attention, repack, k, groups)
            heads, ends = _heads(load, work / num_heads, num_heads)
            calls, first, last = _ends(size, cut_tokens, chunks)
            seconds = ends.max() + calls * call + _shown(first * away, last * away, local, forward)
            if seconds < best - 1e-12:
                best, best_rank, best_group, best_heads, best_home = seconds, rank, group, heads, home
    share = best_home / best_home.sum() if best_home.sum() > 0 else np.full(num_ranks, 1.0 / num_ranks)
    return best_rank, best_group, best_heads, share, best


@nb.njit(cache=True)
def _local(tokens, attention, k, base, token, num_ranks, capacity):  # type: ignore[no-untyped-def]
    """Sequences from k on, each to the least loaded GPU that has room: (rank, load, tokens held, whether all fit)."""
    load, held = base.copy(), np.zeros(num_ranks)
    rank = np.full(len(tokens), -1, np.int64)
    for s in range(k, len(tokens)):
        best = -1
        for r in range(num_ranks):
            if held[r] + tokens[s] <= capacity and (best < 0 or load[r] < load[best]):
                best = r
        if best < 0:
            return rank, load, held, False
        rank[s] = best
        load[best] += attention[s] + token * tokens[s]
        held[best] += tokens[s]
    return rank, load, held, True


@nb.njit(cache=True)
def _groups(tokens, attention, repack, k, count):  # type: ignore[no-untyped-def]
    """The first k sequences in groups of about as much work: (group of each, work and tokens of every group)."""
    group, work, size = np.full(len(tokens), -1, np.int64), np.zeros(count), np.zeros(count)
    for s in range(k):
        g = work.argmin()
        group[s] = g
        work[g] += attention[s] + repack * tokens[s]
        size[g] += tokens[s]
    return group, work, size


@nb.njit(cache=True)
def _heads(load, each, num_heads):  # type: ignore[no-untyped-def]
    """Heads one by one to the least loaded GPU: (bounds of every group's, whose heads take `each`; loads)."""
    heads, load = np.zeros((len(each), len(load) + 1), np.int64), load.copy()
    for g in range(len(each)):
        for _ in range(num_heads):
            r = load.argmin()
            heads[g, r + 1] += 1
            load[r] += each[g]
        heads[g] = np.cumsum(heads[g])
    return heads, load


@nb.njit(cache=True)
def _ends(size, cut_tokens, chunks):  # type: ignore[no-untyped-def]
    """(calls of a GPU, tokens exchanged before the first of them, tokens after the last); systems.nodewise_lay."""
    groups = len(size)
    part = 2.0 * (chunks - 1) if chunks > 2 else float(chunks)
    if cut_tokens > 0:
        return groups, cut_tokens / part, cut_tokens / part
    if groups == 0:
        return 0, 0.0, 0.0
    if groups == 1:
        return chunks, size[0] / part, size[0] / part
    part = 4.0 if chunks > 2 else 1.0
    return groups + (2 if chunks > 2 else 0), size[0] / part, size[-1] / part


@nb.njit(cache=True)
def _shown(first, last, local, forward):  # type: ignore[no-untyped-def]
    """Seconds of the first and the last exchange that nothing hides; both: of all that is sent for the tokens.

    Of that q and kv are 3/8, and their gradients; o and its gradient are 1/8 each (without grouped queries). Local
    attends hide what comes before all others, and in the backward what comes after them.
    """
    out = max(0.375 * first - forward * local, 0.0) + max(0.375 * first - (1 - forward) * local, 0.0)
    return out + 0.25 * last


@nb.njit(cache=True)
def _level(load, work):  # type: ignore[no-untyped-def]
    """Up to where `work` fills the least loaded."""
    order = np.sort(load)
    left = work
    for i in range(len(order)):
        above = order[i + 1] if i + 1 < len(order) else np.inf
        if left <= (above - order[i]) * (i + 1):
            return order[i] + left / (i + 1)
        left -= (above - order[i]) * (i + 1)
    return order[-1]
