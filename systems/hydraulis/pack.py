"""Hydraulis' second stage: a pipeline's sequences into micro-batches.

Of v micro-batches the slowest, m, costs a bubble of (pp - 1) m, every one a constant; v runs from the least that
memory allows, as long as it can pay and at most MORE further. For each v the slowest is made fast by longest
processing time first, then moves and swaps (zbench.systems.common.bins), where the paper has an integer programme.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.common.best_fit import best_fit_sorted
from zbench.systems.common.bins import balanced_bins

MORE = 20  # micro-batches above the least that memory allows, as in Hydraulis' code
TRIES = 30  # moves and swaps for one v; fewer above 80 sequences, whose share of a micro-batch is small
PLACES = 200_000  # looked at by them


@nb.njit(**INNER)
def pack_pipeline(seconds, tokens, fixed, stages, capacity):  # type: ignore[no-untyped-def]
    """Packs a pipeline's sequences into micro-batches: returns (int64 [n], the micro-batch of each; the pipeline's
    seconds).

    seconds: of the sequences on a stage. A sequence above `capacity` has a micro-batch of its own.
    """
    count = len(tokens)
    if count == 0:
        return np.zeros(0, np.int64), 0.0
    by_tokens = np.argsort(-tokens)
    best = np.empty(count, np.int64)
    best[by_tokens] = best_fit_sorted(tokens[by_tokens], capacity)
    most = best.max() + 1
    goal = _total(seconds, best, most, fixed, stages)
    is_long = tokens > capacity
    least = max(is_long.sum() + (tokens[~is_long].sum() + capacity - 1) // capacity, 1)
    by_seconds, tries = np.argsort(-seconds), min(TRIES, PLACES // count**2)
    for v in range(least, least + MORE + 1):
        slowest = max(seconds.max(), seconds.sum() / v)
        if v > count or seconds.sum() + v * fixed + (stages - 1) * (slowest + fixed) >= goal * (1 - 1e-12):
            continue
        found = balanced_bins(seconds, tokens, by_seconds, v, capacity, tries)
        if v < most and not within_capacity(tokens, found, v, capacity):
            found = balanced_bins(tokens.astype(np.float64), tokens, by_tokens, v, capacity, tries)
        total = _total(seconds, found, v, fixed, stages)
        if total < goal and within_capacity(tokens, found, v, capacity):
            goal, best = total, found
    return best, goal


@nb.njit(**INNER)
def within_capacity(tokens, micro, count, capacity):  # type: ignore[no-untyped-def]
    """Tells whether every micro-batch of more than one sequence has at most `capacity` tokens."""
    held, number = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for i in range(len(tokens)):
        held[micro[i]] += tokens[i]
        number[micro[i]] += 1
    return not ((held > capacity) & (number > 1)).any()


@nb.njit(**INNER)
def _total(seconds, micro, count, fixed, stages):  # type: ignore[no-untyped-def]
    """Returns the seconds of a pipeline: micro-batches one after another, and the longest pp - 1 times more."""
    each = np.zeros(count)
    for i in range(len(seconds)):
        each[micro[i]] += seconds[i]
    used = 0
    for m in range(count):
        used += each[m] > 0
    return each.sum() + used * fixed + (stages - 1) * (each.max() + fixed)


def pack_pipelines(
    seconds: Floats, tokens: Ints, pipeline: Ints, fixed: Floats, stages: Ints, capacity: Ints
) -> tuple[Ints, Floats]:
    """Packs the sequences of every pipeline: returns (int64 [n], the micro-batch of every sequence in its pipeline, in
    order; seconds [num_pipelines]).

    seconds: [n], of every sequence on its pipeline's stages. fixed, stages, capacity: [num_pipelines]. A pipeline's
    micro-batches run lightest first: the last backward hides the reduction of gradients.
    """
    found: tuple[Ints, Floats] = _packed(seconds, tokens, pipeline, fixed, stages, capacity)
    return found


@nb.njit(**ENTERED)
def _packed(seconds, tokens, pipeline, fixed, stages, capacity):  # type: ignore[no-untyped-def]
    micro, total = np.zeros(len(tokens), np.int64), np.zeros(len(fixed))
    for p in range(len(fixed)):
        mine = np.flatnonzero(pipeline == p)
        found, total[p] = pack_pipeline(seconds[mine], tokens[mine], fixed[p], stages[p], capacity[p])
        if len(mine) == 0:
            continue
        each = np.zeros(found.max() + 1)
        for i in range(len(mine)):
            each[found[i]] += seconds[mine[i]]
        place = np.empty(len(each), np.int64)
        place[np.argsort(each)] = np.arange(len(each))
        empty = (each == 0).sum()
        micro[mine] = place[found] - empty
    return micro, total
