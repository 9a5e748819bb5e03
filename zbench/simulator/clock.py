"""The clock: when every hop runs on a described cluster.

A hop (zbench.simulator.hops) waits for its data, for its **queues** and for its **links**:

- a link is a GPU's port to one of the domains it is in or to its host, or a NIC, each direction by itself, of k
  channels (Cluster.links) with an equal share of its bandwidth. A message takes one channel of the sending and one of
  the receiving link, so that to one peer alone it has a k-th of the bandwidth; a collective's takes all of both. Of the
  hops that wait, the first that finds both free goes, so a link never idles for a hop that waits elsewhere; of several
  that find them free at once, the one that stands first in the plan, or the one that has waited longest
  (Cluster.port_order). Where ports are shared, that is the one that has waited longest, and whole steps send messages
  in pieces, as collectives: those that want one port take turns, so that each has an even share of it;
- a queue belongs to a rank and starts its hops in plan order, as many at a time as its links have channels. Each rank
  has a compute queue and, for every class of links, one a direction for transfers of its own and one for what it passes
  on for others. Messages from one queue to one other queue go one after another.

A GPU may compute more slowly while messages are under way at it, as what moves them takes multiprocessors and memory
bandwidth from it: Device.compute_slowdown times as long, for as long as a message is at one of its GPU's queues.

`run_hops` is an event loop over hops. It is exact for these rules. Free times of a queue or a link are a row with a
channel each, ascending: a message takes the channel that is free first. No time is ever revised but that at which a
slowed compute ends, which is an event of its own: messages that begin meanwhile put it off.
"""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import PLAN, SHARED, Cluster
from zbench.describe.compiled import ENTERED, ENTERED_IN_PLACE, INNER
from zbench.simulator.hop_graph import HopGraph, HopTable
from zbench.simulator.hops import COMPUTE, num_links, num_queues


@dataclass(frozen=True)
class Timeline:
    """When every hop runs: start, release, done: seconds [num_hops]: taken queues and links, freed them, data
    arrived."""

    start: Floats
    release: Floats
    done: Floats

    def seconds(self, busy: Floats) -> Floats:
        """Returns how long each hop took, `busy` seconds where nothing slowed it, [num_hops]."""
        return np.where(self.release == self.start + busy, busy, self.release - self.start)


@dataclass(slots=True)
class Free:
    """When channels are free, in seconds: queues [num_queues, most channels], links [num_links, most channels].

    A queue or link with fewer channels than the most has its first ones. longest_waiting: who goes first at a link
    that several wait for, and shared: whether whole steps send all in pieces (Cluster.port_order). slowdown: of
    computes beside messages (Device.compute_slowdown).
    """

    queues: Floats
    links: Floats
    longest_waiting: bool = False
    slowdown: float = 1.0
    shared: bool = False

    @staticmethod
    def zero(cluster: Cluster) -> "Free":
        """Returns channels that are all free at 0."""
        return Free.of(cluster, cluster.num_ranks * num_queues(cluster))

    @staticmethod
    def of(cluster: Cluster, queues: int) -> "Free":
        """Returns channels of so many queues, and of a cluster's links, that are all free at 0."""
        most = max(link.channels for link in cluster.links)
        links = np.zeros((num_links(cluster), most))
        order, slowdown = cluster.port_order, cluster.device.compute_slowdown
        return Free(np.zeros((queues, most)), links, order != PLAN, slowdown, order == SHARED)

    def copy(self) -> "Free":
        """Returns a copy that goes on by itself."""
        return Free(self.queues.copy(), self.links.copy(), self.longest_waiting, self.slowdown, self.shared)


class Slowed(NamedTuple):
    """Computes that messages slow, as the loop goes on. slowdown: how many times as long they take then.

    running: the compute that runs on each rank, -1. covered: until when messages that have begun are under way at each
    rank. [num_ranks]. since, left: from when on each compute has how many seconds to do, alone, [num_hops]. queues: of
    a rank, of which the first is its compute queue.
    """

    slowdown: float
    running: Ints
    covered: Floats
    since: Floats
    left: Floats
    queues: int

    @staticmethod
    def of(table: HopTable, num_ranks: int, free: Free) -> "Slowed":
        """Returns that of hops that have not begun, with the messages of before."""
        queues, busy = table.queues, table.rows.busy
        if free.slowdown == 1:
            none = np.zeros(0)
            return Slowed(1.0, none.astype(np.int64), none, none, none, queues)
        moving = free.queues[: num_ranks * queues].reshape(num_ranks, queues, -1)[:, COMPUTE + 1 :]
        covered = moving.max(axis=(1, 2), initial=0.0)
        nobody = np.full(num_ranks, -1, np.int64)
        return Slowed(free.slowdown, nobody, covered, np.zeros(len(busy)), busy.copy(), queues)


def run_hops(of: HopGraph, rank_ready: Floats, free: Free) -> Timeline:
    """Runs every hop once. rank_ready: [num_ranks], before which a rank starts nothing.

    free: when queues and links are; changed in place to when they are afterwards.
    """
    return run_table(of.table, rank_ready, free)


def run_table(of: HopTable, rank_ready: Floats, free: Free) -> Timeline:
    """Runs the hops of a table as `run_hops` does those of a graph."""
    slowed = Slowed.of(of, len(rank_ready), free)
    state = free.queues, free.links, free.longest_waiting
    return Timeline(*_run(of.rows, of.following, of.waits.copy(), rank_ready, state, slowed))


