"""Lowers the operations of a template to hops, with their seconds, and the edges between them.

A compute is a hop on its GPU's compute queue. A send or a move is a direct transfer, or one that is routed over lanes,
as zbench.simulator.hops has them; to and from host memory a hop on the GPU's own link. A collective is a hop in which
its members meet, pieces of a leg for each member on its own links (zbench.simulator.steps.collectives), and a hop at
its end. Every GPU has queues of its own for each class of links and each of the operations' queues.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC, NVLINK
from zbench.simulator.hops import class_of, members, ports, proxy
from zbench.simulator.steps.collectives import Legs, legs_of, pieces_of
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, QUEUES, REDUCE
from zbench.step.template import Step

TX, RX, THROUGH_TX, THROUGH_RX = range(4)
START, NEVER = -1, -2  # in place of a hop before: an operation's first; one that waits for its queue or for named hops
OP, RANK, QUEUE_A, QUEUE_B, LINK_A, LINK_B, CLASS, BYTES, AFTER, IS_LAST = range(10)  # rows of a table of hops


@dataclass(frozen=True)
class Lowered:
    """The hops of a template. table: int64 [10, hops], rows as above; a queue that is none of a GPU's is a meeting's, and
    counted from 0 below -1. busy, latency: seconds. producer, consumer: edges between hops. purpose: of each hop, the
    queue of its operation, an index into QUEUES. meetings: how many queues of meetings there are."""

    table: Ints
    busy: Floats
    latency: Floats
    producer: Ints
    consumer: Ints
    purpose: Ints
    meetings: int


def num_queues(cluster: Cluster) -> int:
    """Returns the number of queues of one GPU."""
    return 1 + 4 * len(cluster.links) * (len(QUEUES) - 1)


class _Collective(NamedTuple):
    """Legs of all collectives, one after another; offsets by operation. pieces: of each operation."""

    offsets: Ints
    member: Ints
    link: Ints
    share: Floats
    pieces: Ints


class _Topology(NamedTuple):
    """As in zbench.simulator.hops, and what a GPU's host link has: its class, -1 if there is none."""

    classes: Ints
    member: Ints
    port: Ints
    nic: Ints
    per_node: int
    nics: int
    gpus: int
    host: int
    queues: int


def lower(
    step: Step, layout: StepLayout, ops: Ints, edges: tuple[Ints, Ints], size: Ints, seconds: Floats, cost: Cost
) -> Lowered:
    """Lowers operations, int64 [n, columns], of which a message's first one stands for all of it.

    edges: between operations. size: bytes, and seconds: of computes, of every operation.

    Raises:
        ValueError: an operation is where the cluster has nothing for it.
    """
    check_places(step, ops, cost.cluster)
    cluster = cost.cluster
    legs, latency = _collectives(layout, ops, size, cost)
    topology = _Topology(
        *members(cluster), ports(cluster), cluster.nic_of, cluster.gpus_per_node, cluster.nics_per_node,
        step.num_gpus, -1 if cluster.host is None else cluster.host, num_queues(cluster),
    )  # fmt: skip
    lists = layout.lists
    table, producer, consumer, meetings = _expand(ops, size, (lists.offsets, lists.parts), legs, topology)
    link = table[CLASS]
    each = np.array([one.channels for one in cluster.links] + [1], np.int64)[link]
    whole = (ops[table[OP], 0] == GATHER) | (ops[table[OP], 0] == REDUCE) | (each == 1)
    moves = link >= 0
    of_class = np.where(moves, link, NVLINK)
    alone, together = cost.message_seconds(table[BYTES], of_class), cost.transfer_seconds(table[BYTES], of_class)
    busy = np.where(moves, np.where(whole, together, alone), np.where(table[QUEUE_A] >= 0, seconds[table[OP]], 0.0))
    direct = moves & (ops[table[OP], 0] < GATHER)
    delay = np.where(direct, cost.latency_seconds(of_class), 0.0)
    delay[(table[IS_LAST] == 1) & (table[QUEUE_A] < 0)] = latency[table[OP][(table[IS_LAST] == 1) & (table[QUEUE_A] < 0)]]
    more = _op_edges(edges[0], edges[1], table[OP], table[AFTER], table[IS_LAST], len(ops))
    return Lowered(
        table, busy, delay, np.concatenate([producer, more[0]]), np.concatenate([consumer, more[1]]),
        ops[table[OP], 8], int(meetings),
    )  # fmt: skip


