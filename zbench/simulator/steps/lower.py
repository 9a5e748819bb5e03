"""Lowers the operations of a template to hops, with their seconds, and the edges between them.

A compute is a hop on its GPU's compute queue, or on that of its node's CPUs. A send or a move is a direct transfer, or
one that is routed over lanes, as zbench.simulator.hops has them; to and from host memory a hop on the GPU's own link. A
collective is a hop in which its members meet, a leg for each member on its own links, which may go in pieces
(zbench.simulator.steps.trains.collectives), and a hop at its end. Every GPU has queues of its own for each class of
links and each of the operations' queues.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.links import NVLINK
from zbench.simulator.hop_graph import hop_edges
from zbench.simulator.hops import members, ports
from zbench.simulator.steps.dataflow.implied import QueuedHops, needed_edges
from zbench.simulator.steps.expand import (
    AFTER,
    BYTES,
    CLASS,
    IS_LAST,
    QUEUE_A,
    QUEUE_B,
    CollectiveLegs,
    Topology,
    expand,
    hop_columns,
    misplaced,
    piece_bytes,
)
from zbench.simulator.steps.trains.collectives import Legs, legs_of, pieces_of
from zbench.step.layout import StepLayout
from zbench.step.operations import DROP, GATHER, QUEUES, REDUCE
from zbench.step.template import Step


@dataclass(frozen=True)
class Lowered:
    """The hops of a template.

    table: int64 [11, hops], rows as in zbench.simulator.steps.expand; a queue below -1 is a meeting's, of which -2 is
    the first. queued: columns of them. producer, consumer: edges between hops, without those that queues imply.
    purpose: of each hop, the queue of its operation, an index into QUEUES. meetings: how many queues of meetings there
    are. trains: int64 [n, 2], the legs of collectives that go in pieces and in how many each does. pieces: the seconds
    of all of them, float64 [pieces], those of one leg after another.
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


@dataclass(frozen=True)
class ClusterPorts:
    """A cluster's queues and links, and the legs of collectives on them, for all templates of a step."""

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
            self._pieces[key] = pieces_of(legs, size, self.cost)
        return self._pieces[key]


def gpu_queues(cluster: Cluster) -> int:
    """Returns the number of queues of one GPU."""
    return 1 + 4 * len(cluster.links) * (len(QUEUES) - 1)


def all_queues(cluster: Cluster) -> int:
    """Returns the number of queues of all GPUs, and of the CPUs of all nodes, which have one and come after them."""
    return cluster.num_ranks * gpu_queues(cluster) + cluster.num_nodes


def lower(
    step: Step,
    where: tuple[StepLayout, Ints],
    ops: Ints,
    edges: tuple[Ints, Ints],
    size: Ints,
    seconds: Floats,
    wires: ClusterPorts,
) -> Lowered:
    """Lowers operations, int64 [n, columns], of which a message's first one stands for all of it.

    where: their layout, and where the places of its lists are. edges: between
    operations. size: bytes, and seconds: of computes, of every operation.

    Raises:
        ValueError: an operation is where the cluster has nothing for it.
    """
    cost, lists = wires.cost, where[0].lists
    cluster = cost.cluster
    check_places(step, ops, cluster)
    legs, latency = _collectives(where, ops, size, wires)
    latency += encoding_seconds(step, where, ops, size, cost)
    table, producer, consumer, meetings = expand(ops, size, (lists.offsets, lists.parts), legs, wires.topology)
    of_class = np.where(table[CLASS] >= 0, table[CLASS], NVLINK)
    carried = cost.message_seconds(table[BYTES], of_class), cost.transfer_seconds(table[BYTES], of_class)
    first, purpose, serial, computes, busy, delay = hop_columns(table, ops, (seconds, latency), carried, wires.classes)
    trains, moved, link = piece_bytes(table)
    pieces = cost.transfer_seconds(moved, link)
    if len(trains):
        busy[trains[:, 0]] = np.add.reduceat(pieces, np.cumsum(trains[:, 1]) - trains[:, 1])
    more = hop_edges(edges[0], edges[1], first, table[IS_LAST], table[AFTER])
    queued = QueuedHops(table[QUEUE_A], table[QUEUE_B], serial, computes, busy, delay)
    joined = np.concatenate([producer, more[0]]), np.concatenate([consumer, more[1]])
    producer, consumer = needed_edges(*joined, queued, all_queues(cluster))
    return Lowered(table, queued, producer, consumer, purpose, int(meetings), trains, pieces)


def check_places(step: Step, ops: Ints, cluster: Cluster) -> None:
    """Raises ValueError where operations are at places that a cluster has no queue or link for."""
    if step.num_gpus != cluster.num_ranks:
        raise ValueError(f"the step is of {step.num_gpus} GPUs; cluster {cluster.name} has {cluster.num_ranks}")
    if step.num_hosts not in (0, cluster.num_nodes):
        raise ValueError(
            f"the step has {step.num_hosts} host memories; a cluster of {cluster.num_nodes} nodes takes that many, or 0"
        )
    in_compute, at_host, apart = misplaced(ops, step.num_gpus, cluster.gpus_per_node)
    if in_compute:
        raise ValueError("a transfer is in queue compute; it has to be in another one")
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
    where: tuple[StepLayout, Ints], ops: Ints, size: Ints, wires: ClusterPorts
) -> tuple[CollectiveLegs, Floats]:
    """Returns the legs of all collectives, and the latency of each operation."""
    counts, latency, pieces = np.zeros(len(ops), np.int64), np.zeros(len(ops)), np.ones(len(ops), np.int64)
    mine = np.flatnonzero((ops[:, 0] >= GATHER) & (ops[:, 0] != DROP) & (size >= 0))
    every: list[Legs] = []
    of_list: dict[int, Legs] = {}
    for op, which, moved in zip(mine.tolist(), ops[mine, 3].tolist(), size[mine].tolist(), strict=True):
        if which not in of_list:
            of_list[which] = wires.legs(where[1][where[0].lists[which]])
        legs = of_list[which]
        every.append(legs)
        counts[op], latency[op], pieces[op] = len(legs.member), legs.latency, wires.pieces(legs, moved)
    none = np.zeros(0, np.int64)
    member, link = (
        np.concatenate([none, *(one.member for one in every)]),
        np.concatenate([none, *(one.link for one in every)]),
    )
    share = np.concatenate([np.zeros(0), *(one.share for one in every)])
    offsets = np.zeros(len(ops) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return CollectiveLegs(offsets, member, link, share, pieces), latency
