"""Seconds in which transfers of a GPU are under way while a step is played, and those with its compute queue idle."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.compiled import IN_PLACE
from zbench.describe.links import NIC
from zbench.simulator.clock import Timeline

Column = NDArray[np.signedinteger[Any]]


class TrainPieces(NamedTuple):
    """Trains (zbench.simulator.steps.trains.columns.AssembledHops), and when their pieces begin and end."""

    trains: Ints
    begun: Floats
    ended: Floats


_NO_TRAINS = TrainPieces(np.zeros((0, 4), np.int64), np.zeros(0), np.zeros(0))


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


class _Moves(NamedTuple):
    """Hops that transfer, of trains the stretches of pieces that follow one another at once: when each begins and ends,
    the GPUs at its ends (-1: a host), and whether it goes across nodes."""

    begin: Floats
    end: Floats
    gpu: Column
    other: Column
    across: Flags


class _Busy(NamedTuple):
    """When each GPU computes, in order, GPU after GPU from `bounds` on."""

    start: Floats
    release: Floats
    bounds: Ints


@dataclass(frozen=True)
class LinkUse:
    """The use of GPUs' links while hops are played. moves: what transfers; order: their numbers in the order in
    which they begin. busy: when GPUs compute."""

    moves: _Moves
    order: Ints
    busy: _Busy

    @staticmethod
    def of(hops: LinkedHops, timeline: Timeline, num_gpus: int, pieces: TrainPieces = _NO_TRAINS) -> "LinkUse":
        """Reads hops that were played, and the pieces of those that are trains."""
        moves, busy = _parted(hops, pieces, (timeline.start, timeline.release), num_gpus)
        # Which of several that begin at one moment is first makes no difference, so the quicker sort will do.
        return LinkUse(_Moves(*moves), np.argsort(moves[0]), _Busy(*busy))

    def spans(self, marks: Floats) -> Occupancy:
        """Tells of the spans that end at `marks`, seconds, ascending; the first begins at 0."""
        moving, exposed = _under_way(self.order, self.moves, self.busy, marks)
        across = self.order[self.moves.across[self.order]]
        return Occupancy(moving, exposed, _under_way(across, self.moves, self.busy, marks)[1])


@nb.njit(cache=True)
def _parted(hops, pieces, times, gpus):  # type: ignore[no-untyped-def]
    """Returns the columns of _Moves, in the order of hops, and of _Busy. times: when hops begin and end."""
    row, queue_a, _, link_class, queues = hops
    trains, begun, ended = pieces
    bounds, count = np.zeros(gpus + 1, np.int64), 0
    for hop in range(len(row)):
        if link_class[row[hop]] >= 0:
            count += 1
        elif 0 <= queue_a[row[hop]] < gpus * queues:
            bounds[queue_a[row[hop]] // queues + 1] += 1
    train_of = np.full(len(row), -1, np.int32)
    for train in range(len(trains)):
        train_of[trains[train, 0]] = train
        for at in range(trains[train, 3] + 1, trains[train, 3] + trains[train, 2]):
            count += begun[at] > ended[at - 1]
    for gpu in range(gpus):
        bounds[gpu + 1] += bounds[gpu]
    moves = np.empty(count), np.empty(count), np.empty(count, np.int32), np.empty(count, np.int32)
    across, busy = np.empty(count, np.bool_), (np.empty(bounds[gpus]), np.empty(bounds[gpus]))
    _put_apart(hops, pieces, train_of, times, gpus, (*moves, across), (*busy, bounds[:-1].copy()))
    return (*moves, across), (*busy, bounds)


@nb.njit(**IN_PLACE)
def _put_apart(hops, pieces, train_of, times, gpus, moves, busy):  # type: ignore[no-untyped-def]
    """Writes the columns of `_parted`. train_of: the train that each hop is, -1 of others. busy: with where the next
    compute of each GPU goes."""
    (row_of, queue_a, queue_b, link_class, queues), (start, end) = hops, times
    (begin, until, first, second, across), (since, release, fill), at = moves, busy, 0
    for hop in range(len(row_of)):
        row, train = row_of[hop], train_of[hop]
        if link_class[row] >= 0:
            now = pieces.trains[train, 3] if train >= 0 else -1
            stop = now + pieces.trains[train, 2] if train >= 0 else 0
            while now < stop:
                begin[at], until[at], across[at] = start[hop], end[hop], link_class[row] == NIC
                if train >= 0:
                    begin[at] = pieces.begun[now]
                    while now + 1 < stop and pieces.begun[now + 1] <= pieces.ended[now]:
                        now += 1
                    until[at] = pieces.ended[now]
                first[at] = queue_a[row] // queues if queue_a[row] >= 0 else -1
                second[at] = queue_b[row] // queues if queue_b[row] >= 0 else -1
                at, now = at + 1, now + 1
        elif 0 <= queue_a[row] < gpus * queues:
            gpu = queue_a[row] // queues
            since[fill[gpu]], release[fill[gpu]] = start[hop], end[hop]
            fill[gpu] += 1


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
def _under_way(order, moves, busy, marks):  # type: ignore[no-untyped-def]
    """Returns the length of the union of every GPU's transfers by span, and of what of it no compute covers. order: of
    transfers, as they begin."""
    gpus = len(busy.bounds) - 1
    moving, exposed = np.zeros((gpus, len(marks))), np.zeros((gpus, len(marks)))
    state = (np.zeros(gpus), np.zeros(gpus)), (busy.bounds[:-1].copy(), np.zeros(gpus, np.int64))
    _follow(order, moves, busy, marks, (moving, exposed), state)
    return moving, exposed


@nb.njit(**IN_PLACE)
def _follow(order, moves, busy, marks, sums, state):  # type: ignore[no-untyped-def]
    """Adds transfers as `_under_way`. state: the open interval of each GPU, and its `where` of `_close`."""
    (moving, exposed), ((left, right), (place, span)) = sums, state
    for at in order:
        begin, end = moves.begin[at], moves.end[at]
        for gpu in (moves.gpu[at], moves.other[at]):
            if gpu < 0:
                continue
            if begin <= right[gpu]:
                right[gpu] = max(right[gpu], end)
                continue
            where = (gpu, place[gpu], span[gpu])
            place[gpu], span[gpu] = _close(moving, exposed, marks, busy, where, left[gpu], right[gpu])
            left[gpu], right[gpu] = begin, end
    for one in range(len(left)):
        _close(moving, exposed, marks, busy, (one, place[one], span[one]), left[one], right[one])
