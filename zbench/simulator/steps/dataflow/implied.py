"""Leaves out edges between hops that their queues imply; compiled.

A queue of one channel serves its hops in plan order, each after the one before it. So who waits for several hops of one
queue waits for the last of them, and of several computes of a GPU that wait for one hop the first does. Hops that take
no time are no proof of that: what begins at the same moment is told apart (zbench.simulator.steps.breakdown).
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints

_FELT = 1e-12  # seconds: longer than what rounding moves a moment of a step by, shorter than any message


class QueuedHops(NamedTuple):
    """Columns of an instance's hops. queue_a, queue_b: as in zbench.simulator.hops, below 0 where there is none.
    serial: whether their queues have one channel. computes: whether each computes. busy, latency: seconds."""

    queue_a: Ints
    queue_b: Ints
    serial: Flags
    computes: Flags
    busy: Floats
    latency: Floats


@nb.njit(cache=True)
def by_row(which, count):  # type: ignore[no-untyped-def]
    """Returns compressed rows of the places in `which` of each number below `count`, in order: (offsets, places)."""
    offsets = np.zeros(count + 1, np.int64)
    for one in which:
        offsets[one + 1] += 1
    for at in range(count):
        offsets[at + 1] += offsets[at]
    fill, found = offsets[:-1].copy(), np.empty(len(which), np.int64)
    for at in range(len(which)):
        found[fill[which[at]]] = at
        fill[which[at]] += 1
    return offsets, found


@nb.njit(cache=True)
def last_of_queues(hops, of, last):  # type: ignore[no-untyped-def]
    """Tells which of some hops who waits for all of them has to wait for, bool. of: QueuedHops. last: of every queue
    -1, and so again afterwards."""
    for hop in hops:
        if of.serial[hop] and of.busy[hop] > _FELT:
            for queue in (of.queue_a[hop], of.queue_b[hop]):
                if queue >= 0:
                    last[queue] = max(last[queue], hop)
    found = np.ones(len(hops), np.bool_)
    for at in range(len(hops)):
        hop = hops[at]
        for queue in (of.queue_a[hop], of.queue_b[hop]):
            if of.serial[hop] and queue >= 0 and last[queue] > hop and of.latency[last[queue]] >= of.latency[hop]:
                found[at] = False
    for hop in hops:
        for queue in (of.queue_a[hop], of.queue_b[hop]):
            if queue >= 0:
                last[queue] = -1
    return found


@nb.njit(cache=True)
def first_of_queues(hops, of, first):  # type: ignore[no-untyped-def]
    """Tells which of some hops have to wait for something that all of them wait for, bool. first: of every queue -1,
    and so again afterwards."""
    for hop in hops:
        queue = of.queue_a[hop]
        if of.computes[hop] and of.busy[hop] > _FELT and (first[queue] < 0 or hop < first[queue]):
            first[queue] = hop
    found = np.ones(len(hops), np.bool_)
    for at in range(len(hops)):
        hop = hops[at]
        if of.computes[hop] and 0 <= first[of.queue_a[hop]] < hop:
            found[at] = False
    for hop in hops:
        if of.computes[hop]:
            first[of.queue_a[hop]] = -1
    return found


@nb.njit(cache=True)
def needed_edges(producer, consumer, of, queues):  # type: ignore[no-untyped-def]
    """Returns (producer, consumer) of the edges between the hops of an instance that its queues do not imply. of:
    QueuedHops; queues: how many there are."""
    needed, none = np.ones(len(producer), np.bool_), np.full(queues, -1, np.int64)
    offsets, places = by_row(consumer, len(of.busy))
    for hop in range(len(of.busy)):
        mine = places[offsets[hop] : offsets[hop + 1]]
        if len(mine) > 1:
            needed[mine] = last_of_queues(producer[mine], of, none)
    offsets, places = by_row(producer, len(of.busy))
    for hop in range(len(of.busy)):
        mine = places[offsets[hop] : offsets[hop + 1]]
        if len(mine) > 1:
            needed[mine] &= first_of_queues(consumer[mine], of, none)
    return producer[needed], consumer[needed]
