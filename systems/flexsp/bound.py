"""The seconds that no choice of groups can beat: the certificate of FlexSP's search.

The integer programme with groups of one degree put together and sequences allowed to be cut: only the number
of groups is whole. For all to end within C seconds, a sequence needs a group that holds it and finishes it
alone within C. From the largest degree down: as many groups as the sequences that fit no smaller one fill,
the room left in the last of them filled with the next longest. That needs the fewest GPUs of all choices,
because a larger group spends no fewer GPU seconds on a sequence, and the longer the sequence the smaller the
difference (an exchange argument; `_ordered` sees to both). The smallest C that needs no more GPUs than there
are is the bound. tests/systems/test_flexsp.py holds it against enumeration and a solver.
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints
from zbench.systems.flexsp.cost import Objective

TOLERANCE = 1e-4  # relative, of the bisection; the bound is its lower end
SHARES = (1.0, 0.0, 0.5, 0.25, 0.75)  # of time in the mixture of time and memory that has to suffice


def micro_batch_bound(lengths: Ints, of: Objective, most: float) -> float:
    """Returns the seconds, at most `most`, that no choice of groups can beat; `most` is what some choice reaches.
    lengths: int64 [n], longest first, of one micro-batch.

    Time has to suffice, memory has to, and so has any mixture of the two; the best of a few is taken.
    """
    ordered, best = _ordered(of, int(lengths[0])), 0.0
    for share in SHARES:
        if _counts(lengths, most, of, ordered, share, share)[0] <= of.num_ranks:
            best = max(best, _least(lengths, of, ordered, best, most, share, share)[0])
        else:  # rounding of a choice that meets the bound exactly
            return most
    return best


def likely_counts(lengths: Ints, of: Objective, most: float, slower: float) -> Ints:
    """Returns int64 [num_degrees]: the number of groups of each degree if sequences could be cut; GPUs left over are
    groups of the smallest.

    slower: by how much, relatively, all may end later than they then could. Here time and memory both have to
    suffice in every degree. That is no bound (how memory is filled best is not settled by the argument above) but
    a good place to start a search from.
    """
    high = _least(lengths, of, of, 0.0, most, 1.0, 0.0)[1]
    counts = _counts(lengths, high * (1 + slower), of, of, 1.0, 0.0)[1]
    left = of.num_ranks - int((counts * of.degree).sum())
    if left < 0:  # even at `most`: memory is too tight for cut sequences in that order
        counts = np.zeros(len(of.degree), np.int64)
        counts[-1] = 1
        return counts
    counts[0] += left // int(of.degree[0])
    return counts


def _least(
    lengths: Ints, of: Objective, rates: Objective, low: float, high: float, one: float, two: float
) -> tuple[float, float]:
    """Bisects the seconds at which the GPUs suffice: (too few, enough)."""
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        enough = _counts(lengths, middle, of, rates, one, two)[0] <= of.num_ranks
        low, high = (low, middle) if enough else (middle, high)
    return low, high


def _counts(lengths: Ints, seconds: float, of: Objective, rates: Objective, one: float, two: float) -> tuple[int, Ints]:
    """Returns (GPUs, groups of each degree) needed to end within `seconds`.

    of: what a sequence takes alone; rates: what it adds to a group. one, two: the share of time, the rest being
    memory, in either of two resources that a group's sequences may not exceed.
    """
    counts = np.zeros(len(of.degree), np.int64)
    return int(_fill(lengths, seconds, one, two, of.degree, of.group_costs, rates.group_costs, counts)), counts


def _ordered(of: Objective, longest: int) -> Objective:
    """Returns `of` with costs lowered where the argument needs it; a change that made them dearer would give no bound.

    Square over linear may not rise with the degree; GPU seconds (square s + linear) a token may not fall, up to
    `longest`, nor a GPU hold more tokens in a larger group; groups of all degrees start equally cheaply.
    """
    size = of.degree.astype(np.float64)
    linear = of.linear * size
    ratio = np.minimum.accumulate(of.square / of.linear)
    for k in range(len(size) - 2, -1, -1):
        above, own = linear[k + 1] * (1 + ratio[k + 1] * longest), linear[k] * (1 + ratio[k] * longest)
        linear[k] *= min(1.0, linear[k + 1] / linear[k], above / own)
    room = np.maximum.accumulate((of.capacity / size)[::-1])[::-1]
    return of.with_(
        square=ratio * linear / size,
        linear=linear / size,
        fixed=np.full(len(size), of.fixed.min()),
        capacity=np.ceil(room * size).astype(np.int64),
    )


@nb.njit(**ENTERED)
def _fill(lengths, seconds, one, two, degree, alone, rates, counts):  # type: ignore[no-untyped-def]
    """Fills groups within `seconds` as if sequences could be cut: returns the GPUs needed, and writes the groups of
    each degree to `counts`; more GPUs than there can be if a sequence fits none.

    alone, rates: GroupCosts of a sequence by itself, and of what it adds to a group.
    """
    square, linear, fixed, capacity = alone
    more_square, more_linear, more_fixed, more_tokens = rates
    too_many = 1 << 40
    i, left, gpus = 0, 1.0, 0  # the next sequence and what is left of it
    for k in range(len(degree) - 1, -1, -1):
        room = seconds - more_fixed[k]
        first, second = 0.0, 0.0
        while i < len(lengths):
            s = float(lengths[i])
            fits_smaller = False
            for j in range(k):
                fits_smaller |= s <= capacity[j] and square[j] * s * s + linear[j] * s + fixed[j] <= seconds
            if fits_smaller:
                break
            if s > capacity[k] or square[k] * s * s + linear[k] * s + fixed[k] > seconds:
                return too_many
            time, memory = (more_square[k] * s * s + more_linear[k] * s) / room, s / more_tokens[k]
            first += left * (one * time + (1 - one) * memory)
            second += left * (two * time + (1 - two) * memory)
            i, left = i + 1, 1.0
        counts[k] = int(np.ceil(max(first, second) - 1e-9))
        gpus += counts[k] * degree[k]
        while counts[k] > 0 and i < len(lengths):
            s = float(lengths[i])
            time, memory = (more_square[k] * s * s + more_linear[k] * s) / room, s / more_tokens[k]
            a, b = one * time + (1 - one) * memory, two * time + (1 - two) * memory
            part = max(0.0, min(left, min((counts[k] - first) / a, (counts[k] - second) / b)))
            first, second, left = first + part * a, second + part * b, left - part
            if left > 1e-12:
                break
            i, left = i + 1, 1.0
    return gpus
