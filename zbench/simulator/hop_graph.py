"""The hops of a list of operations with all that they wait for: what the clock (zbench.simulator.clock) plays."""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.dataflow import Edges
from zbench.plans.plan import Ints
from zbench.simulator.hops import Hops


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


class HopTable(NamedTuple):
    """Holds what the clock plays: columns of hops, who comes after whom, edges into each hop (int64 [num_hops]), and
    how many queues a rank has."""

    rows: HopRows
    following: Followers
    waits: Ints
    queues: int


@dataclass(frozen=True)
class HopGraph:
    """Hops with their waits, ready to be run again and again from different starting times.

    busy, latency: seconds [num_hops]. next_a, next_b: the next hop in each queue, -1 if none. pair: which of the pairs
    of queues with several channels a hop is between, -1 if none; next_pair: the next hop between the same two.
    offsets, followers: hops that need a hop's data, compressed rows; waits: edges into each hop. until_sent: a rank
    goes on when what it sends has arrived (Plan.until_sent).
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
    until_sent: bool = False

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
    def table(self) -> HopTable:
        """The columns that the clock plays."""
        return HopTable(self.rows, self.following, self.waits, self.hops.queues)

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


@nb.njit(**ENTERED)
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


@nb.njit(**ENTERED)
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


@nb.njit(**ENTERED)
def hop_edges(producer, consumer, first, last, after):  # type: ignore[no-untyped-def]
    """Returns the edges between hops, as their (sources, targets), of edges between operations.

    An operation starts, all hops with -1 in `after`, when its producers' last hops are complete; a hop with another one
    in `after` starts when that is. first: of every operation its first hop, and one more for the end.
    """
    ends, begins = _marked(first, last != 0), _marked(first, after == -1)  # a collective has one in hundreds of hops
    count = np.sum(after >= 0)
    for edge in range(len(producer)):
        a, b = producer[edge], consumer[edge]
        count += (ends[0][a + 1] - ends[0][a]) * (begins[0][b + 1] - begins[0][b])
    sources, targets, at = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for edge in range(len(producer)):
        for a in ends[1][ends[0][producer[edge]] : ends[0][producer[edge] + 1]]:
            for b in begins[1][begins[0][consumer[edge]] : begins[0][consumer[edge] + 1]]:
                sources[at], targets[at] = a, b
                at += 1
    for hop in range(len(after)):
        if after[hop] >= 0:
            sources[at], targets[at] = after[hop], hop
            at += 1
    return sources, targets


@nb.njit(**INNER)
def _marked(first, marked):  # type: ignore[no-untyped-def]
    """Returns the hops that are marked, compressed rows by operation. first: as of `hop_edges`."""
    offsets, found, count = np.zeros(len(first), np.int64), np.empty(len(marked), np.int64), 0
    for op in range(len(first) - 1):
        for hop in range(first[op], first[op + 1]):
            if marked[hop]:
                found[count] = hop
                count += 1
        offsets[op + 1] = count
    return offsets, found