@nb.njit(**ENTERED_IN_PLACE)
def take(free, at, channels, slot, until):  # type: ignore[no-untyped-def]
    """Updates row `at` of free times after a hop that ends at `until` took one channel (slot 0), or all of them.

    Returns the place that the channel (of all, the last) has then.
    """
    place = 0
    if slot == channels - 1:
        while place < channels:
            free[at, place] = until
            place += 1
        return place - 1
    while place + 1 < channels and free[at, place + 1] < until:
        free[at, place] = free[at, place + 1]
        place += 1
    free[at, place] = until
    return place


@nb.njit(**INNER)
def _end(slowed, rank, hop):  # type: ignore[no-untyped-def]
    """Returns when a compute ends, as far as messages have begun."""
    since, left, slowdown = slowed.since[hop], slowed.left[hop], slowed.slowdown
    slow = max(0.0, slowed.covered[rank] - since)
    return since + (left * slowdown if left * slowdown <= slow else slow + left - slow / slowdown)


@nb.njit(**INNER)
def _put_off(slowed, rank, now, until):  # type: ignore[no-untyped-def]
    """Notes a message at a rank, under way from now on; returns the compute whose end it puts off, -1 for none."""
    hop = slowed.running[rank]
    if until <= slowed.covered[rank]:
        return -1
    if hop >= 0:
        since = slowed.since[hop]
        slow = max(0.0, min(now, slowed.covered[rank]) - since)
        slowed.left[hop] = max(0.0, slowed.left[hop] - slow / slowed.slowdown - (now - since - slow))
        slowed.since[hop] = now
    slowed.covered[rank] = until
    return hop


@nb.njit(**ENTERED)
def _run(rows, following, waits, rank_ready, free, slowed):  # type: ignore[no-untyped-def]
    rank, queue_a, queue_b, link_a, link_b, channels, slot, busy, latency = rows
    next_a, next_b, next_pair, offsets, followers = following
    queue_free, link_free, longest_waiting = free
    num_hops, computes = len(rank), len(slowed.running) * slowed.queues
    ready, start, release, done = np.empty(num_hops), np.empty(num_hops), np.empty(num_hops), np.empty(num_hops)
    heap = [(0.0, 0.0, 0) for _ in range(0)]  # when, since when it waits where that counts, and the hop; ~hop: its end
    for hop in range(num_hops):
        ready[hop] = max(rank_ready[rank[hop]], queue_free[queue_a[hop], slot[hop]])
        if queue_b[hop] >= 0:
            ready[hop] = max(ready[hop], queue_free[queue_b[hop], slot[hop]])
        if waits[hop] == 0:
            heapq.heappush(heap, (ready[hop], ready[hop] if longest_waiting else 0.0, hop))
    while len(heap):
        begin, since, hop = heapq.heappop(heap)
        if hop < 0:
            hop = ~hop
            here = queue_a[hop] // slowed.queues
            if begin != release[hop] or slowed.running[here] != hop:
                continue  # was put off, maybe to the same moment, and has ended
            slowed.running[here] = -1
            take(queue_free, queue_a[hop], 1, 0, begin)
        else:
            a, b, k, s = link_a[hop], link_b[hop], channels[hop], slot[hop]
            if a >= 0:
                both = link_free[a, s] if b < 0 else max(link_free[a, s], link_free[b, s])
                if both > begin:  # asks again when both are free; others may go first
                    heapq.heappush(heap, (both, since, hop))
                    continue
            start[hop] = begin
            if a < 0 and queue_a[hop] < computes:
                here = queue_a[hop] // slowed.queues
                slowed.running[here], slowed.since[hop] = hop, begin
                release[hop] = _end(slowed, here, hop)
                heapq.heappush(heap, (release[hop], -1.0, ~hop))  # before what else is to begin then
                continue
            release[hop] = begin + busy[hop]
            take(queue_free, queue_a[hop], k, s, release[hop])
            if a >= 0:
                take(link_free, a, k, s, release[hop])
                if b >= 0:
                    take(link_free, b, k, s, release[hop])
                    take(queue_free, queue_b[hop], k, s, release[hop])
                for queue in (queue_a[hop], queue_b[hop]):
                    if 0 <= queue < computes:
                        here = queue // slowed.queues
                        one = _put_off(slowed, here, begin, release[hop])
                        if one >= 0:
                            release[one] = _end(slowed, here, one)
                            heapq.heappush(heap, (release[one], -1.0, ~one))
        done[hop] = release[hop] + latency[hop]
        for follower, queue in ((next_a[hop], queue_a[hop]), (next_b[hop], queue_b[hop])):
            if follower >= 0:  # alone can take what is free next in the queue, so that is known now
                ready[follower] = max(ready[follower], start[hop], queue_free[queue, slot[follower]])
                waits[follower] -= 1
                if waits[follower] == 0:
                    heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
        follower = next_pair[hop]
        if follower >= 0:
            ready[follower] = max(ready[follower], release[hop])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
        for at in range(offsets[hop], offsets[hop + 1]):
            follower = followers[at]
            ready[follower] = max(ready[follower], done[hop])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
    return start, release, done
