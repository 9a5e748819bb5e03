"""Lowers the operations of templates to hops, with their seconds, and the edges between them.

A compute is a hop on its GPU's compute queue, or on that of its node's CPUs. A send or a move is a direct transfer, or
one that is routed over lanes, as zbench.simulator.hops has them; to and from host memory a hop on the GPU's own link. A
collective is a hop in which its members meet, a leg for each member on its own links, which may go in pieces
(zbench.simulator.steps.trains.collectives), and a hop at its end. Every GPU has queues of its own for each class of
links and each of the operations' queues.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import SHARED, Cluster
from zbench.describe.links import NVLINK
from zbench.simulator.hop_graph import hop_edges
from zbench.simulator.hops import members, ports
from zbench.simulator.steps.dataflow.implied import QueuedHops, needed_edges
from zbench.simulator.steps.expand import (
    AFTER,
    BYTES,
    CLASS,
    IS_LAST,
    OP,
    QUEUE_A,
    QUEUE_B,
    CollectiveLegs,
    Topology,
    expand,
    hop_columns,
    misplaced,
    piece_bytes,
    put_pieces,
)
from zbench.simulator.steps.trains.collectives import PIECE_SECONDS, Legs, legs_of, pieces_of
from zbench.step.layout import StepLayout
from zbench.step.lists import PartLists
from zbench.step.operations import DROP, GATHER, QUEUES, REDUCE
from zbench.step.template import Step


@dataclass(frozen=True)
class Lowered:
    """The hops of a template.

    table: int64 [11, hops], rows as in zbench.simulator.steps.expand; a queue below -1 is a meeting's, of which -2 is
    the first. queued: columns of them. producer, consumer: edges between hops, without those that queues imply.
    purpose: of each hop, the queue of its operation, an index into QUEUES. meetings: how many queues of meetings there
    are. trains: int64 [n, 2], the legs of collectives that go in pieces and in how many each does, and with
    port_order=shared messages, too. pieces: the seconds of all of them, float64 [pieces], those of one hop after
    another.
    """

    table: Ints
    queued: QueuedHops
    producer: Ints
    consumer: Ints
    purpose: Ints
    meetings: int
    trains: Ints
    pieces: Floats

    @property
    def busy(self) -> Floats:
        """The seconds that each hop keeps its queues."""
        return self.queued.busy

    @property
    def latency(self) -> Floats:
        """The seconds after which the data of each hop arrives."""
        return self.queued.latency


_MOST_SIZES = 2**16  # of collectives, in how many pieces each goes is kept: some MiB


@dataclass(frozen=True)
class ClusterPorts:
    """A cluster's queues and links, and the legs of collectives on them, whatever is played on it."""

    cost: Cost
    known: dict[bytes, Legs] = field(default_factory=dict)
    _pieces: dict[tuple[int, int], int] = field(default_factory=dict)  # by legs and bytes

    @cached_property
    def topology(self) -> Topology:
        """The queues and links as compiled loops read them."""
        cluster = self.cost.cluster
        host = -1 if cluster.host is None else cluster.host
        return Topology(
            *members(cluster),
            ports(cluster),
            cluster.nic_of,
            cluster.gpus_per_node,
            cluster.nics_per_node,
            cluster.num_ranks,
            host,
            gpu_queues(cluster),
        )

    @cached_property
    def classes(self) -> tuple[Ints, Floats]:
        """The channels of each class of links, and after them of no link, and the latency of each."""
        links = self.cost.cluster.links
        channels = np.array([*(one.channels for one in links), 1], np.int64)
        return channels, self.cost.latency_seconds(np.arange(len(links)))

    def legs(self, gpus: Ints) -> Legs:
        """Returns the legs of a collective over some GPUs."""
        key = gpus.tobytes()
        if key not in self.known:
            self.known[key] = legs_of(gpus, self.cost)
        return self.known[key]

    def pieces(self, legs: Legs, size: int) -> int:
        """Returns in how many pieces a collective of `size` bytes over some of the known legs goes."""
        key = id(legs), size
        if key not in self._pieces:
            if len(self._pieces) == _MOST_SIZES:  # those of tokens are others in every batch
                self._pieces.clear()
            self._pieces[key] = pieces_of(legs, size, self.cost)
        return self._pieces[key]


@lru_cache(maxsize=8)
def ports_of(cost: Cost) -> ClusterPorts:
    """Returns a cluster's queues and links, which are kept from step to step."""
    return ClusterPorts(cost)


