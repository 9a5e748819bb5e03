"""A run of hops as it was at some moment, for another program that begins with the same hops; compiled.

Programs of more layers of a step begin as those of fewer do, and run alike, to the last bit, until a hop that they do
not have in common wants something. What has run by then need not run again.
"""

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED_IN_PLACE
from zbench.simulator.steps.trains.columns import AssembledHops, Narrow


class PausedHops(NamedTuple):
    """The state of the event loop of zbench.simulator.steps.trains.clock, of its first hops: columns of them, of their
    trains and of pieces of these; of queues and links; and lists of hops. Of others none has been let go but meetings
    at the very begin.

    start, release, done, waits: of hops, as far as they are known. begun, ended: of pieces. front, behind, piece, when,
    since: as of `settle_port`. queues, links: when they are free. times, waited, hops: the heap. stack, sent: hops, how
    many there are before them.
    """

    start: Floats
    release: Floats
    done: Floats
    waits: Narrow
    begun: Floats
    ended: Floats
    front: Ints
    behind: Ints
    piece: Ints
    when: Floats
    since: Floats
    queues: Floats
    links: Floats
    times: Floats
    waited: Floats
    hops: Ints
    stack: Narrow
    sent: Narrow


class RunColumns(NamedTuple):
    """The state of a run. times: columns of TrainTimeline, with how many hops were sent before these. waits: the edges
    that hops wait for. trains: which train each hop is, -1 of others. state: as of `settle_port`, and the stack of hops
    without links that wait for nothing. heap: of the others that do. free: queues and links."""

    times: tuple[Any, ...]
    waits: Narrow
    trains: Narrow
    state: tuple[Any, ...]
    heap: tuple[Any, ...]
    free: tuple[Floats, Floats]


@nb.njit(**ENTERED_IN_PLACE)
def is_let_go(count, release, done, events, stack):  # type: ignore[no-untyped-def]
    """Returns whether any hop from `count` on has been let go that is not over at 0. events: the hops in the heap."""
    found = False
    for hop in events:
        found |= hop >= count
    for at in range(1, 1 + stack[0]):
        found |= stack[at] >= count
    for hop in range(count, len(done)):
        found |= done[hop] < np.inf and release[hop] > 0
    return found


def take_up(paused: PausedHops, of: AssembledHops, columns: RunColumns) -> int:
    """Writes the state of hops into that of a program `of` that begins with them and that has not begun; returns the
    size of the heap. -1: another hop than they would have wanted a link before."""
    start, release, done, begun, ended, sent = columns.times
    front, behind, piece, when, since, stack = columns.state
    mine = (start, release, done, columns.waits, begun, ended, front, behind, piece, when, since, *columns.free)
    kept: tuple[Any, ...] = paused
    for column, known in zip((*mine, *columns.heap, stack, sent), kept, strict=True):
        column[: len(known)] = known
    times = start, release, done
    is_first = _let_others_go(len(paused.start), of.hops, of.following, columns.waits, times, columns.free[0])
    return len(paused.hops) if is_first else -1


@nb.njit(**ENTERED_IN_PLACE)
def _let_others_go(count, hops, following, waits, times, queues):  # type: ignore[no-untyped-def]
    """Lets those of the other hops go that wait for the first ones, `count` of them; returns whether none of them, nor
    any that waits for nothing, wants a link. times: when hops start, are released and done. queues: when free."""
    (row, rows), (start, release, done) = hops, times
    next_a, next_b, next_pair, offsets, followers = following
    for hop in range(len(waits)):
        mine = row[hop]
        if hop >= count and waits[hop] == 0:
            if rows.link_a[mine] >= 0:
                return False
            release[hop] = start[hop] + rows.busy[mine]
            done[hop] = release[hop] + rows.latency[mine]
            queues[rows.queue_a[mine], 0] = release[hop]
        if done[hop] == np.inf:
            continue
        for at in range(offsets[hop] - 3, offsets[hop + 1]):
            way = at - offsets[hop] + 3
            if way >= 3:
                follower, moment = followers[at], done[hop]
            elif way == 2:
                follower, moment = next_pair[hop], release[hop]
            else:
                follower, queue = (next_b[hop], rows.queue_b[mine]) if way else (next_a[hop], rows.queue_a[mine])
                moment = start[hop]
                if follower >= count:  # nobody has taken the queue since the last of them did
                    moment = max(moment, queues[queue, rows.slot[row[follower]]])
            if follower >= count:
                start[follower] = max(start[follower], moment)
                waits[follower] -= 1
    return True