def check_places(step: Step, ops: Ints, cluster: Cluster) -> None:
    """Raises ValueError where operations are at places that a cluster has no queue or link for."""
    if step.num_gpus != cluster.num_ranks:
        raise ValueError(f"the step is of {step.num_gpus} GPUs; cluster {cluster.name} has {cluster.num_ranks}")
    if step.num_hosts not in (0, cluster.num_nodes):
        raise ValueError(
            f"the step has {step.num_hosts} host memories; a cluster of {cluster.num_nodes} nodes takes that many, or 0"
        )
    direct = ops[(ops[:, 0] != COMPUTE) & (ops[:, 0] < GATHER)]
    if (ops[ops[:, 0] == COMPUTE][:, 2] >= step.num_gpus).any():
        raise ValueError("a compute is at a host memory; it has to be on a GPU")
    if (ops[(ops[:, 0] != COMPUTE) & (ops[:, 0] != DROP)][:, 8] == 0).any():
        raise ValueError("a transfer is in queue compute; it has to be in another one")
    host = direct[(direct[:, 2:4] >= step.num_gpus).any(axis=1)]
    if len(host):
        if cluster.host is None:
            raise ValueError("cluster.host_bandwidth is not given; transfers to and from host memory need a link")
        nodes = np.where(host[:, 2:4] >= step.num_gpus, host[:, 2:4] - step.num_gpus, host[:, 2:4] // cluster.gpus_per_node)
        if (nodes[:, 0] != nodes[:, 1]).any() or (host[:, 2:4] >= step.num_gpus).all(axis=1).any():
            raise ValueError("a transfer is between a host memory and no GPU of its node; it has to go over one")


def _collectives(layout: StepLayout, ops: Ints, size: Ints, cost: Cost) -> tuple[_Collective, Floats]:
    """Returns the legs of all collectives, and the latency of each operation."""
    known: dict[int, Legs] = {}
    counts, latency, pieces = np.zeros(len(ops), np.int64), np.zeros(len(ops)), np.ones(len(ops), np.int64)
    every: list[Legs] = []
    for op in np.flatnonzero(ops[:, 0] >= GATHER).tolist():
        if ops[op, 0] == DROP or size[op] < 0:
            continue
        which = int(ops[op, 3])
        if which not in known:
            known[which] = legs_of(layout.lists[which], cost)
        legs = known[which]
        every.append(legs)
        counts[op], latency[op] = len(legs.member), legs.latency
        pieces[op] = pieces_of(legs, int(size[op]), cost)
    columns = [
        np.concatenate([*(getattr(one, name) for one in every), np.zeros(0, kind)]).astype(kind)
        for name, kind in (("member", np.int64), ("link", np.int64), ("share", np.float64))
    ]
    return _Collective(np.concatenate([[0], np.cumsum(counts)]), *columns, pieces), latency


@nb.njit(cache=True)
def _queue(to, place, purpose, link, way):  # type: ignore[no-untyped-def]
    return place * to.queues + 1 + 4 * (link + len(to.port) * (purpose - 1)) + way


@nb.njit(cache=True)
def _hop(out, at, op, purpose, ends, ways, link, size, after, to):  # type: ignore[no-untyped-def]
    """Writes a transfer from one GPU's port to another's."""
    a, b = ends
    out[OP, at], out[RANK, at], out[CLASS, at], out[BYTES, at], out[AFTER, at] = op, a, link, size, after
    out[QUEUE_A, at], out[QUEUE_B, at] = _queue(to, a, purpose, link, ways[0]), _queue(to, b, purpose, link, ways[1])
    out[LINK_A, at], out[LINK_B, at] = to.port[link, a], to.port[link, b] + 1


@nb.njit(cache=True)
def _routed(out, at, number, op, size, lanes, to):  # type: ignore[no-untyped-def]
    """Writes the hops of a transfer over lanes; returns where the next hop goes."""
    s, d, node = op[2], op[3], to.member[-1]
    for place in range(len(lanes)):
        share = size * (place + 1) // len(lanes) - size * place // len(lanes)
        if share == 0:
            continue
        p = proxy(s, lanes[place], to.nic, node, to.per_node, to.nics)
        q = proxy(d, lanes[place], to.nic, node, to.per_node, to.nics)
        before = START
        if p != s:
            c = class_of(s, p, to.classes, to.member)
            _hop(out, at, number, op[8], (s, p), (TX, THROUGH_RX), c, share, before, to)
            before = at
            at += 1
        _hop(out, at, number, op[8], (p, q), (TX, RX), NIC, share, before, to)
        if q != d:
            before = at
            at += 1
            c = class_of(q, d, to.classes, to.member)
            _hop(out, at, number, op[8], (q, d), (THROUGH_TX, RX), c, share, before, to)
        out[IS_LAST, at] = 1
        at += 1
    return at


@nb.njit(cache=True)
def _collective(out, at, number, op, size, legs, to, meeting, edges, count):  # type: ignore[no-untyped-def]
    """Writes a collective: a meeting, pieces of all legs, another meeting. Returns (next hop, next edge)."""
    begin, end, pieces = legs.offsets[number], legs.offsets[number + 1], legs.pieces[number]
    first = at
    out[OP, at], out[QUEUE_A, at], out[AFTER, at] = number, -2 - meeting, START
    at += 1
    for piece in range(pieces):
        for leg in range(begin, end):
            total = np.int64(legs.share[leg] * size)
            share = total * (piece + 1) // pieces - total * piece // pieces
            member = legs.member[leg]
            _hop(out, at, number, op[8], (member, member), (TX, RX), legs.link[leg], share, first if piece == 0 else NEVER, to)
            if piece == pieces - 1:
                edges[0, count], edges[1, count] = at, first + 1 + pieces * (end - begin)
                count += 1
            at += 1
    out[OP, at], out[QUEUE_A, at], out[IS_LAST, at] = number, -3 - meeting, 1
    out[AFTER, at] = first if begin == end else NEVER
    return at + 1, count


@nb.njit(cache=True)
def _host_copy(out, at, number, op, size, to):  # type: ignore[no-untyped-def]
    """Writes a copy between a GPU and its node's host memory, which has no queue at its other end."""
    sends = op[3] >= to.gpus
    gpu = op[2] if sends else op[3]
    way = TX if sends else RX
    out[OP, at], out[RANK, at], out[CLASS, at], out[BYTES, at], out[AFTER, at] = number, gpu, to.host, size, START
    out[QUEUE_A, at] = _queue(to, gpu, op[8], to.host, way)
    out[LINK_A, at] = to.port[to.host, gpu] + way


@nb.njit(cache=True)
def _expand(ops, size, lists, legs, to):  # type: ignore[no-untyped-def]
    """Returns (the table of hops, edges inside collectives, queues of meetings)."""
    count, ends, node = 0, 0, to.member[-1]
    for number in range(len(ops)):
        op = ops[number]
        if op[0] == GATHER or op[0] == REDUCE:
            legs_of_op = legs.offsets[number + 1] - legs.offsets[number]
            count += 2 + legs_of_op * legs.pieces[number]
            ends += legs_of_op
        else:
            count += 1 if op[11] < 0 else 3 * (lists[0][op[11] + 1] - lists[0][op[11]])
    out = np.full((10, count), -1, np.int64)
    out[BYTES], out[IS_LAST], out[RANK] = 0, 0, 0
    edges = np.empty((2, ends), np.int64)
    at, done, meeting = 0, 0, 0
    for number in range(len(ops)):
        op = ops[number]
        if op[0] == DROP or (op[0] != COMPUTE and size[number] < 0):
            continue
        if op[0] == COMPUTE:
            out[OP, at], out[RANK, at], out[QUEUE_A, at], out[AFTER, at] = number, op[2], op[2] * to.queues, START
        elif op[0] == GATHER or op[0] == REDUCE:
            at, done = _collective(out, at, number, op, size[number], legs, to, meeting, edges, done)
            meeting += 2
            continue
        elif op[2] >= to.gpus or op[3] >= to.gpus:
            _host_copy(out, at, number, op, size[number], to)
        elif op[11] < 0 or node[op[2]] == node[op[3]]:
            c = class_of(op[2], op[3], to.classes, to.member)
            _hop(out, at, number, op[8], (op[2], op[3]), (TX, RX), c, size[number], START, to)
        else:
            at = _routed(out, at, number, op, size[number], lists[1][lists[0][op[11]] : lists[0][op[11] + 1]], to)
            continue
        out[IS_LAST, at] = 1
        at += 1
    return out[:, :at].copy(), edges[0], edges[1], meeting


@nb.njit(cache=True)
def _op_edges(producer, consumer, op, after, last, num_ops):  # type: ignore[no-untyped-def]
    """Returns edges between hops: those inside routed transfers, and from all last hops of a producer to all first ones
    of its consumer."""
    first = np.zeros(num_ops + 1, np.int64)
    for hop in range(len(op)):
        first[op[hop] + 1] += 1
    first = np.cumsum(first)
    count = 0
    for fill in range(2):
        if fill:
            sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
        for edge in range(len(producer)):
            for a in range(first[producer[edge]], first[producer[edge] + 1]):
                if last[a] == 0:
                    continue
                for b in range(first[consumer[edge]], first[consumer[edge] + 1]):
                    if after[b] == -1:
                        if fill:
                            sources[count], targets[count] = a, b
                        count += 1
        for hop in range(len(op)):
            if after[hop] >= 0:
                if fill:
                    sources[count], targets[count] = after[hop], hop
                count += 1
    return sources, targets
