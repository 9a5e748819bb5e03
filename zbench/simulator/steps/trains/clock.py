"""The clock of whole steps: zbench.simulator.clock's, to the last bit, with the pieces of collectives played in trains.

A leg of a gather or a reduction goes in pieces, dozens of them, that follow one another on one port, and nobody waits
for any but the last: a **train**, one hop of a program. Its pieces are not events of the loop. When a message wants the
port, the pieces that came before the message are played then, in the order in which the loop would have; the rest, no
sooner than somebody asks again. A train's last piece is an event, entered for the soonest that it can be and entered
again as long as that turns out to be too soon. Hops that take no link, computes and meetings, are no events either:
when they run is known as soon as they wait for nothing more. Where messages slow computes (Device.compute_slowdown),
each piece does so as it begins: there all pieces are hops, and all hops are events, in the other loop. So it is where
ports are shared (Cluster.port_order), as messages go in pieces, too, each on one channel of two ports.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, ENTERED_IN_PLACE, IN_PLACE, INNER
from zbench.simulator.clock import Free, Timeline, run_hops, take
from zbench.simulator.event_heap import pop_event, push_event
from zbench.simulator.hop_graph import HopGraph
from zbench.simulator.steps.trains.columns import AssembledHops, TrainTimeline
from zbench.simulator.steps.trains.paused import PausedHops, RunColumns, is_let_go, take_up
from zbench.simulator.steps.trains.pieces import last_event, leave_port, settle_port


class HopsApart(Protocol):
    """The hops of a program as zbench.simulator.clock plays them, pieces one by one."""

    @property
    def graph(self) -> HopGraph: ...

    def together(self, apart: Timeline) -> TrainTimeline:
        """Returns when the hops of the program run, of when these do."""
        ...


class TrainProgram(Protocol):
    """A program with trains. assembled: its columns."""

    @property
    def assembled(self) -> AssembledHops: ...

    @property
    def apart(self) -> HopsApart: ...


@dataclass(frozen=True)
class Unless:
    """A reason to stop. hops: when they have ended, `stops` is asked, of the times so far."""

    hops: Ints
    stops: Callable[[TrainTimeline], bool]


@dataclass(frozen=True)
class Halt:
    """A moment of a run that is kept for other programs: when `hops` have ended. common: how many hops, the first ones,
    these begin with, too; nothing is kept where others have been let go by then."""

    hops: Ints
    common: int


def run_trains(of: TrainProgram, num_ranks: int, free: Free) -> TrainTimeline:
    """Runs every hop once, all of so many ranks being ready at 0, as `zbench.simulator.clock.run_hops` does with the
    pieces of trains one by one.

    A train takes all channels of its queues and of both directions of one port. free: changed in place.
    """
    found, _ = run_unless(of, num_ranks, free, ())
    assert found is not None
    return found


def run_unless(
    of: TrainProgram,
    num_ranks: int,
    free: Free,
    reasons: Sequence[Unless],
    halt: Halt | None = None,
    since: PausedHops | None = None,
) -> tuple[TrainTimeline | None, PausedHops | None]:
    """Runs hops as `run_trains`; returns None in place of times where there was a reason to stop before the end, and
    what was kept. since: of a program that begins alike, from where this one goes on."""
    if free.slowdown != 1 or free.shared:
        return of.apart.together(run_hops(of.apart.graph, np.zeros(num_ranks), free)), None
    run, kept = _Run.begin(of.assembled, free, since), None
    if halt is not None:
        run.go_on(halt.hops)
        kept = run.paused(halt.common)
    for one in reasons:
        run.go_on(one.hops)
        if one.stops(run.timeline):
            return None, kept
    run.go_on()
    return run.timeline, kept


@dataclass
class _Run:
    """A run of a program. size: how many hops are in its heap."""

    of: AssembledHops
    longest_waiting: bool
    columns: RunColumns
    size: int

    @staticmethod
    def begin(of: AssembledHops, free: Free, since: PausedHops | None) -> "_Run":
        """Returns a run that has not begun, or goes on `since` another one where that is of the same hops."""
        ends, longest_waiting = (free.queues, free.links), free.longest_waiting
        times, waits, trains, state, heap, size = _begun(of.hops, of.waits.copy(), of.trains, ends, longest_waiting)
        run = _Run(of, longest_waiting, RunColumns(times, waits, trains, state, heap, ends), size)
        if since is None:
            return run
        run.size = take_up(since, of, run.columns)
        if run.size >= 0:
            return run
        for end in ends:
            end[:] = 0
        return _Run.begin(of, free, None)

    @property
    def timeline(self) -> TrainTimeline:
        """The times so far."""
        start, release, done, begun, ended, sent = self.columns.times
        return TrainTimeline(start, release, done, begun, ended, sent[1:])

    def go_on(self, until: Ints | None = None) -> None:
        """Runs hops until some have ended; None: all."""
        of, (times, waits, trains, state, heap, free) = self.of, self.columns
        watched = np.zeros(0, bool) if until is None else _watched(until, times[2])
        flow = waits, *times[:3], self.longest_waiting, state[5]
        of_trains = (of.trains, of.pieces), trains, state[:5]
        self.size = _play(of.hops, of.following, flow, times, of_trains, free, (heap, self.size), watched)

    def paused(self, common: int) -> PausedHops | None:
        """Returns the run as it is, as far as it is of the first hops; None where others have been let go."""
        (start, release, done, begun, ended, sent), waits, _, state, heap, free = self.columns
        (front, *of_trains, stack), events = state, [one[: self.size] for one in heap]
        if is_let_go(common, release, done, events[2], stack):
            return None
        mine = int(np.searchsorted(self.of.trains[:, 0], common))
        pieces = int(self.of.trains[:mine, 2].sum())
        hops = *(one[:common] for one in (start, release, done, waits)), begun[:pieces], ended[:pieces]
        lists = *events, stack[: 1 + stack[0]], sent[: 1 + sent[0]]
        return PausedHops(*(one.copy() for one in (*hops, front, *(one[:mine] for one in of_trains), *free, *lists)))


@nb.njit(**ENTERED)
def _watched(hops, done):  # type: ignore[no-untyped-def]
    """Tells which of some hops have not ended, bool [all hops]."""
    found = np.zeros(len(done), np.bool_)
    for hop in hops:
        found[hop] = not np.isfinite(done[hop])
    return found


@nb.njit(**IN_PLACE)
def _let_go(hop, begin, hops, following, state, queue_free, heap, size):  # type: ignore[no-untyped-def]
    """Lets what follows a hop that began go on; returns the size of the heap, with those that wait for nothing more.

    state: the edges that each hop waits for, when it is ready, releases, when hops are done, whether who has waited
    longest goes first, and the stack of those that take no link.
    """
    next_a, next_b, next_pair, offsets, followers = following
    waits, ready, release, done, longest_waiting, stack = state
    row, rows = hops
    for at in range(offsets[hop] - 3, offsets[hop + 1]):
        way = at - offsets[hop] + 3
        if way >= 3:
            follower, when = followers[at], done[hop]
        elif way == 2:
            follower, when = next_pair[hop], release[hop]
        else:
            follower, queue = (next_b[hop], rows.queue_b[row[hop]]) if way else (next_a[hop], rows.queue_a[row[hop]])
            # Alone can take what is free next in the queue, so that is known now.
            when = max(begin, queue_free[queue, rows.slot[row[follower]]]) if follower >= 0 else begin
        if follower >= 0:
            ready[follower] = max(ready[follower], when)
            waits[follower] -= 1
            if waits[follower] == 0 and rows.link_a[row[follower]] < 0:
                stack[0] += 1
                stack[stack[0]] = follower
            elif waits[follower] == 0:
                size = push_event(heap, size, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
    return size


@nb.njit(**INNER)
def _started(num_hops, trains, links):  # type: ignore[no-untyped-def]
    """Returns the train that each hop is, -1 of others, and the state of `settle_port`, with a piece before the first
    of trains that nobody has asked for."""
    train_of = np.full(num_hops, -1, np.int32)
    for train in range(len(trains)):
        train_of[trains[train, 0]] = train
    front, behind = np.full(links // 2 + 1, -1, np.int64), np.full(len(trains), -1, np.int64)
    piece, when, since = np.full(len(trains), -1, np.int64), np.zeros(len(trains)), np.zeros(len(trains))
    return train_of, (front, behind, piece, when, since)


@nb.njit(**ENTERED)
def _begun(hops, waits, trains, free, longest_waiting):  # type: ignore[no-untyped-def]
    """Returns the fields of RunColumns but for the last, and the size of the heap. Of the times, `start` has when hops
    are ready until they start, and `sent` how many there are before them."""
    num_hops, size, count = len(waits), 0, 0
    ready, release, done = np.zeros(num_hops), np.empty(num_hops), np.full(num_hops, np.inf)
    heap = np.empty(num_hops + 1), np.empty(num_hops + 1), np.empty(num_hops + 1, np.int64)
    stack = np.empty(num_hops + 1, np.int32)  # how many there are, and they
    stack[0] = 0
    queue_free, row, rows = free[0], hops.row, hops.rows
    used = queue_free.max() > 0  # never before a step
    for hop in range(num_hops):
        if used:
            a, b, s = rows.queue_a[row[hop]], rows.queue_b[row[hop]], rows.slot[row[hop]]
            ready[hop] = queue_free[a, s] if b < 0 else max(queue_free[a, s], queue_free[b, s])
        count += rows.link_a[row[hop]] >= 0
        if waits[hop] == 0 and rows.link_a[row[hop]] < 0:
            stack[0] += 1
            stack[stack[0]] = hop
        elif waits[hop] == 0:
            size = push_event(heap, size, (ready[hop], ready[hop] if longest_waiting else 0.0, hop))
    sent = np.empty(count + 1, np.int32)
    sent[0] = 0
    train_of, state = _started(num_hops, trains, len(free[1]))
    pieces = 0
    for train in range(len(trains)):
        pieces += trains[train, 2]
    times = ready, release, done, np.empty(pieces), np.empty(pieces), sent
    return times, waits, train_of, (*state, stack), heap, size


@nb.njit(**ENTERED_IN_PLACE)
def _play(hops, following, flow, times, of_trains, free, events, watched):  # type: ignore[no-untyped-def]
    """Runs hops until none is left, or those that are watched have ended; returns the size of the heap. flow: state of
    `_let_go`. of_trains: trains and their pieces' seconds, and what `_started` returns. watched: bool [hops], or [0]:
    none."""
    start, release, done, begun, ended, sent = times
    trains, train_of, state = of_trains
    table = trains[0]
    front, behind, piece, when, since = state
    (queue_free, link_free), longest_waiting, stack = free, flow[4], flow[5]
    (heap, size), left, moments = events, np.int64(0), (start, release, done, begun, ended)
    row, rows = hops
    for hop in range(len(watched)):
        left += watched[hop]
    if len(watched) and left == 0:
        return size
    while size or stack[0]:
        if stack[0]:  # nobody waits for anything that it holds but its queue's next, so it need not be an event
            hop = stack[stack[0]]
            stack[0] -= 1
            begin = start[hop]
            mine = row[hop]
            release[hop] = begin + rows.busy[mine]
            done[hop] = release[hop] + rows.latency[mine]
            queue_free[rows.queue_a[mine], 0] = release[hop]
        else:
            event = heap[0][0], heap[1][0], heap[2][0]
            size = pop_event(heap, size)
            begin, waited, hop = event
            mine, train = row[hop], train_of[hop]
            a, b, k, s = rows.link_a[mine], rows.link_b[mine], rows.channels[mine], rows.slot[mine]
            if train >= 0:
                if piece[train] < 0:
                    piece[train], when[train], since[train] = 0, begin, waited
                    behind[train], front[a // 2] = front[a // 2], train
                if settle_port(a // 2, event, hops, trains, state, link_free, moments, longest_waiting) != train:
                    size = push_event(heap, size, last_event(a // 2, train, trains, state, link_free, longest_waiting))
                    continue
                leave_port(a // 2, train, front, behind)
                begin = begun[table[train, 3] + table[train, 2] - 1]
            else:
                for link in (a, b):
                    if link >= 0 and front[link // 2] >= 0:
                        settle_port(link // 2, event, hops, trains, state, link_free, moments, longest_waiting)
                both = link_free[a, s] if b < 0 else max(link_free[a, s], link_free[b, s])
                if both > begin:  # asks again when both are free; others may go first
                    size = push_event(heap, size, (both, waited, hop))
                    continue
                start[hop] = begin
                release[hop] = begin + rows.busy[mine]
                done[hop] = release[hop] + rows.latency[mine]
                for link in (a, b):
                    if link >= 0:
                        take(link_free, link, k, s, release[hop])
            sent[0] += 1
            sent[sent[0]] = -1 - train if train >= 0 else hop
            take(queue_free, rows.queue_a[mine], k, s, release[hop])
            if b >= 0:
                take(queue_free, rows.queue_b[mine], k, s, release[hop])
        size = _let_go(hop, begin, hops, following, flow, queue_free, heap, size)
        if left > 0 and watched[hop]:
            left -= 1
            if left == 0:
                return size
    return size
