"""Seconds in which transfers of a GPU are under way while a step is played, and those with its compute queue idle."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import IN_PLACE
from zbench.describe.links import NIC
from zbench.simulator.clock import Timeline

Column = NDArray[np.signedinteger[Any]]
NO_TRAINS: Ints = np.zeros((0, 3), np.int64)


class Occupancy(NamedTuple):
    """Seconds of GPUs, float64 [GPUs, spans], a span from each mark to the next.

    moving: at least one transfer of the GPU's own, sent or received or passed on, is under way. exposed: of these, with
    its compute queue idle. exposed_nic: of these, with such a transfer across nodes under way.
    """

    moving: Floats
    exposed: Floats
    exposed_nic: Floats


class LinkedHops(NamedTuple):
    """Columns of hops. row: of each its place in the others: the queues at both ends (-1: a host's), and the class of
    links, -1 without one. queues: of a GPU, of which the first is its compute queue."""

    row: Column
    queue_a: Column
    queue_b: Column
    link_class: Column
    queues: int


@dataclass(frozen=True)
class LinkUse:
    """The use of GPUs' links while hops are played. moves, across: hops that transfer, in the order of their begin,
    and those of them that do across nodes. hops: all. times: when each begins and ends, with the pieces that follow it
    at once. busy: when GPUs compute."""

    moves: Ints
    across: Ints
    hops: LinkedHops
    times: "_Times"
    busy: "_Busy"

    @staticmethod
    def of(hops: LinkedHops, timeline: Timeline, num_gpus: int, trains: Ints = NO_TRAINS) -> "LinkUse":
        """Reads hops that were played.

        trains: as zbench.simulator.steps.trains.clock has them; pieces that follow one another at once are one transfer
        here.
        """
        joined, end = _joined(trains, timeline.start, timeline.release)
        bounds, order, moves = _parted(hops, joined, num_gpus)
        # Which of several that begin at one moment is first makes no difference, so the quicker sort will do.
        moves = moves[np.argsort(timeline.start[moves])]
        return LinkUse(
            moves,
            moves[hops.link_class[hops.row[moves]] == NIC],
            hops,
            _Times(timeline.start, end),
            _Busy(timeline.start[order], timeline.release[order], bounds),
        )

    def spans(self, marks: Floats) -> Occupancy:
        """Tells of the spans that end at `marks`, seconds, ascending; the first begins at 0."""
        moving, exposed = _under_way(self.moves, self.hops, self.times, self.busy, marks)
        return Occupancy(moving, exposed, _under_way(self.across, self.hops, self.times, self.busy, marks)[1])


class _Times(NamedTuple):
    """The moments at which hops begin and end."""

    start: Floats
    release: Floats


class _Busy(NamedTuple):
    """When each GPU computes, in order, GPU after GPU from `bounds` on."""

    start: Floats
    release: Floats
    bounds: Ints


@nb.njit(cache=True)
def _parted(hops, joined, gpus):  # type: ignore[no-untyped-def]
    """Returns (where the computes of each GPU begin, these, and hops that transfer and are not joined to the one before
    them)."""
    row, queue_a, _, link_class, queues = hops
    bounds, count = np.zeros(gpus + 1, np.int64), 0
    for hop in range(len(row)):
        if link_class[row[hop]] >= 0:
            count += not joined[hop]
        elif 0 <= queue_a[row[hop]] < gpus * queues:
            bounds[queue_a[row[hop]] // queues + 1] += 1
    for gpu in range(gpus):
        bounds[gpu + 1] += bounds[gpu]
    fill, order, moves, at = bounds[:-1].copy(), np.empty(bounds[gpus], np.int64), np.empty(count, np.int64), 0
    for hop in range(len(row)):
        if link_class[row[hop]] >= 0:
            if not joined[hop]:
                moves[at] = hop
                at += 1
        elif 0 <= queue_a[row[hop]] < gpus * queues:
            gpu = queue_a[row[hop]] // queues
            order[fill[gpu]] = hop
            fill[gpu] += 1
    return bounds, order, moves


@nb.njit(cache=True)
def _joined(trains, start, release):  # type: ignore[no-untyped-def]
    """Returns which hops are pieces that begin as the one before them ends, and when each hop ends with those that
    follow it so."""
    joined, end = np.zeros(len(start), np.bool_), release.copy()
    for train in range(len(trains)):
        first, stride, count = trains[train]
        head = first
        for hop in range(first + stride, first + count * stride, stride):
            if start[hop] <= end[head]:
                joined[hop], end[head] = True, release[hop]
            else:
                head = hop
    return joined, end


@nb.njit(**IN_PLACE)
def _add(sums, marks, at, begin, end):  # type: ignore[no-untyped-def]
    """Adds an interval to the spans that it falls into; `at` is one at or before the first of them."""
    last = len(marks) - 1
    while at < last and marks[at] <= begin:
        at += 1
    while at < last and marks[at] < end:
        sums[at] += marks[at] - begin
        begin = marks[at]
        at += 1
    sums[at] += end - begin


@nb.njit(**IN_PLACE)
def _close(moving, exposed, marks, busy, where, left, right):  # type: ignore[no-untyped-def]
    """Adds a complete interval of transfers, and what of it no compute covers. where: the GPU, its first compute that
    may reach the interval, and the interval's first span at most. Returns the last two for the next interval."""
    gpu, place, span = where
    while span < len(marks) - 1 and marks[span] <= left:
        span += 1
    _add(moving[gpu], marks, span, left, right)
    begin = left
    while place < busy.bounds[gpu + 1] and busy.start[place] < right:
        if busy.start[place] > begin:
            _add(exposed[gpu], marks, span, begin, busy.start[place])
        begin = max(begin, busy.release[place])
        if busy.release[place] > right:  # it may reach the next interval, too
            return place, span
        place += 1
    if begin < right:
        _add(exposed[gpu], marks, span, begin, right)
    return place, span


@nb.njit(cache=True)
def _under_way(moves, hops, times, busy, marks):  # type: ignore[no-untyped-def]
    """Returns the length of the union of every GPU's transfers by span, and of what of it no compute covers. moves:
    in the order in which they start."""
    gpus = len(busy.bounds) - 1
    moving, exposed = np.zeros((gpus, len(marks))), np.zeros((gpus, len(marks)))
    state = (np.zeros(gpus), np.zeros(gpus)), (busy.bounds[:-1].copy(), np.zeros(gpus, np.int64))
    _follow(moves, hops, times, busy, marks, (moving, exposed), state)
    return moving, exposed


@nb.njit(**IN_PLACE)
def _follow(moves, hops, times, busy, marks, sums, state):  # type: ignore[no-untyped-def]
    """Adds the transfers as `_under_way`. state: the open interval of each GPU, and its `where` of `_close`."""
    (moving, exposed), ((left, right), (place, span)) = sums, state
    for hop in moves:
        begin, end, row = times.start[hop], times.release[hop], hops.row[hop]
        for queue in (hops.queue_a[row], hops.queue_b[row]):
            if queue < 0:
                continue
            gpu = queue // hops.queues
            if begin <= right[gpu]:
                right[gpu] = max(right[gpu], end)
                continue
            where = (gpu, place[gpu], span[gpu])
            place[gpu], span[gpu] = _close(moving, exposed, marks, busy, where, left[gpu], right[gpu])
            left[gpu], right[gpu] = begin, end
    for gpu in range(len(left)):
        _close(moving, exposed, marks, busy, (gpu, place[gpu], span[gpu]), left[gpu], right[gpu])
