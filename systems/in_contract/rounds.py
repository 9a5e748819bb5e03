"""Several rounds one after another, each of what the ones before left, under one time or under the least one in common.

Compiled as a whole: a planner asks for dozens of candidates, and the way into compiled code costs as much as a round.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.in_contract.rates import RingRates
from zbench.systems.in_contract.rings import HALVINGS, MOVES, form_round

TIMES = 8  # halvings of the interval of a time that several rounds have in common


class Placed(NamedTuple):
    """The place of every sample: its round and its group in that, int64 [S], -1 of one that was not to be placed; the
    ranks of every group, int64, those of round r at [first[r], first[r + 1]); the rounds are len(first) - 1."""

    round: Ints
    group: Ints
    ranks: Ints
    first: Ints


@nb.njit(**INNER)
def _all_ranks(rates, left, cap, num_ranks, group):  # type: ignore[no-untyped-def]
    """Puts the samples, longest first, that fit into one group of all ranks; the others wait (-1)."""
    tokens = 0.0
    for number in range(len(left)):
        share = rates.length[left[number]] / num_ranks
        fits = number == 0 or tokens + share <= cap
        group[left[number]] = 0 if fits else -1
        tokens += share if fits else 0.0


@nb.njit(**ENTERED)
def _under(rates, order, most, cap, num_ranks, once, halvings, moves):  # type: ignore[no-untyped-def]
    """Places samples in rounds; returns the fields of Placed. once: the rounds behind the first have as long as they
    need."""
    turn, place = np.full(len(rates.length), -1, np.int64), np.full(len(rates.length), -1, np.int64)
    ranks, first = np.zeros(len(order), np.int64), np.zeros(len(order) + 1, np.int64)  # a group has a sample at least
    left, count = order.copy(), 0
    while len(left):
        size, group, _ = form_round(rates, left, most, cap, num_ranks, halvings, moves)
        begin = first[count]
        if len(size) == 0:
            _all_ranks(rates, left, cap, num_ranks, group)
            ranks[begin], end = num_ranks, begin + 1
        else:
            end = begin + len(size)
            ranks[begin:end] = rates.sizes[size]
        waiting = 0
        for s in left:
            if group[s] >= 0:
                turn[s], place[s] = count, group[s]
            else:
                left[waiting] = s
                waiting += 1
        left = left[:waiting]
        count += 1
        first[count] = end
        if once:
            most = np.inf
    return turn, place, ranks[: first[count]], first[: count + 1]


@nb.njit(**ENTERED)
def _in_common(rates, order, cap, num_ranks, count, times, halvings, moves):  # type: ignore[no-untyped-def]
    """Places samples in at most `count` rounds under the least time at which they are no more; returns the fields of
    Placed."""
    low, high = 0.0, form_round(rates, order, np.inf, cap, num_ranks, halvings, moves)[2]
    best = _under(rates, order, high, cap, num_ranks, False, halvings, moves)
    if high == np.inf:
        return best
    for _ in range(times):
        middle = (low + high) / 2
        found = _under(rates, order, middle, cap, num_ranks, False, halvings, moves)
        if len(found[3]) - 1 <= count:
            high, best = middle, found
        else:
            low = middle
    return best


def rounds_under(rates: RingRates, order: Ints, most: float, cap: float, num_ranks: int, once: bool = False) -> Placed:
    """Places the samples `order`, longest first, in rounds whose groups end by `most` seconds, each with what the ones
    before left; infinite: in the least. cap: tokens of a rank at most. once: only the first round has to end by then,
    and the others have as long as they need."""
    return Placed(*_under(rates, order, most, cap, num_ranks, once, HALVINGS, MOVES))


def rounds_in_common(rates: RingRates, order: Ints, cap: float, num_ranks: int, count: int) -> Placed:
    """Places samples in rounds under the least time at which there are at most `count`, the last one evened by
    itself."""
    return Placed(*_in_common(rates, order, cap, num_ranks, count, TIMES, HALVINGS, MOVES))
