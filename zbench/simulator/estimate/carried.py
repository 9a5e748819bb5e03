"""Bytes that attention's messages put on NICs: what gathers and reductions beside the layers cannot have of them."""

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.links import NIC
from zbench.plans.plan import Ints
from zbench.simulator.direct import Direct
from zbench.simulator.hop_graph import HopGraph


def carried_bytes(program: HopGraph | Direct, cost: Cost) -> Ints:
    """Returns int64 [2, num_nics]: the bytes that every NIC sends, and receives, of a forward or backward list, over
    all layers of a stage."""
    cluster = cost.cluster
    if isinstance(program, Direct):
        return cost.layers * program.across
    parts = program.hops
    nic, size = parts.link_class == NIC, cost.layers * parts.bytes
    found = np.zeros((2, cluster.num_nics), np.int64)
    for counter, link in zip(found, (parts.link_a, parts.link_b), strict=True):
        np.add.at(counter, link[nic] // 2 - cluster.num_ranks, size[nic])
    return found


def with_forwards_again(forward: Ints, backward: Ints, cost: Cost) -> Ints:
    """Returns the bytes of a backward in which some of a stage's layers run their forward again."""
    return forward * cost.again_layers // cost.layers + backward


def busiest_seconds(carried: Ints, cost: Cost) -> float:
    """Returns the seconds that the busiest direction of a NIC needs for its bytes, all channels together."""
    return cost.nic_transfer_seconds(float(carried.max()))