def gpu_queues(cluster: Cluster) -> int:
    """Returns the number of queues of one GPU."""
    return 1 + 4 * len(cluster.links) * (len(QUEUES) - 1)


def all_queues(cluster: Cluster) -> int:
    """Returns the number of queues of all GPUs, and of the CPUs of host memories, which have one each and come after
    them: a node has one, or, where layers are in stages, a part for each of its GPUs."""
    return cluster.num_ranks * (gpu_queues(cluster) + 1)


class PlacedOps(NamedTuple):
    """Operations of a variant, int64 [n, columns], of which a message's first one stands for all of it. size: bytes,
    and seconds: of computes, of every operation. producer, consumer: edges between operations. where: the places that
    those of lists are."""

    ops: Ints
    size: Ints
    seconds: Floats
    producer: Ints
    consumer: Ints
    where: Ints


def lower(step: Step, layout: StepLayout, variants: Sequence[PlacedOps], wires: ClusterPorts) -> list[Lowered]:
    """Lowers the operations of variants of one layout, all together.

    Raises:
        ValueError: an operation is where the cluster has nothing for it.
    """
    cost, lists = wires.cost, layout.lists
    begin = np.cumsum([0, *(len(one.ops) for one in variants)])
    ops, size, seconds = (np.concatenate([one[at] for one in variants]) for at in range(3))
    edges = [
        np.concatenate([one[at] + first for one, first in zip(variants, begin.tolist(), strict=False)]) for at in (3, 4)
    ]
    check_places(step, ops, cost.cluster)
    legs, latency = _collectives(lists, variants, begin, ops, size, wires)
    if (ops[:, 10] >= 0).any():
        for one, first, end in zip(variants, begin[:-1], begin[1:], strict=True):
            latency[first:end] += encoding_seconds(step, (layout, one.where), one.ops, one.size, cost)
    table, *inside, meetings = expand(ops, begin, size, (lists.offsets, lists.parts), legs, wires.topology)
    of_class = np.where(table[CLASS] >= 0, table[CLASS], NVLINK)
    carried = cost.message_seconds(table[BYTES], of_class), cost.transfer_seconds(table[BYTES], of_class)
    first, purpose, serial, computes, busy, delay = hop_columns(table, ops, (seconds, latency), carried, wires.classes)
    if cost.cluster.port_order == SHARED:
        put_pieces(table, ops, carried[0], PIECE_SECONDS)
    trains, moved, link = piece_bytes(table)
    pieces = cost.transfer_seconds(moved, link)
    if cost.cluster.port_order == SHARED:
        is_message = np.repeat(ops[table[OP, trains[:, 0]], 0] < GATHER, trains[:, 1])
        pieces = np.where(is_message, cost.message_seconds(moved, link), pieces)
    if len(trains):
        busy[trains[:, 0]] = np.add.reduceat(pieces, np.cumsum(trains[:, 1]) - trains[:, 1])
    between = hop_edges(edges[0], edges[1], first, table[IS_LAST], table[AFTER])
    queued = QueuedHops(table[QUEUE_A], table[QUEUE_B], serial, computes, busy, delay)
    producer, consumer = (np.concatenate(ends) for ends in zip(inside, between, strict=True))
    needed = needed_edges(producer, consumer, queued, all_queues(cost.cluster))
    return _apart((begin, first[begin]), table, (queued, purpose), needed, meetings.tolist(), (trains, pieces))


def _apart(
    begin: tuple[Ints, Ints],
    table: Ints,
    columns: tuple[QueuedHops, Ints],
    edges: tuple[Ints, Ints],
    meetings: Sequence[int],
    trains: tuple[Ints, Floats],
) -> list[Lowered]:
    """Returns the hops of variants each by itself. begin: where the operations and the hops of each begin, and one more
    for the end."""
    order = np.argsort(edges[0], kind="stable")
    producer, consumer = (side[order] for side in edges)
    of_edges, of_trains = (np.searchsorted(first, begin[1]).tolist() for first in (producer, trains[0][:, 0]))
    of_pieces = np.append(0, np.cumsum(trains[0][:, 1]))[of_trains].tolist()
    found = []
    for at, (number, (first, end)) in enumerate(zip(begin[0].tolist(), pairwise(begin[1].tolist()), strict=False)):
        mine, edge, train = table[:, first:end].copy(), slice(*of_edges[at : at + 2]), slice(*of_trains[at : at + 2])
        mine[OP] -= number
        mine[AFTER] -= np.where(mine[AFTER] >= 0, first, 0)
        queued = QueuedHops(
            mine[QUEUE_A],
            mine[QUEUE_B],
            columns[0].serial[first:end],
            columns[0].computes[first:end],
            columns[0].busy[first:end],
            columns[0].latency[first:end],
        )
        found.append(
            Lowered(
                mine,
                queued,
                producer[edge] - first,
                consumer[edge] - first,
                columns[1][first:end],
                meetings[at],
                trains[0][train] - [first, 0],
                trains[1][of_pieces[at] : of_pieces[at + 1]],
            )
        )
    return found


