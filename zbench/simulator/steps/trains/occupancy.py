"""Seconds in which transfers of a GPU are under way while a step is played, and those with its compute queue idle.

Whenever several hops of a GPU are under way, in whatever order, that is one interval. Each hop is joined to the
intervals of its GPU from the last one back: computes of a GPU stand in the order in which they begin, and a clock knows
that of transfers, so that hardly any is further back. Sorting hops takes several times as long.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED, IN_PLACE, INLINED, INNER
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
    links, -1 without one. sent: those with links, of trains -1 - the number, in any order; that in which they begin is
    quickest. queues: of a GPU, of which the first is its compute queue."""

    row: Column
    sent: Column
    queue_a: Column
    queue_b: Column
    link_class: Column
    queues: int


class _Intervals(NamedTuple):
    """Disjoint intervals, ascending, those of one kind of a GPU after another: of GPU g and kind k from
    bounds[3 g + k] on."""

    begin: Floats
    end: Floats
    bounds: Ints


_COMPUTES, _TRANSFERS, _ACROSS = range(3)  # kinds: when a GPU computes; transfers; does so across nodes


@dataclass(frozen=True)
class LinkUse:
    """The use of GPUs' links and compute queues while hops are played."""

    intervals: _Intervals

    @staticmethod
    def of(hops: LinkedHops, timeline: Timeline, num_gpus: int, pieces: TrainPieces = _NO_TRAINS) -> "LinkUse":
        """Reads hops that were played, and the pieces of those that are trains, which stand in the order of hops."""
        return LinkUse(_Intervals(*_intervals(hops, pieces, (timeline.start, timeline.release), num_gpus)))

    def spans(self, marks: Floats) -> Occupancy:
        """Tells of the spans that end at `marks`, seconds, ascending; the first begins at 0."""
        return Occupancy(*_by_span(self.intervals, marks))


@nb.njit(**ENTERED)
def _intervals(hops, pieces, times, gpus):  # type: ignore[no-untyped-def]
    """Returns the columns of _Intervals. times: when hops begin and end."""
    most = 4 * (len(hops.row) + len(pieces.begun))  # room that is not written takes no memory
    chains = np.empty(most), np.empty(most), np.empty(most, np.int32), np.full(3 * gpus, -1, np.int32)
    _join_all((hops.row, hops.sent), _joined(hops, gpus), pieces, times, chains)
    begins, ends, before, last = chains
    bounds = np.zeros(3 * gpus + 1, np.int64)
    for fill in range(2):
        if fill:
            begin, end = np.empty(bounds[-1]), np.empty(bounds[-1])
        for chain in range(3 * gpus):
            at, place = last[chain], bounds[chain + 1] if fill else bounds[chain]
            while at >= 0:
                if fill:
                    place -= 1
                    begin[place], end[place] = begins[at], ends[at]
                else:
                    place += 1
                at = before[at]
            if not fill:
                bounds[chain + 1] = place
    return begin, end, bounds


@nb.njit(**INNER)
def _joined(hops, gpus):  # type: ignore[no-untyped-def]
    """Returns the kinds of GPUs, 3 g + k, to whose intervals hops of each row are joined, int32 [rows, 4]; -1: none."""
    found = np.full((len(hops.link_class), 4), -1, np.int32)
    for row in range(len(found)):
        moves, across = hops.link_class[row] >= 0, hops.link_class[row] == NIC
        for side, queue in enumerate((hops.queue_a[row], hops.queue_b[row])):
            if 0 <= queue < gpus * hops.queues:
                first = 3 * (queue // hops.queues)
                found[row, side] = first + (_TRANSFERS if moves else _COMPUTES)
                found[row, 2 + side] = first + _ACROSS if across else -1
    return found


@nb.njit(**IN_PLACE)
def _join_all(hops, joined, pieces, times, chains):  # type: ignore[no-untyped-def]
    """Joins hops to the intervals of their GPUs, computes and then transfers. hops: the rows of all, and `sent`.
    joined: as `_joined` has it. chains: of every interval its begin, its end and the one before it, and the last one of
    every kind of a GPU, -1 before there is one."""
    (row_of, sent), (trains, begun, ended), (start, release), count = hops, pieces, times, 0
    for hop in range(len(row_of)):
        chain = joined[row_of[hop], 0]
        if chain >= 0 and chain % 3 == _COMPUTES:
            count = _join(chains, count, chain, start[hop], release[hop])
    for at in range(len(sent)):
        hop, train = sent[at], -1 - sent[at]
        if train < 0:
            count = _join_kinds(chains, count, joined[row_of[hop]], start[hop], release[hop])
            continue
        kinds, now = joined[row_of[trains[train, 0]]], trains[train, 3]
        stop = now + trains[train, 2]
        while now < stop:
            begin, end = begun[now], ended[now]
            now += 1
            while now < stop and begun[now] <= end:
                end = ended[now]
                now += 1
            count = _join_kinds(chains, count, kinds, begin, end)


@nb.njit(**INLINED)
def _join_kinds(chains, count, kinds, begin, end):  # type: ignore[no-untyped-def]
    """Joins an interval to those of each of some kinds; returns how many intervals there are."""
    for way in range(len(kinds)):
        if kinds[way] >= 0:
            count = _join(chains, count, kinds[way], begin, end)
    return count


@nb.njit(**INLINED)
def _join(chains, count, chain, begin, end):  # type: ignore[no-untyped-def]
    """Joins an interval to those of a chain that it touches, or adds it; returns how many intervals there are."""
    (begins, ends, before, last), later = chains, -1
    at = last[chain]
    while at >= 0 and begins[at] > end:
        later, at = at, before[at]
    if at >= 0 and ends[at] >= begin:
        first = before[at]
        begins[at], ends[at] = min(begins[at], begin), max(ends[at], end)
        while first >= 0 and ends[first] >= begin:
            begins[at], first = min(begins[first], begin), before[first]
        before[at] = first
        return count
    begins[count], ends[count], before[count] = begin, end, at
    if later < 0:
        last[chain] = count
    else:
        before[later] = count
    return count + 1


@nb.njit(**ENTERED)
def _by_span(intervals, marks):  # type: ignore[no-untyped-def]
    """Returns the fields of Occupancy: of every GPU's transfers, what of them no compute covers, and of those across
    nodes."""
    gpus = len(intervals.bounds) // 3
    sums = np.zeros((4, gpus, len(marks)))
    for gpu in range(gpus):
        for kind in (_TRANSFERS, _ACROSS):
            both = sums[2 * kind - 2, gpu], sums[2 * kind - 1, gpu]
            _add_all(both, marks, intervals, 3 * gpu, 3 * gpu + kind)
    return sums[0], sums[1], sums[3]


@nb.njit(**IN_PLACE)
def _add_all(sums, marks, intervals, computes, transfers):  # type: ignore[no-untyped-def]
    """Adds transfers to the spans, and what of them no compute covers. computes, transfers: the places of a GPU's in
    `bounds`."""
    (start, release, bounds), (moving, exposed), span = intervals, sums, 0
    place, last = bounds[computes], bounds[computes + 1]
    for at in range(bounds[transfers], bounds[transfers + 1]):
        left, right = start[at], release[at]
        while span < len(marks) - 1 and marks[span] <= left:
            span += 1
        _add(moving, marks, span, left, right)
        while place < last and start[place] < right:
            if start[place] > left:
                _add(exposed, marks, span, left, start[place])
            left = max(left, release[place])
            if release[place] > right:  # it may reach the next interval, too
                break
            place += 1
        if left < right:
            _add(exposed, marks, span, left, right)


@nb.njit(**INLINED)
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
