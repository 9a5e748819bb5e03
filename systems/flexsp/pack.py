"""Packs sequences into given groups so that the slowest group ends as early as it can.

Longest first, each sequence to the group that would end first with it (the rule for machines of different
speeds, Graham's for equal ones), as far as the group's memory allows. To improve on that: best fit below an end
that is bisected, and single moves and swaps off the slowest group while they help. Compiled, as a search over
group sizes calls it hundreds of times a batch.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.flexsp.cost import Objective

ROUNDS = 400  # moves and swaps at most: they end by themselves long before, this only bounds the time
BISECTIONS = 12  # of the end that best fit has to keep


# Groups while they are packed, changed in place: (int64 [num_groups], the place of each in Objective.degree; int64
# [num_sequences], the group of every sequence, -1: nowhere yet; seconds and tokens of every group).
_Groups = tuple[Ints, Ints, Floats, Ints]


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences packed into groups. seconds: of the slowest group. index: int64 [num_groups], each group's place in
    Objective.degree, the largest groups first. group: int64 [num_sequences], the group of every sequence. Infinite
    seconds: memory did not suffice, and `group` is -1 where a sequence found no place.
    """

    seconds: float
    index: Ints
    group: Ints


def pack_groups(lengths: Ints, counts: Ints, of: Objective, improve: bool) -> Packed:
    """Packs `lengths`, longest first, into counts[i] groups of of.degree[i] ranks; improve: also by moves and swaps."""
    index = np.repeat(np.arange(len(counts)), counts)[::-1].copy()
    group, load, used = _place(lengths, index, *of.group_costs)
    seconds = float("inf") if (group < 0).any() else float(load.max())
    if improve:
        seconds, group = _improved(lengths, seconds, (index, group, load, used), of)
    return Packed(seconds, index, group)


def _improved(lengths: Ints, seconds: float, groups: _Groups, of: Objective) -> tuple[float, Ints]:
    """Returns the better of the placement at hand and the best fit, each after moves and swaps."""
    costs, (index, group, load, _) = of.group_costs, groups
    best = seconds, group
    if seconds < np.inf:
        _swap(lengths, groups, costs)
        best = float(load.max()), group
    alone = of.seconds(lengths, int(index[0]))
    low, high, fitting = 0.0, min(best[0], alone), None
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fit = _fit(lengths, middle, index, *costs)
        low, high, fitting = (middle, high, fitting) if (fit[0] < 0).any() else (low, middle, fit)
    if fitting is not None:
        group, load, used = fitting
        _swap(lengths, (index, group, load, used), costs)
        best = min(best, (float(load.max()), group), key=lambda each: each[0])
    return best


@nb.njit(**ENTERED)
def _place(lengths, index, square, linear, fixed, capacity):  # type: ignore[no-untyped-def]
    """Places sequences, longest first, each in the group that ends first; groups of a degree stand in a heap by their
    load."""
    load, used = np.zeros(len(index)), np.zeros(len(index), np.int64)
    group = np.full(len(lengths), -1, np.int64)
    first = np.searchsorted(-index, -np.arange(len(square)))  # index falls: groups of degree k from first[k] on
    stop = np.searchsorted(-index, -np.arange(len(square)), side="right")
    heap = np.arange(len(index))
    for i in range(len(lengths)):
        s = float(lengths[i])
        best, end = -1, np.inf  # a place in the heap
        for k in range(len(square)):
            if first[k] == stop[k] or lengths[i] > capacity[k]:
                continue
            own, place = square[k] * s * s + linear[k] * s, first[k]
            if used[heap[place]] + lengths[i] > capacity[k]:  # the least loaded is full: look at all
                place = -1
                for other in range(first[k], stop[k]):
                    room = used[heap[other]] + lengths[i] <= capacity[k]
                    if room and (place < 0 or load[heap[other]] < load[heap[place]]):
                        place = other
                if place < 0:
                    continue
            g = heap[place]
            then = load[g] + own + (fixed[k] if used[g] == 0 else 0.0)
            if then < end:
                best, end = place, then
        if best < 0:
            break
        g = heap[best]
        group[i], load[g] = g, end
        used[g] += lengths[i]
        _sink(heap, load, best, first[index[g]], stop[index[g]])
    return group, load, used


