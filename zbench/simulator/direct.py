"""Plays in plan order lists of operations of which no two wait for the same link.

Where every transfer is sent directly and every link serves the hops of one queue only, as in a ring, nobody has to be
asked who comes first at a link: an operation starts when its data is there and its queues and links have a channel that
the operations before it leave free. Going through the list once then gives what the event loop of
zbench.simulator.clock does, to the last bit (tests/simulator/test_direct.py), without hops, a heap or followers: a ring
over thousands of ranks fits in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.cost.cost import Cost
from zbench.cost.use import Repeats
from zbench.describe.arrays import Floats
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED
from zbench.describe.links import NIC
from zbench.plans.area import work
from zbench.plans.dataflow import Edges
from zbench.plans.plan import ATTEND, Column, Ints, Ops, Plan
from zbench.simulator.clock import Free, take
from zbench.simulator.hops import COMPUTE, RX, TX, class_of, members, ports

HERE = 0  # where an attend's data ends; a transfer's ends at 1 + the class of its links


class DirectRows(NamedTuple):
    """Columns of operations that compiled loops read: fields of Direct."""

    src: Column
    dst: Column
    where: NDArray[np.int8]
    busy: Floats
    collective: Column
    offsets: Column
    producers: Column


class LinkRows(NamedTuple):
    """Columns of links that compiled loops read: fields of Direct."""

    latency: Floats
    channels: Ints
    port: Ints


class QueueHistory(NamedTuple):
    """Past of queues while a list is played. begun: when each queue started its last hop. peers: to whom a queue's
    channels carried what they last did, -1."""

    begun: Floats
    peers: NDArray[np.int32]


@dataclass(frozen=True)
class Direct:
    """Operations with their times and waits, ready to be run again and again from different starting times.

    src, dst: [num_ops]. where: HERE, or 1 + the class of a transfer's links. busy: seconds. [num_ops] each.
    latency: seconds, by `where`. channels: int64, of queues and links, by `where`. collective: [num_ops], a
        transfer that takes all of them. offsets, producers: the operations that each one waits for, compressed rows.
    port: zbench.simulator.hops.ports. across: int64 [2, num_nics], bytes that each NIC sends, and receives.
    until_sent: a rank goes on when what it sends has arrived (Plan.until_sent).
    """

    src: Column
    dst: Column
    where: NDArray[np.int8]
    busy: Floats
    latency: Floats
    channels: Ints
    collective: Column
    offsets: Column
    producers: Column
    port: Ints
    across: Ints
    until_sent: bool = False

    def run(self, ready: Floats, free: Free) -> Floats:
        """Plays the list: returns the seconds at which each rank has all it attended and all sent to it.

        ready: [num_ranks], before which a rank starts nothing. free: when queues and links are; changed in place.
        """
        start = np.empty(len(self.busy))
        ended = ready.copy()
        history = QueueHistory(np.zeros(len(free.queues)), np.full(free.queues.shape, -1, np.int32))
        links = LinkRows(self.latency, self.channels, self.port)
        _run(self._rows_of_ops, links, ready, start, ended, free.queues, free.links, history)
        if self.until_sent:
            np.maximum.at(ended, self.src, start + self.busy + self.latency[self.where])
        return ended

    @property
    def _rows_of_ops(self) -> DirectRows:
        return DirectRows(self.src, self.dst, self.where, self.busy, self.collective, self.offsets, self.producers)


def direct(plan: Plan, ops: Ops, waits: tuple[Column, Column], cost: Cost, backward: bool) -> Direct:
    """Returns a plan's forward or backward list that `is_direct` on the cluster; waits: its edges as `by_consumer`."""
    cluster = cost.cluster
    offsets, producers = waits
    where = places(ops, cluster)
    channels = np.array([1, *(link.channels for link in cluster.links)])
    busy = np.empty(len(ops))
    across = np.zeros((2, cluster.num_nics), np.int64)
    for begin, part, known in _attended(plan, ops):
        here = slice(begin, begin + len(part))
        size = cost.message_bytes(plan, part)
        busy[here] = cost.transfer_seconds(size, np.maximum(where[here] - 1, 0))
        busy[here] *= np.where(part.collective, 1, channels[where[here]])  # one channel is so much slower than all
        attend, amount = work(plan, part)
        busy[begin + attend] = cost.attend_seconds(plan, part, attend, amount, backward, known)
        far = where[here] == 1 + NIC
        for counted, rank in zip(across, (part.src, part.dst), strict=True):
            np.add.at(counted, cluster.nic_of[rank[far]], size[far])
    latency = np.array([0.0, *(link.latency for link in cluster.links)])
    return Direct(
        ops.src,
        ops.dst,
        where,
        busy,
        latency,
        channels,
        ops.collective,
        offsets,
        producers,
        ports(cluster),
        across,
        plan.until_sent,
    )


def _attended(plan: Plan, ops: Ops) -> Iterator[tuple[int, Ops, Repeats]]:
    """Yields some operations at a time, the index of the first one, and how their attends repeat others of the whole
    list."""
    known = Repeats.of(plan, ops, np.flatnonzero(ops.kind == ATTEND))
    first = 0
    for begin, part in ops.chunks():
        count = int((part.kind == ATTEND).sum())
        yield begin, part, known.part(slice(first, first + count))
        first += count


