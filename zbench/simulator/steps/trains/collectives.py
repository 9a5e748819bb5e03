"""Gathers and reductions on the links of their members, as zbench.cost.gathers has them: inside a node domain by
domain, across nodes by every NIC that members are tied to, each with an even share, all at once, in pieces.

What each member has is taken to be an even share, whatever the homes of its cells: shards of one parameter may lie on
few GPUs, those of a layer, which are gathered together, on all.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.links import NIC

PIECE_SECONDS = 0.2e-3  # of a collective at a time: between pieces of it other messages may take a port


@dataclass(frozen=True)
class Legs:
    """The legs of a collective on the links of its members: one for each member and level of links inside nodes, and
    one for each NIC. member: who sends and receives. link: class. share: of the bytes gathered that a leg sends, and as
    many that it receives, float64 [legs]. latency: seconds, of all its messages that follow one another."""

    member: Ints
    link: Ints
    share: Floats
    latency: float


def legs_of(members: Ints, cost: Cost) -> Legs:
    """Returns the legs of a collective over GPUs, int64 [members]. Of nodes with different numbers of them each takes
    part by its own links."""
    cluster, count = cost.cluster, len(members)
    found: list[tuple[Ints, int, float]] = []
    latency, within = 0.0, 1
    for link, gpus in cluster.levels:
        inside = np.bincount(members // gpus)
        together = int(inside.max())
        if together > within:
            found.append((members[inside[members // gpus] > 1], link, (count - within) / count / within))
            latency += cluster.links[link].latency * (together // within - 1)
            within = together
    nodes = len(np.unique(members // cluster.gpus_per_node))
    if nodes > 1:
        first = members[np.unique(cluster.nic_of[members], return_index=True)[1]]
        each = np.bincount(first // cluster.gpus_per_node)
        for number in np.unique(each[each > 0]).tolist():
            mine = first[each[first // cluster.gpus_per_node] == number]
            found.append((mine, NIC, (nodes - 1) / nodes / number))
        latency += cluster.nic_latency * (nodes - 1)
    return Legs(
        np.concatenate([*(row for row, _, _ in found), np.zeros(0, np.int64)]).astype(np.int64),
        np.concatenate([*(np.full(len(row), link) for row, link, _ in found), np.zeros(0, np.int64)]).astype(np.int64),
        np.concatenate([*(np.full(len(row), share) for row, _, share in found), np.zeros(0)]),
        latency,
    )


def pieces_of(legs: Legs, size: int, cost: Cost) -> int:
    """Returns in how many pieces a collective of `size` bytes goes, so that none keeps a link longer than
    PIECE_SECONDS."""
    if not len(legs.member):
        return 1
    longest = float(cost.transfer_seconds(legs.share * size, legs.link).max())
    return max(1, int(np.ceil(longest / PIECE_SECONDS)))
