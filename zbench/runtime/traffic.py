"""Counts attention's bytes per rank, and per NIC and direction: as sent, and as the simulator charges them. No
torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC
from zbench.plans.plan import Plan
from zbench.simulator.attention import programs


@dataclass(frozen=True, slots=True)
class Sent:
    """The bytes that were sent and received. rank_tx, rank_rx: [num_ranks], inside nodes and across; nic_tx, nic_rx:
    [num_nics]; bytes."""

    rank_tx: list[int]
    rank_rx: list[int]
    nic_tx: list[int]
    nic_rx: list[int]

    @staticmethod
    def of(cluster: Cluster, inside: Sequence[tuple[int, int]], across: Sequence[tuple[int, int]]) -> "Sent":
        """Adds up the bytes of every rank and NIC. inside, across: (sent, received) of every rank."""
        nics = cluster.nic_of
        tx, rx = (np.bincount(nics, [pair[way] for pair in across], cluster.num_nics) for way in (0, 1))
        ranks = [[a[way] + b[way] for a, b in zip(inside, across, strict=True)] for way in (0, 1)]
        return Sent(ranks[0], ranks[1], tx.astype(np.int64).tolist(), rx.astype(np.int64).tolist())

    def differs(self, other: "Sent") -> str:
        """Names the first difference in words; "" if there is none."""
        words = {
            "rank_tx": ("rank", "sent"),
            "rank_rx": ("rank", "received"),
            "nic_tx": ("NIC", "sent"),
            "nic_rx": ("NIC", "received"),
        }
        for name in (field.name for field in fields(Sent)):
            for at, (ours, theirs) in enumerate(zip(getattr(self, name), getattr(other, name), strict=True)):
                if ours != theirs:
                    what, verb = words[name]
                    return f"{what} {at} {verb} {ours:,} bytes, and the simulator charges {theirs:,}"
        return ""


def expected(plans: tuple[Plan, ...], cost: Cost) -> Sent:
    """Returns the bytes that the simulator charges for all layers of all micro-batches of a step."""
    cluster, model = cost.cluster, cost.model
    rank_tx, rank_rx = np.zeros((2, cluster.num_ranks), np.int64)
    nic_tx, nic_rx = np.zeros((2, cluster.num_nics), np.int64)
    for plan in plans:
        forward, backward = programs(plan, cost)
        again = 1 if model.recompute == "full" else 0
        for program in (*[forward] * (1 + again), backward):
            hops = program.hops
            kind = hops.link_class
            size = hops.bytes * model.num_layers
            moves = kind >= 0
            np.add.at(rank_tx, hops.rank[moves], size[moves])
            np.add.at(rank_rx, hops.receiver[moves], size[moves])
            crosses = kind == NIC
            np.add.at(nic_tx, hops.link_a[crosses] // 2 - cluster.num_ranks, size[crosses])
            np.add.at(nic_rx, hops.link_b[crosses] // 2 - cluster.num_ranks, size[crosses])
    return Sent(rank_tx.tolist(), rank_rx.tolist(), nic_tx.tolist(), nic_rx.tolist())