@nb.njit(**INNER)
def _sink(heap, load, place, first, stop):  # type: ignore[no-untyped-def]
    """Restores the heap in heap[first:stop] after the load of the group at `place` has grown."""
    while True:
        child = first + 2 * (place - first) + 1
        if child >= stop:
            return
        if child + 1 < stop and load[heap[child + 1]] < load[heap[child]]:
            child += 1
        if load[heap[place]] <= load[heap[child]]:
            return
        heap[place], heap[child] = heap[child], heap[place]
        place = child


@nb.njit(**ENTERED)
def _fit(lengths, end, index, square, linear, fixed, capacity):  # type: ignore[no-untyped-def]
    """Places sequences, longest first, each in the group of the smallest degree, among these the fullest, that still
    ends by `end`."""
    load, used = np.zeros(len(index)), np.zeros(len(index), np.int64)
    group = np.full(len(lengths), -1, np.int64)
    for i in range(len(lengths)):
        s, best = float(lengths[i]), -1
        for g in range(len(index)):
            k = index[g]
            then = load[g] + square[k] * s * s + linear[k] * s + (fixed[k] if used[g] == 0 else 0.0)
            if used[g] + lengths[i] <= capacity[k] and then <= end:
                closer = best < 0 or k < index[best] or (k == index[best] and load[g] > load[best])
                best = g if closer else best
        if best < 0:
            break
        k = index[best]
        load[best] += square[k] * s * s + linear[k] * s + (fixed[k] if used[best] == 0 else 0.0)
        used[best] += lengths[i]
        group[i] = best
    return group, load, used


@nb.njit(**ENTERED)
def _swap(lengths, groups, costs):  # type: ignore[no-untyped-def]
    """Moves one sequence off the slowest group, or swaps it with a shorter one, while the later end of both falls."""
    index, group, load, used = groups
    square, linear, fixed, capacity = costs
    for _ in range(ROUNDS):
        slow = int(load.argmax())
        p, end = index[slow], load[slow] * (1 - 1e-9)
        mover, back, target = -1, -1, -1
        for i in range(len(lengths)):
            if group[i] != slow:
                continue
            s = float(lengths[i])
            left = load[slow] - square[p] * s * s - linear[p] * s
            for g in range(len(index)):
                k = index[g]
                if g != slow and used[g] + lengths[i] <= capacity[k]:
                    there = load[g] + square[k] * s * s + linear[k] * s + (fixed[k] if used[g] == 0 else 0.0)
                    if max(there, left) < end:
                        mover, back, target, end = i, -1, g, max(there, left)
            for j in range(len(lengths)):
                g, x = group[j], float(lengths[j])
                k = index[g]
                if g == slow or lengths[j] >= lengths[i] or used[g] + lengths[i] - lengths[j] > capacity[k]:
                    continue
                here = left + square[p] * x * x + linear[p] * x
                there = load[g] + square[k] * (s * s - x * x) + linear[k] * (s - x)
                if max(here, there) < end:
                    mover, back, target, end = i, j, g, max(here, there)
        if mover < 0:
            return
        _move(mover, target, lengths, groups, costs)
        if back >= 0:
            _move(back, slow, lengths, groups, costs)


@nb.njit(**INNER)
def _move(i, target, lengths, groups, costs):  # type: ignore[no-untyped-def]
    index, group, load, used = groups
    square, linear, fixed, _ = costs
    s, here = float(lengths[i]), group[i]
    p, k = index[here], index[target]
    load[here] -= square[p] * s * s + linear[p] * s
    used[here] -= lengths[i]
    if used[here] == 0:
        load[here] = 0.0
    load[target] = (load[target] if used[target] > 0 else fixed[k]) + square[k] * s * s + linear[k] * s
    used[target] += lengths[i]
    group[i] = target
