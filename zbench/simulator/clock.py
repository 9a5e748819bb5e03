"""The clock: when every hop runs on a described cluster.

A hop (zbench.simulator.hops) waits for its data, for its **queues** and for its **links**:

- a link is a GPU's port to one of the domains it is in or to its host, or a NIC, each direction by itself, of k
  channels (Cluster.links) with an equal share of its bandwidth. A message takes one channel of the sending and one of
  the receiving link, so that to one peer alone it has a k-th of the bandwidth; a collective's takes all of both. Of the
  hops that wait, the first that finds both free goes, so a link never idles for a hop that waits elsewhere; of several
  that find them free at once, the one that stands first in the plan, or the one that has waited longest
  (Cluster.port_order);
- a queue belongs to a rank and starts its hops in plan order, as many at a time as its links have channels. Each rank
  has a compute queue and, for every class of links, one a direction for transfers of its own and one for what it passes
  on for others. Messages from one queue to one other queue go one after another.

`run_hops` is an event loop over hops. It is exact for these rules: no time is ever revised. Free times of a queue or a
link are a row with a channel each, ascending: a message takes the channel that is free first.
"""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.cluster import LONGEST_WAITING, Cluster
from zbench.plans.dataflow import Edges
from zbench.plans.plan import Ints
from zbench.simulator.hops import Hops, num_links, num_queues


@dataclass(frozen=True)
class Timeline:
    """When every hop runs: start, release, done: seconds [num_hops]: taken queues and links, freed them, data
    arrived."""

    start: Floats
    release: Floats
    done: Floats


@dataclass(slots=True)
class Free:
    """When channels are free, in seconds: queues [num_queues, most channels], links [num_links, most channels].

    A queue or link with fewer channels than the most has its first ones. longest_waiting: who goes first at a link
    that several wait for (Cluster.port_order).
    """

    queues: Floats
    links: Floats
    longest_waiting: bool = False

    @staticmethod
    def zero(cluster: Cluster) -> "Free":
        """Returns channels that are all free at 0."""
        return Free.of(cluster, cluster.num_ranks * num_queues(cluster))

    @staticmethod
    def of(cluster: Cluster, queues: int) -> "Free":
        """Returns channels of so many queues, and of a cluster's links, that are all free at 0."""
        most = max(link.channels for link in cluster.links)
        links = np.zeros((num_links(cluster), most))
        return Free(np.zeros((queues, most)), links, cluster.port_order == LONGEST_WAITING)

    def copy(self) -> "Free":
        """Returns a copy that goes on by itself."""
        return Free(self.queues.copy(), self.links.copy(), self.longest_waiting)


class HopRows(NamedTuple):
    """Columns of hops that compiled loops read, [num_hops]: fields of Hops and HopGraph."""

    rank: Ints
    queue_a: Ints
    queue_b: Ints
    link_a: Ints
    link_b: Ints
    channels: Ints
    slot: Ints
    busy: Floats
    latency: Floats


class Followers(NamedTuple):
    """Hops that come after a hop: fields of HopGraph."""

    next_a: Ints
    next_b: Ints
    next_pair: Ints
    offsets: Ints
    followers: Ints


@dataclass(frozen=True)
class HopGraph:
    """Hops with their waits, ready to be run again and again from different starting times.

    busy, latency: seconds [num_hops]. next_a, next_b: the next hop in each queue, -1 if none. pair: which of the pairs
    of queues with several channels a hop is between, -1 if none; next_pair: the next hop between the same two.
    offsets, followers: hops that need a hop's data, compressed rows; waits: edges into each hop.
    """

    hops: Hops
    busy: Floats
    latency: Floats
    next_a: Ints
    next_b: Ints
    pair: Ints
    next_pair: Ints
    offsets: Ints
    followers: Ints
    waits: Ints

    @property
    def slot(self) -> Ints:
        """The channel, in the order in which they get free, that has to be free for the hop, int64 [num_hops]."""
        return np.where(self.hops.whole, self.hops.channels - 1, 0)

    @property
    def rows(self) -> HopRows:
        """Returns the columns that compiled loops read."""
        of = self.hops
        queues, links = (of.queue_a, of.queue_b), (of.link_a, of.link_b)
        return HopRows(of.rank, *queues, *links, of.channels, self.slot, self.busy, self.latency)

    @property
    def following(self) -> Followers:
        return Followers(self.next_a, self.next_b, self.next_pair, self.offsets, self.followers)


def hop_graph(parts: Hops, busy: Floats, latency: Floats, edges: Edges) -> HopGraph:
    """Puts hops into a program: queues in plan order and data edges, from operations to hops."""
    found = hop_edges(edges.producer, edges.consumer, parts.first, parts.last, parts.after)
    return graph_of(parts, busy, latency, *found)


def graph_of(parts: Hops, busy: Floats, latency: Floats, producer: Ints, consumer: Ints) -> HopGraph:
    """Puts hops into a program: queues in plan order and edges between hops."""
    next_a, next_b, queue_waits = _queue_order(parts.queue_a, parts.queue_b)
    pair, next_pair = _pairs(parts)
    queue_waits[next_pair[next_pair >= 0]] += 1
    offsets, followers, waits = _rows(len(parts.op), producer, consumer)
    return HopGraph(parts, busy, latency, next_a, next_b, pair, next_pair, offsets, followers, waits + queue_waits)