def by_consumer(num_ops: int, found: Edges) -> tuple[Column, Column]:
    """Returns the operations that each one waits for, compressed rows: int32 offsets and operations."""
    offsets, producers = _producers(num_ops, found.producer, found.consumer)
    return offsets, producers


def places(ops: Ops, cluster: Cluster) -> NDArray[np.int8]:
    """Returns the place of every operation: HERE of every attend, 1 + the class of its links of every transfer."""
    found: NDArray[np.int8] = _places(ops.kind, ops.src, ops.dst, *members(cluster))
    return found


def is_direct(ops: Ops, cluster: Cluster) -> bool:
    """Returns whether nothing is routed and every link serves the hops of one queue."""
    nobody = np.full(2 * cluster.num_nics, -1, np.int64)
    return bool(_alone(ops.kind, ops.src, ops.dst, ops.via, cluster.node_of, cluster.nic_of, nobody))


@nb.njit(**ENTERED)
def _places(kind, src, dst, classes, member):  # type: ignore[no-untyped-def]
    out = np.empty(len(kind), np.int8)
    for i in range(len(kind)):
        out[i] = HERE if kind[i] == ATTEND else 1 + class_of(src[i], dst[i], classes, member)
    return out


@nb.njit(**ENTERED)
def _alone(kind, src, dst, via, node, nic, user):  # type: ignore[no-untyped-def]
    """Returns whether each direction of each NIC has one rank, as a GPU's own port has. user: int64 [2 x num_nics], all
    -1."""
    for i in range(len(src)):
        if via[i] >= 0:
            return False
        if kind[i] != ATTEND and node[src[i]] != node[dst[i]]:
            for link, rank in ((2 * nic[src[i]], src[i]), (2 * nic[dst[i]] + 1, dst[i])):
                if user[link] >= 0 and user[link] != rank:
                    return False
                user[link] = rank
    return True


@nb.njit(**ENTERED)
def _producers(num_ops, producer, consumer):  # type: ignore[no-untyped-def]
    """Sorts the edges by consumer, as compressed rows: a counting sort."""
    offsets = np.zeros(num_ops + 1, np.int32)
    for edge in range(len(consumer)):
        offsets[consumer[edge] + 1] += 1
    for op in range(num_ops):
        offsets[op + 1] += offsets[op]
    rows = np.empty(len(producer), np.int32)
    for edge in range(len(consumer)):
        rows[offsets[consumer[edge]]] = producer[edge]
        offsets[consumer[edge]] += 1
    for op in range(num_ops, 0, -1):
        offsets[op] = offsets[op - 1]
    offsets[0] = 0
    return offsets, rows


@nb.njit(**ENTERED)
def _run(ops, links, ready, start, ended, queue_free, link_free, history):  # type: ignore[no-untyped-def]
    """Plays the list once and writes `start` and `ended`. ops: DirectRows. links: LinkRows. history: QueueHistory."""
    src, dst, where, busy, collective, offsets, producers = ops
    (latency, channels, port), (begun, peers) = links, history
    queues = 1 + 4 * len(port)
    for i in range(len(start)):
        s, d = np.int64(src[i]), np.int64(dst[i])
        begin = ready[s]
        for at in range(offsets[i], offsets[i + 1]):
            p = producers[at]
            begin = max(begin, start[p] + busy[p] + latency[where[p]])
        if where[i] == HERE:
            queue = s * queues + COMPUTE
            start[i] = max(begin, queue_free[queue, 0])
            queue_free[queue, 0] = start[i] + busy[i]
            ended[s] = max(ended[s], queue_free[queue, 0] + latency[HERE])
            continue
        c = where[i] - 1
        queue, other, link, far = s * queues + 4 * c + TX, d * queues + 4 * c + RX, port[c, s], port[c, d] + 1
        k = channels[where[i]]
        slot = k - 1 if collective[i] else 0
        begin = max(begin, queue_free[queue, slot], queue_free[other, slot])
        begin = max(begin, link_free[link, slot], link_free[far, slot])
        if k == 1:  # one after another anyway
            start[i] = begin
            release = begin + busy[i]
            queue_free[queue, 0] = queue_free[other, 0] = link_free[link, 0] = link_free[far, 0] = release
        else:
            begin = max(begin, begun[queue], begun[other])
            for channel in range(k):  # what went to `d` before and is in none has ended before others started
                if peers[queue, channel] == d:
                    begin = max(begin, queue_free[queue, channel])
            start[i] = begun[queue] = begun[other] = begin
            release = begin + busy[i]
            place = take(queue_free, queue, k, slot, release)
            for channel in range(place):
                peers[queue, channel] = peers[queue, channel + 1]
            peers[queue, place] = d
            take(queue_free, other, k, slot, release)
            take(link_free, link, k, slot, release)
            take(link_free, far, k, slot, release)
        ended[d] = max(ended[d], release + latency[where[i]])
