"""Expands operations into hops: what each occupies while it runs.

An attend is one hop on its rank's compute queue. A direct transfer is one hop, over the ports that two GPUs of a node
have to the innermost domain they share (zbench.describe.links), or over the NICs of two nodes. A routed transfer is cut
into a share for each lane it is spread over, and a share is up to three hops: dispatch inside the source node, NIC to
NIC, combine inside the other node. A copy between a GPU and its host is one hop, with no rank at its other end. When
hops run is zbench.simulator.clock's.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.links import NIC
from zbench.plans.plan import ATTEND, Column, Ints, Ops, Plan

# A rank's queues: computing, and of every class c of links, after 4 c, sending and receiving for itself and for others.
COMPUTE, TX, RX, THROUGH_TX, THROUGH_RX = range(5)


@dataclass(frozen=True)
class Hops:
    """The hops of a list, in plan order (arrays [num_hops]).

    op: the operation. rank: whose program starts it. queue_a, queue_b: queues it occupies (b = -1: only one).
    link_a, link_b: sending and receiving link, -1 for an attend; of a copy to or from the host, a only.
    link_class: of its links, -1 for an attend. bytes: 0 for an attend.
    channels: how many its queues and links have. whole: it takes all of them, else one.
    after: the hop before it inside the same routed transfer, -1 if none.
    first, last: [num_ops + 1] and [num_hops]: the hops of operation i are first[i]:first[i + 1], and
    whether the operation is complete only when the hop is.
    queues: of a rank; queue i is one of rank i // queues.
    """

    op: Ints
    rank: Ints
    queue_a: Ints
    queue_b: Ints
    link_a: Ints
    link_b: Ints
    link_class: Ints
    bytes: Ints
    channels: Ints
    whole: Flags
    after: Ints
    first: Ints
    last: Flags
    queues: int

    @property
    def receiver(self) -> Ints:
        """The rank that a hop ends at, int64 [num_hops], -1 of attends and of copies to the host."""
        return self.queue_b // self.queues


def num_queues(cluster: Cluster) -> int:
    """Returns the number of queues of one rank."""
    return 1 + 4 * len(cluster.links)


def num_links(cluster: Cluster) -> int:
    """Returns the number of links of the cluster, each direction by itself."""
    return 2 * (cluster.num_nics + (len(cluster.links) - 1) * cluster.num_ranks)


def ports(cluster: Cluster) -> Ints:
    """Returns int64 [num_classes, num_ranks]: the link that a rank sends by in each class; the next one is that it
    receives by.

    Every class has a port of each rank's own, but for NICs, which ranks may share. NVLink's ports come first.
    """
    ranks, own = cluster.num_ranks, 2 * np.arange(cluster.num_ranks)
    begin = 2 * (ranks + cluster.num_nics)  # of the first class after NICs
    rest = [begin + 2 * ranks * place + own for place in range(len(cluster.links) - 2)]
    return np.stack([own, 2 * (ranks + cluster.nic_of), *rest])


def members(cluster: Cluster) -> tuple[Ints, Ints]:
    """Returns (int64 [levels]: class of links, int64 [levels, num_ranks]: the domain each rank is in), the node's
    last."""
    ranks = np.arange(cluster.num_ranks)
    return np.array([link for link, _ in cluster.levels]), np.stack([ranks // gpus for _, gpus in cluster.levels])


def hops(plan: Plan, ops: Ops, op_bytes: Ints, cluster: Cluster) -> Hops:
    """Expands operations into hops. op_bytes: int64 [num_ops], the message size of every transfer."""
    routes = plan.lanes
    if not len(routes):
        routes = type(routes)(np.zeros(2, np.int64), np.zeros(0, np.int64))
    op, rank, queue_a, queue_b, link_a, link_b, link_class, size, after, first, last = _expand(
        _Moves(ops.kind, ops.src, ops.dst, op_bytes, ops.via),
        (routes.offsets, routes.items),
        _Topology(*members(cluster), ports(cluster), cluster.nic_of, cluster.gpus_per_node, cluster.nics_per_node),
    )
    each = np.array([link.channels for link in cluster.links], np.int64)
    channels = np.where(link_class < 0, 1, each[link_class])
    whole = (ops.collective[op] == 1) | (channels == 1)
    queues = num_queues(cluster)
    return Hops(
        op, rank, queue_a, queue_b, link_a, link_b, link_class, size, channels, whole, after, first, last, queues
    )


def copies(rank: Ints, size: Ints, sends: Flags, cluster: Cluster) -> Hops:
    """Returns copies of `size` bytes between GPUs and their node's host memory, an operation each; sends: to the host.

    The link is the GPU's own, each direction by itself. Copies of a direction begin in order, as many at a time as
    the cluster's host_queues, which share it evenly.

    Raises:
        ValueError: the cluster has no link to the host.
    """
    host = cluster.host
    if host is None:
        raise ValueError("cluster.host_bandwidth is not given; copies to and from the host need a link")
    queues, count = num_queues(cluster), len(rank)
    queue = rank * queues + 4 * host + np.where(sends, TX, RX)
    link = ports(cluster)[host, rank] + np.where(sends, 0, 1)
    none, channels = np.full(count, -1), np.full(count, cluster.host_queues)
    return Hops(
        np.arange(count),
        rank,
        queue,
        none,
        link,
        none,
        np.full(count, host),
        size,
        channels,
        channels == 1,
        none,
        np.arange(count + 1),
        np.ones(count, bool),
        queues,
    )


@nb.njit(**INNER)
def class_of(src, dst, classes, member):  # type: ignore[no-untyped-def]
    """Returns the class of links that a message takes: of the innermost domain that both ranks are in (`members`)."""
    for level in range(len(classes)):
        if member[level, src] == member[level, dst]:
            return classes[level]
    return NIC


@nb.njit(**INNER)
def _ends(port, link_class, src, sends, dst, receives):  # type: ignore[no-untyped-def]
    """Returns (queue at src, queue at dst, link of src, link of dst, class of the links) of a hop; sends, receives: the
    kinds of the two queues."""
    queues, first = 1 + 4 * len(port), 4 * link_class
    queue_a, queue_b = src * queues + first + sends, dst * queues + first + receives
    return queue_a, queue_b, port[link_class, src], port[link_class, dst] + 1, link_class


class _Moves(NamedTuple):
    """Columns of Ops, and the bytes of every operation."""

    kind: Column
    src: Column
    dst: Column
    size: Ints
    via: Column


class _Topology(NamedTuple):
    """classes, member: `members`. port: `ports`. nic: of every rank. per_node, nics: GPUs and NICs of a node."""

    classes: Ints
    member: Ints
    port: Ints
    nic: Ints
    per_node: int
    nics: int


@nb.njit(**ENTERED)
def _expand(ops, routes, topology):  # type: ignore[no-untyped-def]
    """The fields of Hops in order but for channels, whole and queues. routes: offsets and items of Plan.lanes."""
    kind, src, dst, size, via = ops
    route_offsets, route_items = routes
    classes, member, port, nic, per_node, nics = topology
    count = 0
    for i in range(len(kind)):
        count += 1 if via[i] < 0 else 3 * (route_offsets[via[i] + 1] - route_offsets[via[i]])
    out = np.full((9, count), -1, np.int64)  # op rank queue_a queue_b link_a link_b link_class bytes after
    last = np.zeros(count, np.bool_)
    first = np.zeros(len(kind) + 1, np.int64)
    queues, node = 1 + 4 * len(port), member[-1]
    at = 0
    for i in range(len(kind)):
        first[i] = at
        s, d = np.int64(src[i]), np.int64(dst[i])
        if kind[i] == ATTEND:
            out[:, at] = (i, s, s * queues + COMPUTE, -1, -1, -1, -1, 0, -1)
            last[at] = True
            at += 1
        elif via[i] < 0 or node[s] == node[d]:
            c = class_of(s, d, classes, member)
            out[:, at] = (i, s, *_ends(port, c, s, TX, d, RX), size[i], -1)
            last[at] = True
            at += 1
        else:
            begin, end = route_offsets[via[i]], route_offsets[via[i] + 1]
            for place in range(begin, end):
                share = size[i] * (place + 1 - begin) // (end - begin) - size[i] * (place - begin) // (end - begin)
                if share == 0:
                    continue
                p = proxy(s, route_items[place], nic, node, per_node, nics)
                q = proxy(d, route_items[place], nic, node, per_node, nics)
                before = -1
                if p != s:
                    c = class_of(s, p, classes, member)
                    out[:, at] = (i, s, *_ends(port, c, s, TX, p, THROUGH_RX), share, -1)
                    before = at
                    at += 1
                out[:, at] = (i, p, *_ends(port, NIC, p, TX, q, RX), share, before)
                if q != d:
                    before = at
                    at += 1
                    c = class_of(q, d, classes, member)
                    out[:, at] = (i, q, *_ends(port, c, q, THROUGH_TX, d, RX), share, before)
                last[at] = True
                at += 1
    first[len(kind)] = at
    o = out[:, :at]
    return (
        o[0].copy(),
        o[1].copy(),
        o[2].copy(),
        o[3].copy(),
        o[4].copy(),
        o[5].copy(),
        o[6].copy(),
        o[7].copy(),
        o[8].copy(),
        first,
        last[:at],
    )


@nb.njit(**ENTERED)
def proxy(rank, lane, nic, node, per_node, nics):  # type: ignore[no-untyped-def]
    """Returns the rank that carries lane `lane` (a NIC of the node) for `rank`: itself if tied to that NIC, else the
    one tied to it that has `rank`'s place among its own NIC's ranks, so that proxies share the work."""
    begin = node[rank] * per_node
    if nic[rank] == node[rank] * nics + lane:
        return rank
    width = per_node // nics
    first = begin + -(-lane * per_node // nics)
    return first + (rank - begin) % width