def _pairs(parts: Hops) -> tuple[Ints, Ints]:
    """Returns HopGraph.pair and HopGraph.next_pair. Hops that take all of their queues go one after another without
    them."""
    pair, following = np.full(len(parts.op), -1, np.int64), np.full(len(parts.op), -1, np.int64)
    several = np.flatnonzero((parts.channels > 1) & (parts.queue_b >= 0))
    if len(several):
        name = parts.queue_a[several] * (1 + parts.queue_b.max()) + parts.queue_b[several]
        pair[several] = np.unique(name, return_inverse=True)[1]
        order = several[np.argsort(pair[several], kind="stable")]
        same = pair[order[1:]] == pair[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
    return pair, following


@nb.njit(cache=True)
def _rows(num_hops, producer, consumer):  # type: ignore[no-untyped-def]
    """Sorts edges by producer, as compressed rows, and counts the edges into each hop (a counting sort)."""
    offsets, waits = np.zeros(num_hops + 1, np.int64), np.zeros(num_hops, np.int64)
    for edge in range(len(producer)):
        offsets[producer[edge] + 1] += 1
        waits[consumer[edge]] += 1
    for hop in range(num_hops):
        offsets[hop + 1] += offsets[hop]
    fill, followers = offsets[:-1].copy(), np.empty(len(producer), np.int64)
    for edge in range(len(producer)):
        followers[fill[producer[edge]]] = consumer[edge]
        fill[producer[edge]] += 1
    return offsets, followers, waits


@nb.njit(cache=True)
def _queue_order(queue_a, queue_b):  # type: ignore[no-untyped-def]
    last = np.full(max(queue_a.max(), queue_b.max()) + 1 if len(queue_a) else 0, -1, np.int64)
    next_a, next_b = np.full(len(queue_a), -1, np.int64), np.full(len(queue_a), -1, np.int64)
    waits = np.zeros(len(queue_a), np.int64)
    for hop in range(len(queue_a)):
        for queue in (queue_a[hop], queue_b[hop]):
            if queue < 0:
                continue
            before = last[queue]
            if before >= 0:
                if queue_a[before] == queue:
                    next_a[before] = hop
                else:
                    next_b[before] = hop
                waits[hop] += 1
            last[queue] = hop
    return next_a, next_b, waits


@nb.njit(cache=True)
def hop_edges(producer, consumer, first, last, after):  # type: ignore[no-untyped-def]
    """Returns the edges between hops, as their (sources, targets), of edges between operations.

    An operation starts, all hops with -1 in `after`, when its producers' last hops are complete; a hop with another one
    in `after` starts when that is. first: of every operation its first hop, and one more for the end.
    """
    count = 0
    for fill in range(2):
        if fill:
            sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
        for edge in range(len(producer)):
            for a in range(first[producer[edge]], first[producer[edge] + 1]):
                if not last[a]:
                    continue
                for b in range(first[consumer[edge]], first[consumer[edge] + 1]):
                    if after[b] == -1:
                        if fill:
                            sources[count], targets[count] = a, b
                        count += 1
        for hop in range(len(after)):
            if after[hop] >= 0:
                if fill:
                    sources[count], targets[count] = after[hop], hop
                count += 1
    return sources, targets


def run_hops(of: HopGraph, rank_ready: Floats, free: Free) -> Timeline:
    """Runs every hop once. rank_ready: [num_ranks], before which a rank starts nothing.

    free: when queues and links are; changed in place to when they are afterwards.
    """
    return Timeline(
        *_run(of.rows, of.following, of.waits.copy(), rank_ready, free.queues, free.links, free.longest_waiting)
    )


@nb.njit(cache=True)
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


@nb.njit(cache=True)
def _run(rows, following, waits, rank_ready, queue_free, link_free, longest_waiting):  # type: ignore[no-untyped-def]
    rank, queue_a, queue_b, link_a, link_b, channels, slot, busy, latency = rows
    next_a, next_b, next_pair, offsets, followers = following
    num_hops = len(rank)
    ready, start, release, done = np.empty(num_hops), np.empty(num_hops), np.empty(num_hops), np.empty(num_hops)
    heap = [(0.0, 0.0, 0) for _ in range(0)]  # when, since when it waits where that counts, and the hop
    for hop in range(num_hops):
        ready[hop] = max(rank_ready[rank[hop]], queue_free[queue_a[hop], slot[hop]])
        if queue_b[hop] >= 0:
            ready[hop] = max(ready[hop], queue_free[queue_b[hop], slot[hop]])
        if waits[hop] == 0:
            heapq.heappush(heap, (ready[hop], ready[hop] if longest_waiting else 0.0, hop))
    while len(heap):
        begin, since, hop = heapq.heappop(heap)
        a, b, k, s = link_a[hop], link_b[hop], channels[hop], slot[hop]
        if a >= 0:
            both = link_free[a, s] if b < 0 else max(link_free[a, s], link_free[b, s])
            if both > begin:  # asks again when both are free; others may go first
                heapq.heappush(heap, (both, since, hop))
                continue
        start[hop] = begin
        release[hop] = begin + busy[hop]
        done[hop] = release[hop] + latency[hop]
        take(queue_free, queue_a[hop], k, s, release[hop])
        if a >= 0:
            take(link_free, a, k, s, release[hop])
            if b >= 0:
                take(link_free, b, k, s, release[hop])
                take(queue_free, queue_b[hop], k, s, release[hop])
        for follower, queue in ((next_a[hop], queue_a[hop]), (next_b[hop], queue_b[hop])):
            if follower >= 0:  # alone can take what is free next in the queue, so that is known now
                ready[follower] = max(ready[follower], begin, queue_free[queue, slot[follower]])
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
