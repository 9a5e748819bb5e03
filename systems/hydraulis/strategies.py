"""Hydraulis' strategies: heterogeneous lists of pipelines, by dynamic programming over (GPUs x length).

Short sequences go to one kind of pipeline, longer ones to the next: t[n][s], the least seconds of the slowest
pipeline for all sequences up to length s on n GPUs, is the least over scheme k, copies d and interval l of
max(t[n - d size_k][s - l], seconds of the lengths in (s - l, s] on d copies of k). Of every scheme that can have the
longest sequences the best strategy is a candidate, and so is every scheme alone.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints
from zbench.systems.hydraulis.cost import Schemes

STEPS = 64  # of GPUs: on more, pipelines come in groups that are a multiple of a 64th of the cluster
LENGTHS = 32  # of the table: sequences in so many groups of about equal work, and none where there are fewer


@dataclass(frozen=True, slots=True, eq=False)
class Strategy:
    """A list of pipelines: how many of every scheme. copies: int64 [num_schemes], pipelines of every scheme. seconds:
    of the slowest one, as the table has it."""

    copies: Ints
    seconds: float


def strategies(lengths: Ints, seconds: Floats, of: Schemes, num_ranks: int, unit: int) -> list[Strategy]:
    """Returns distinct candidates, the best first; each has a scheme that can have the longest sequence.

    lengths: ascending. seconds: [num_schemes, n], of them. unit: ranks of a step, a divisor of num_ranks.
    """
    is_long = of.is_long(lengths)
    ends = _group_ends(seconds.min(axis=0), is_long)
    work = np.concatenate([np.zeros((len(of), 1)), np.cumsum(seconds, axis=1)], axis=1)[:, [0, *ends]]
    tokens = np.concatenate([[0], np.cumsum(lengths)])[[0, *ends]]
    last = np.array(ends) - 1
    able, longest = of.fits(lengths[last]), seconds[:, last]
    # Long sequences and others are no interval: beside a long one a pipeline has no room for what it usually can have.
    least = np.where(is_long[last], (~is_long[last]).sum(), 0)
    window = np.where(is_long[last], of.window[:, None], np.inf)
    groups = (work, tokens, longest, able, least, window)
    table = _table(groups, of.size, of.fixed, of.pp, of.capacity, num_ranks // unit, unit)
    found = [
        Strategy(_filled(copies, of, num_ranks), float(value))
        for copies, value in zip(*table, strict=True)
        if np.isfinite(value)
    ]
    for k in np.flatnonzero(able[:, -1]).tolist():
        copies = np.where(np.arange(len(of)) == k, num_ranks // of.size[k], 0)
        value = seconds_interval(
            work[k, -1], longest[k, -1], tokens[-1], copies[k], of.fixed[k], of.pp[k], of.capacity[k]
        )
        found.append(Strategy(copies, float(value)))
    return _distinct(found)


def wider_strategies(lengths: Ints, seconds: Floats, of: Schemes, num_ranks: int, unit: int) -> list[Strategy]:
    """Lists what `strategies` finds if no pipeline is narrower than each tp that schemes have, the best first.

    Narrow pipelines hide less of gradients' reductions, as they have more micro-batches, and pack worse, as these hold
    less: neither is known to the table, by which the strategy above may be the best with pipelines of any width.
    """
    found: list[Strategy] = []
    for width in np.unique(of.tp).tolist():
        wide = np.flatnonzero(of.tp >= width)
        for one in strategies(lengths, seconds[wide], of.take(wide), num_ranks, unit):
            copies = np.zeros(len(of), np.int64)
            copies[wide] = one.copies
            found.append(Strategy(copies, one.seconds))
    return _distinct(found)


def _distinct(found: list[Strategy]) -> list[Strategy]:
    """Returns every strategy once, the best first."""
    distinct = {tuple(one.copies.tolist()): one for one in sorted(found, key=lambda one: -one.seconds)}
    return sorted(distinct.values(), key=lambda one: (one.seconds, tuple(one.copies.tolist())))


def two_kinds(lengths: Ints, seconds: Floats, of: Schemes, num_ranks: int) -> list[Strategy]:
    """Lists strategies of two kinds of pipelines, for batches whose long sequences have room in no strategy above: 1,
    2, 4 ... of one that can have the longest sequence, and others on all further ranks. of one that can have the
    longest sequence and others on all further ranks: for batches whose long sequences have room in no strategy above.
    In order of what all work takes at their rates.
    """
    work, found = seconds.sum(axis=1), []
    for k in np.flatnonzero(of.fits(lengths[-1:])[:, 0]).tolist():
        for power in range(int(num_ranks // of.size[k]).bit_length()):
            left = num_ranks - (of.size[k] << power)
            for j in np.flatnonzero(of.size <= left).tolist():
                copies = np.zeros(len(of), np.int64)
                copies[k] += 1 << power
                copies[j] += left // of.size[j]
                longest = of.pp[k] * seconds[k, -1]
                found.append(Strategy(copies, float(max(longest, 1 / (copies / work).sum()))))
    return sorted(found, key=lambda one: (one.seconds, tuple(one.copies.tolist())))


def _filled(copies: Ints, of: Schemes, num_ranks: int) -> Ints:
    """Adds pipelines of the smallest scheme in use on ranks that the table found no use for."""
    used = np.flatnonzero(copies)
    smallest = int(used[of.size[used].argmin()])
    more = (num_ranks - int(copies @ of.size)) // int(of.size[smallest])
    return copies + np.where(np.arange(len(of)) == smallest, more, 0)


def _group_ends(seconds: Floats, is_long: Flags) -> list[int]:
    """Divides sequences into groups by length and returns where they end (the longest last): as many as LENGTHS, of
    about equal work in all, and one more where long sequences begin; is_long: those, the last ones."""
    total = np.cumsum(seconds)
    ends = np.searchsorted(total, total[-1] * np.arange(1, LENGTHS + 1) / LENGTHS * (1 - 1e-12)) + 1
    if len(seconds) <= LENGTHS:
        ends = np.arange(1, len(seconds) + 1)
    ends = np.append(ends, (~is_long).sum())
    return [int(end) for end in np.unique(np.minimum(ends, len(seconds))) if end]


@nb.njit(**ENTERED)
def seconds_interval(work, longest, tokens, copies, fixed, stages, capacity):  # type: ignore[no-untyped-def]
    """Returns the seconds of the slowest of `copies` pipelines that share sequences of `work` seconds and `tokens` in
    all: an even share in as many micro-batches as it needs, or as make the bubble cheapest, but no less than the
    longest one."""
    share = max(work / copies, longest)
    count = max(np.ceil(tokens / (copies * capacity)), 1.0)
    if stages > 1:
        count = max(count, min(np.floor(np.sqrt((stages - 1) * share / fixed)), np.ceil(share / longest)))
    return share + count * fixed + (stages - 1) * (max(share / count, longest) + fixed)


@nb.njit(**ENTERED)
def _table(intervals, size, fixed, stages, capacity, steps, unit):  # type: ignore[no-untyped-def]
    """Finds the best strategy whose longest sequences are on each scheme, by dynamic programming: returns (copies
    [num_schemes, num_schemes], seconds [num_schemes]); infinite where there is none.

    intervals: work [num_schemes, groups + 1] and tokens [groups + 1] of all groups before; the longest sequence's
    seconds and whether the scheme can have it, [num_schemes, groups]; of an interval that ends with a group, the first
    it may begin with, [groups], and the tokens that a pipeline may have of it, [num_schemes, groups].
    """
    work, tokens, longest, able, least, window = intervals
    schemes, groups = len(size), len(tokens) - 1
    best = np.full((steps + 1, groups + 1), np.inf)
    best[:, 0] = 0.0
    chosen = np.full((steps + 1, groups + 1, 3), -1, np.int64)
    top = np.full((schemes, 3), -1, np.int64)
    value = np.full(schemes, np.inf)
    for j in range(1, groups + 1):
        for i in range(least[j - 1], j):
            for k in range(schemes):
                if not able[k, j - 1]:
                    continue
                for step in range(1, steps + 1):
                    if (step * unit) % size[k]:
                        continue
                    copies = step * unit // size[k]
                    if tokens[j] - tokens[i] > copies * window[k, j - 1]:
                        continue
                    own = seconds_interval(
                        work[k, j] - work[k, i],
                        longest[k, j - 1],
                        tokens[j] - tokens[i],
                        copies,
                        fixed[k],
                        stages[k],
                        capacity[k],
                    )
                    for n in range(step, steps + 1):
                        end = max(own, best[n - step, i])
                        if end < best[n, j]:
                            best[n, j] = end
                            chosen[n, j] = (k, copies, i)
                    if j == groups and max(own, best[steps - step, i]) < value[k]:
                        value[k] = max(own, best[steps - step, i])
                        top[k] = (step, copies, i)
    copies = np.zeros((schemes, schemes), np.int64)
    for k in range(schemes):
        if top[k, 0] < 0:
            continue
        copies[k, k] = top[k, 1]
        n, j = steps - top[k, 0], top[k, 2]
        while j > 0:
            scheme, number, before = chosen[n, j]
            copies[k, scheme] += number
            n -= number * size[scheme] // unit
            j = before
    return copies, value