def check_places(step: Step, ops: Ints, cluster: Cluster) -> None:
    """Raises ValueError where operations are at places that a cluster has no queue or link for."""
    if step.num_gpus != cluster.num_ranks:
        raise ValueError(f"the step is of {step.num_gpus} GPUs; cluster {cluster.name} has {cluster.num_ranks}")
    if step.num_hosts not in (0, cluster.num_nodes, cluster.num_ranks):
        raise ValueError(
            f"the step has {step.num_hosts} host memories; a cluster of {cluster.num_nodes} nodes takes that many, one "
            f"for each of its {cluster.num_ranks} GPUs, or 0"
        )
    nodes = np.arange(step.num_places) // cluster.gpus_per_node
    nodes[step.num_gpus :] = np.arange(step.num_hosts) * cluster.num_nodes // max(step.num_hosts, 1)
    at_host, apart = misplaced(ops, step.num_gpus, nodes)
    if at_host and cluster.host is None:
        raise ValueError("cluster.host_bandwidth is not given; transfers to and from host memory need a link")
    if apart:
        raise ValueError("a transfer is between a host memory and no GPU of its node; it has to go over one")


def encoding_seconds(step: Step, where: tuple[StepLayout, Ints], ops: Ints, size: Ints, cost: Cost) -> Floats:
    """Returns the seconds in which values of every operation are encoded and decoded, float64 [operations].

    A GPU encodes what it sends in one pass, which reads values and writes codes, and decodes what it receives in
    another, at the bandwidth of the device's memory. Of a gather it has its share and decodes all; of a reduction it
    encodes all and adds what it decodes to its share. Matmuls beside it are as fast as without.
    """
    found = np.zeros(len(ops))
    for op in np.flatnonzero((ops[:, 10] >= 0) & (size > 0)).tolist():
        codes = float(size[op])
        values = step.encodings[int(ops[op, 10])].ratio * codes
        members = len(where[0].lists[int(ops[op, 3])]) if ops[op, 0] in (GATHER, REDUCE) else 1
        decoded = codes + values / members if ops[op, 0] == REDUCE else (codes + values) / members
        found[op] = (codes + values + decoded) / cost.cluster.device.copy_bandwidth
    return found


def _collectives(
    lists: PartLists, variants: Sequence[PlacedOps], begin: Ints, ops: Ints, size: Ints, wires: ClusterPorts
) -> tuple[CollectiveLegs, Floats]:
    """Returns the legs of all collectives, and the latency of each operation. begin: where the operations of each
    variant begin."""
    number, latency, pieces = np.full(len(ops), -1, np.int64), np.zeros(len(ops)), np.ones(len(ops), np.int64)
    mine = np.flatnonzero((ops[:, 0] >= GATHER) & (ops[:, 0] != DROP) & (size >= 0))
    owner = np.searchsorted(begin, mine, side="right") - 1
    members, number[mine] = np.unique(owner * len(lists) + ops[mine, 3], return_inverse=True)
    legs = [wires.legs(variants[of // len(lists)].where[lists[of % len(lists)]]) for of in members.tolist()]
    most = 1 + int(size.max(initial=0))
    sent, at = np.unique(number[mine] * most + size[mine], return_inverse=True)
    if len(mine):
        latency[mine] = np.array([one.latency for one in legs])[number[mine]]
        pieces[mine] = np.array([wires.pieces(legs[of // most], of % most) for of in sent.tolist()])[at]
    none = np.zeros(0, np.int64)
    member, link = (np.concatenate([none, *(getattr(one, name) for one in legs)]) for name in ("member", "link"))
    share = np.concatenate([np.zeros(0), *(one.share for one in legs)])
    offsets = np.cumsum([0, *(len(one.member) for one in legs)])
    return CollectiveLegs(number, offsets, member, link, share, pieces), latency
