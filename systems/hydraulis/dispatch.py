"""Hydraulis' first stage: sequences to pipelines, so that the slowest one is done early.

A pipeline's seconds are the sum of its sequences' and pp - 1 times its longest one's: what micro-batches will make of
them is not known yet. As in Hydraulis' code sequences go one by one, in random orders, to the pipeline that then ends
first, those that fit fewest pipelines before the others; the best of the trials stands. Added: one trial goes by
falling seconds; for an end that is bisected, the longest sequences fill the widest pipelines and so on down, as
tensor parallelism pays least for short ones; and sequences of the slowest pipeline then move, or change places,
while that relieves it.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints

MOVES = 300  # moves and swaps at most
BISECTED = 12  # ends tried, from half of what the trials found: to a four thousandth of it


def dispatch(seconds: Floats, fits: Flags, scheme: Ints, stages: Ints, orders: Ints, moves: int) -> tuple[Ints, float]:
    """Deals sequences to pipelines so that the slowest one is done early: returns (int64 [n], the pipeline of every
    sequence; seconds of the slowest one, as above).

    seconds, fits: [num_schemes, n], of every sequence on a stage of every scheme, and whether it may be there.
    scheme, stages: int64 [num_pipelines], those of a scheme side by side, the widest first. orders: int64
    [num_trials, n], the order of every trial. moves: after the trials, at most.
    """
    found: tuple[Ints, float] = _dispatch(seconds, fits, scheme, stages, orders, min(moves, MOVES))
    return found


def orders(seconds: Floats, fits: Flags, trials: int) -> Ints:
    """Returns orders of the sequences, int64 [trials, n]: by falling seconds, then random ones, always the same; those
    that fit fewest first."""
    rng, count = np.random.default_rng(0), seconds.shape[1]
    narrow = fits.sum(axis=0)
    lightest = np.where(fits, seconds, np.inf).min(axis=0)
    rows = [np.lexsort((np.arange(count), -lightest, narrow))]
    rows += [np.lexsort((rng.random(count), narrow)) for _ in range(trials - 1)]
    return np.stack(rows)


@nb.njit(**ENTERED)
def _dispatch(seconds, fits, scheme, stages, orders, moves):  # type: ignore[no-untyped-def]
    count, pipelines = seconds.shape[1], len(scheme)
    best, goal = np.zeros(count, np.int64), np.inf
    for t in range(len(orders)):
        found, total, longest = np.zeros(count, np.int64), np.zeros(pipelines), np.zeros(pipelines)
        for i in orders[t]:
            to, least = -1, np.inf
            for p in range(pipelines):
                if fits[scheme[p], i]:
                    s = seconds[scheme[p], i]
                    end = total[p] + s + (stages[p] - 1) * max(longest[p], s)
                    if end < least:
                        to, least = p, end
            found[i] = to
            total[to] += seconds[scheme[to], i]
            longest[to] = max(longest[to], seconds[scheme[to], i])
        slowest = (total + (stages - 1) * longest).max()
        if slowest < goal * (1 - 1e-12):
            best, goal = found, slowest
    low, high = goal / 2, goal
    for _ in range(BISECTED):
        middle = (low + high) / 2
        found = _filled(seconds, fits, scheme, stages, orders[0], middle)
        if found[0] < 0:
            low = middle
        else:
            best, high = found, middle
    return _improve(seconds, fits, scheme, stages, best, moves)


@nb.njit(**INNER)
def _filled(seconds, fits, scheme, stages, order, end):  # type: ignore[no-untyped-def]
    """Deals sequences, the longest ones to the first pipelines, so that all are done by `end`: returns the pipeline of
    every sequence, -1 if that fails."""
    total, longest = np.zeros(len(scheme)), np.zeros(len(scheme))
    found = np.full(seconds.shape[1], -1, np.int64)
    for i in order:
        to, best = -1, -1.0
        for p in range(len(scheme)):
            k = scheme[p]
            if to >= 0 and k != scheme[to]:
                break
            if fits[k, i]:
                s = seconds[k, i]
                then = total[p] + s + (stages[p] - 1) * max(longest[p], s)
                if then <= end and then > best:
                    to, best = p, then
        if to < 0:
            found[0] = -1
            return found
        found[i] = to
        total[to] += seconds[scheme[to], i]
        longest[to] = max(longest[to], seconds[scheme[to], i])
    return found


@nb.njit(**INNER)
def _measure(seconds, scheme, place, p, total, longest, second):  # type: ignore[no-untyped-def]
    """Writes sum, longest and second longest of pipeline p's sequences, in place."""
    total[p], longest[p], second[p] = 0.0, 0.0, 0.0
    for i in range(len(place)):
        if place[i] == p:
            s = seconds[scheme[p], i]
            total[p] += s
            if s > longest[p]:
                longest[p], second[p] = s, longest[p]
            else:
                second[p] = max(second[p], s)


@nb.njit(**INNER)
def _improve(seconds, fits, scheme, stages, place, moves):  # type: ignore[no-untyped-def]
    """Moves and swaps of sequences off the slowest pipeline, in place, while both ends are then done earlier."""
    count, pipelines = len(place), len(scheme)
    total, longest, second = np.zeros(pipelines), np.zeros(pipelines), np.zeros(pipelines)
    for p in range(pipelines):
        _measure(seconds, scheme, place, p, total, longest, second)
    for _ in range(moves):
        ends = total + (stages - 1) * longest
        full = ends.argmax()
        goal, item, other, to = ends[full] * (1 - 1e-9), -1, -1, -1
        for i in range(count):
            if place[i] != full:
                continue
            own = seconds[scheme[full], i]
            rest = second[full] if own == longest[full] else longest[full]
            left = total[full] - own + (stages[full] - 1) * rest
            for p in range(pipelines):
                if p != full and fits[scheme[p], i]:
                    s = seconds[scheme[p], i]
                    end = max(left, total[p] + s + (stages[p] - 1) * max(longest[p], s))
                    if end < goal:
                        goal, item, other, to = end, i, -1, p
            for j in range(count):
                p = place[j]
                if p == full or not fits[scheme[p], i] or not fits[scheme[full], j]:
                    continue
                here, there, gone = seconds[scheme[full], j], seconds[scheme[p], i], seconds[scheme[p], j]
                end = total[full] - own + here + (stages[full] - 1) * max(rest, here)
                most = max(second[p] if gone == longest[p] else longest[p], there)
                end = max(end, total[p] - gone + there + (stages[p] - 1) * most)
                if end < goal:
                    goal, item, other, to = end, i, j, p
        if item < 0:
            break
        place[item] = to
        if other >= 0:
            place[other] = full
        for p in (full, to):
            _measure(seconds, scheme, place, p, total, longest, second)
    return place, (total + (stages - 1) * longest).max()
