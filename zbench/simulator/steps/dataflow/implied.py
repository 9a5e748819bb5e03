"""Leaves out edges between hops that their queues imply; compiled.

A queue of one channel serves its hops in plan order, each after the one before it. So who waits for several hops of one
queue waits for the last of them, and of several computes of a GPU that wait for one hop the first does. Hops that take
no time are no proof of that: what begins at the same moment is told apart (zbench.simulator.steps.breakdown).
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.compiled import ENTERED, IN_PLACE

LEAST_FELT = 1e-12  # seconds: longer than what rounding moves a moment of a step by, shorter than any message


class QueuedHops(NamedTuple):
    """Columns of an instance's hops. queue_a, queue_b: as in zbench.simulator.hops, below 0 where there is none.
    serial: whether their queues have one channel. computes: whether each computes. busy, latency: seconds."""

    queue_a: Ints
    queue_b: Ints
    serial: Flags
    computes: Flags
    busy: Floats
    latency: Floats


@nb.njit(**ENTERED)
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


@nb.njit(**IN_PLACE)
def keep_last(places, span, hops, of, last, needed):  # type: ignore[no-untyped-def]
    """Marks as not needed what need not be waited for by who waits for several hops, those at `places` from the first
    to before the last of a span. of: QueuedHops. last: of every queue -1, and so again afterwards."""
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        if of.serial[hop] and of.busy[hop] > LEAST_FELT:
            for queue in (of.queue_a[hop], of.queue_b[hop]):
                if queue >= 0:
                    last[queue] = max(last[queue], hop)
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        for queue in (of.queue_a[hop], of.queue_b[hop]):
            if of.serial[hop] and queue >= 0 and last[queue] > hop and of.latency[last[queue]] >= of.latency[hop]:
                needed[places[at]] = False
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        for queue in (of.queue_a[hop], of.queue_b[hop]):
            if queue >= 0:
                last[queue] = -1


@nb.njit(**IN_PLACE)
def keep_first(places, span, hops, of, first, needed):  # type: ignore[no-untyped-def]
    """Marks as not needed which of several hops need not wait for something that all of them wait for, as `keep_last`.
    first: of every queue -1, and so again afterwards."""
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        queue = of.queue_a[hop]
        if of.computes[hop] and of.busy[hop] > LEAST_FELT and (first[queue] < 0 or hop < first[queue]):
            first[queue] = hop
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        if of.computes[hop] and 0 <= first[of.queue_a[hop]] < hop:
            needed[places[at]] = False
    for at in range(span[0], span[1]):
        hop = hops[places[at]]
        if of.computes[hop]:
            first[of.queue_a[hop]] = -1


@nb.njit(**ENTERED)
def needed_edges(producer, consumer, of, queues):  # type: ignore[no-untyped-def]
    """Returns (producer, consumer) of the edges between the hops of an instance that its queues do not imply. of:
    QueuedHops; queues: how many there are."""
    needed, none = np.ones(len(producer), np.bool_), np.full(queues, -1, np.int64)
    by_consumer, by_producer = by_row(consumer, len(of.busy)), by_row(producer, len(of.busy))
    _mark_needed(by_consumer, by_producer, (producer, consumer), of, none, needed)
    return producer[needed], consumer[needed]


@nb.njit(**IN_PLACE)
def _mark_needed(by_consumer, by_producer, edges, of, none, needed):  # type: ignore[no-untyped-def]
    """Marks the edges that are not needed, as `needed_edges`. by_consumer, by_producer: as `by_row`."""
    (begins, into), (starts, out), (producer, consumer) = by_consumer, by_producer, edges
    for hop in range(len(begins) - 1):
        if begins[hop + 1] > begins[hop] + 1:
            keep_last(into, (begins[hop], begins[hop + 1]), producer, of, none, needed)
    for hop in range(len(starts) - 1):
        if starts[hop + 1] > starts[hop] + 1:
            keep_first(out, (starts[hop], starts[hop + 1]), consumer, of, none, needed)
