"""The rows that a GPU is sent for its experts, as expected of the law by which tokens choose these.

A token's experts are the largest of logarithms of odds with Gumbel noise, which is the order in which clocks ring whose
rates are the odds: its experts are the first ones. So at a moment every expert has rung or not by itself, how many of a
slice have is a sum of independent numbers, and the token's last choice is made where one more rings: numbers of a slice
are integrals over that moment, which are taken by the trapezoid rule on logarithms of time.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.routing.popularity import Popularity

_STEPS = 32  # of the rule for each factor of e in time: numbers are exact to 2e-4 (tests/describe/test_choices.py)
_EARLY, _LATE = 1e-8, 40.0  # clocks that have rung before the first moment, and how often those have that must have


class SliceRows(NamedTuple):
    """The choices that a slice of the experts, on one GPU, has of each token of those that choose among all slices; of
    the slice with most. rows: tokens that choose some of it; experts: choices of its experts, those of a token one by
    one; least: these of the slice with fewest; variances: of both, of one token's."""

    rows: float
    experts: float
    least: float
    rows_variance: float
    experts_variance: float


@lru_cache(maxsize=64)
def busiest_slice(
    popularity: Popularity, num_experts: int, slices: int, per_token: int, room: float | None
) -> SliceRows:
    """Returns the most that any of so many slices of the experts has, as expected, each number by itself. room: at each
    expert for every token (zbench.describe.routing.room), which the first ones of a GPU's tokens have; None: for all.
    """
    clocks = _Clocks.of(popularity.odds(num_experts), per_token)
    each, parts = num_experts // slices, []
    of_expert = np.concatenate([one.reshape(-1) for one in clocks.chosen()]) if room is not None else None
    for part, (own, others) in enumerate(clocks.sliced(each)):
        at = slice(part * each, (part + 1) * each)
        numbers = clocks.numbers(own, others)
        mean = float(numbers @ np.arange(len(numbers)))
        variance = float(numbers @ np.arange(len(numbers)) ** 2) - mean**2
        rows = 1 - float(numbers[0])
        if room is not None and of_expert is not None:
            expected = of_expert[at]
            free = expected[expected < room]
            if len(free) < each:  # what is full varies no more, nor does it go with the others
                variance = float((free * (1 - free)).sum())
            mean = float(np.minimum(expected, room).sum())
            rows = clocks.rows_with_room(at, others, np.minimum(room / expected, 1.0))
        parts.append((rows, mean, rows * (1 - rows), variance))
    (rows, mean, *variances), least = np.array(parts).max(axis=0).tolist(), min(one[1] for one in parts)
    return SliceRows(rows, mean, least, *variances)


class _Clocks(NamedTuple):
    """The clocks of experts. silent: float64 [experts, moments], the chance that each has not rung by a moment;
    per_token: experts of a token."""

    silent: Floats
    per_token: int

    @staticmethod
    def of(odds: Floats, per_token: int) -> "_Clocks":
        """Returns the clocks of experts with such logarithms of odds."""
        rates = np.exp(np.maximum(odds - odds.max(), -600.0))
        first, last = np.log(_EARLY / rates.sum()), np.log(_LATE / np.sort(rates)[-per_token])
        moments = np.exp(np.linspace(first, last, int(_STEPS * (last - first)) + 2))
        return _Clocks(np.exp(-rates[:, None] * moments), per_token)

    def sliced(self, each: int) -> list[tuple[Floats, Floats]]:
        """Returns for every slice of so many experts the chances that so many of its clocks have rung, and of all other
        ones, float64 [up to experts a token, moments] each."""
        own = [self._with(self._none, range(at, at + each)) for at in range(0, len(self.silent), each)]
        before, after = [self._none], [self._none]
        for one, other in zip(own[:-1], own[:0:-1], strict=True):
            before.append(_both(before[-1], one))
            after.append(_both(after[-1], other))
        return [(one, _both(*sides)) for one, *sides in zip(own, before, after[::-1], strict=True)]

    def chosen(self) -> list[Floats]:
        """Returns of every expert the chance that a token chooses it."""
        return [self.numbers(own, others)[1:2] for own, others in self.sliced(1)]

    def numbers(self, own: Floats, others: Floats) -> Floats:
        """Returns the chances that a token chooses so many of a slice, float64 [experts a token + 1]."""
        found = [self._chance(own, others, count) for count in range(self.per_token + 1)]
        return np.array(found) / sum(found)

    def rows_with_room(self, at: slice, others: Floats, until: Floats) -> float:
        """Returns the tokens that have room at some expert of a slice that they chose. until: float64 [experts of it],
        the share of a GPU's tokens, in their order, that its room is for."""
        full, begin, found = others, 0.0, 0.0
        own = list(range(at.start, at.stop))
        for place in np.argsort(until, kind="stable").tolist():
            end = float(until[place])
            if end > begin:  # for those between, the experts that are left of the slice have room
                left = self._with(self._none, [own[one] for one in range(len(own)) if until[one] >= end])
                some = [self._chance(left, full, count) for count in range(self.per_token + 1)]
                found, begin = found + (end - begin) * (1 - some[0] / sum(some)), end
            full = self._with(full, [own[place]])
        return found

    @property
    def _none(self) -> Floats:
        """The chances of no clock."""
        found = np.zeros((self.per_token + 1, self.silent.shape[1]))
        found[0] = 1
        return found

    def _with(self, some: Floats, experts: Sequence[int]) -> Floats:
        """Returns the chances of some clocks and those of more experts together."""
        for one in experts:
            silent = self.silent[one]
            rung = some * (1 - silent)
            some = some * silent
            some[1:] += rung[:-1]
        return some

    def _chance(self, own: Floats, others: Floats, count: int) -> float:
        """Returns the chance that a token chooses `count` of a slice: that its last choice, the moment that the sum is
        over, is of the slice and as many others have rung, or of the others."""
        rest = self.per_token - count
        last_own, last_other = (np.diff(1 - some[:at].sum(axis=0)) for some, at in ((own, count), (others, rest)))
        return float(last_own @ _between(others[rest]) + last_other @ _between(own[count]))


def _both(some: Floats, others: Floats) -> Floats:
    """Returns the chances that so many clocks have rung of two sets of them together."""
    found = np.zeros_like(some)
    for count in range(len(some)):
        found[count:] += some[count] * others[: len(some) - count]
    return found


def _between(values: Floats) -> Floats:
    """Returns the means of values at moments that follow one another."""
    return np.asarray((values[1:] + values[:-1]) / 2)
