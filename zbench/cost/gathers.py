"""One gather of parameters, or reduction of gradients: its seconds, and the bytes on NICs.

It runs hierarchically (inside a node domain by domain, across nodes with every NIC taking an equal share) and has all
of a link's channels, as NCCL's collectives have: measured all-gathers (zbench.anchors) agree with the whole link.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.links import NIC, gathering


@dataclass(frozen=True, slots=True)
class Held:
    """Shares of the parameters that the layers on a rank (most of any) and on a node ([num_nodes]) compute with.

    Where optimizer state, gradients' sums and, between steps, parameters are is another matter: an even share of every
    tensor on every rank, whatever the layout of the layers.
    """

    rank: float
    node: Floats


def everything(cost: Cost) -> Held:
    """Returns the shares of data and context parallelism: every rank has all layers."""
    return Held(1.0, np.ones(cost.cluster.num_nodes))


def gather_seconds(cost: Cost, size: float, held: Held | None = None) -> float:
    """Returns the seconds of an all-gather (or reduce-scatter) of what is `held` of `size` bytes (None: all) over every
    rank."""
    if cost.cluster.num_ranks == 1:
        return 0.0
    return float(port_seconds(cost, size, held or everything(cost)).max() + hop_seconds(cost))


def port_seconds(cost: Cost, size: float, held: Held) -> Floats:
    """Returns the seconds for which an all-gather of what is `held` of `size` bytes keeps a rank's port to every class
    of links busy, float64 [classes]: the busiest rank's."""
    c, found = cost.cluster, np.zeros(len(cost.cluster.links))
    for link, within, _ in gathering(c.levels, c.num_ranks):
        taken = held.rank * size * (c.num_ranks - within) / c.num_ranks / within
        found[link] = cost.transfer_seconds(np.array([taken]), link)[0]
    found[NIC] = cost.nic_transfer_seconds(nic_bytes(cost, float(held.node.max()) * size))
    return found


def hop_seconds(cost: Cost) -> float:
    """Returns the latencies of a gather, added up: ranks of a domain in turn, domains of a node, and nodes."""
    c = cost.cluster
    inside = sum(c.links[link].latency * hops for link, _, hops in gathering(c.levels, c.gpus_per_node))
    return inside + c.nic_latency * (c.num_nodes - 1)


def nic_bytes(cost: Cost, size: float) -> int:
    """Returns how many bytes each NIC sends (and receives) in an all-gather or reduce-scatter of `size` bytes."""
    c = cost.cluster
    return int(size * (c.num_nodes - 1) / c.num_nodes / c.nics_per_node)


def run_seconds(cost: Cost, size: float, degree: int) -> float:
    """Returns the seconds of an all-gather (or reduce-scatter) of `size` bytes in every run of `degree` ranks (WORLD:
    of all), of which each has an even share."""
    c = cost.cluster
    ranks = degree or c.num_ranks
    if ranks == 1:
        return 0.0
    nodes = -(-ranks // c.gpus_per_node)
    inside = float(cost.gather_seconds(np.array([size]), ranks)[0])
    hops = sum(c.links[link].latency * hops for link, _, hops in gathering(c.levels, min(ranks, c.gpus_per_node)))
    nic = cost.nic_transfer_seconds(_run_nic_bytes(cost, size, degree)) if nodes > 1 else 0.0
    return float(max(inside, nic) + hops + c.nic_latency * (nodes - 1))


def run_port_seconds(cost: Cost, size: float, degree: int) -> Floats:
    """Returns the seconds for which the gather of `run_seconds` keeps a rank's port to every class of links busy,
    float64 [classes]."""
    c, found = cost.cluster, np.zeros(len(cost.cluster.links))
    ranks = degree or c.num_ranks
    if ranks == 1:
        return found
    for link, within, _ in gathering(c.levels, ranks):
        found[link] = cost.transfer_seconds(np.array([size * (ranks - within) / ranks / within]), link)[0]
    found[NIC] = cost.nic_transfer_seconds(_run_nic_bytes(cost, size, degree))
    return found


def _run_nic_bytes(cost: Cost, size: float, degree: int) -> int:
    """Returns how many bytes each NIC sends in a gather of `size` bytes in every run of `degree` ranks."""
    c = cost.cluster
    nodes = max((degree or c.num_ranks) // c.gpus_per_node, 1)
    return int(size * (nodes - 1) / nodes / c.nics_per_node)
