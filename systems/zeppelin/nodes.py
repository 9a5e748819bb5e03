"""Zeppelin's partitioner across nodes: it decides which nodes share which sequence, and then partitions inside each
node."""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.systems.zeppelin.gpus import NodeBase, Rings, inside_node, least_with_room


class _Nodes(NamedTuple):
    """Loads of nodes, [num_nodes]. load, held, nic: seconds, tokens and seconds of its NICs.

    base: [num_nodes, 4], what rings across nodes put on each of its GPUs: NodeBase without `nic`.
    """

    load: Floats
    held: Floats
    nic: Floats
    base: Floats


@nb.njit(**ENTERED)
def deal(of, room, cut, slack):  # type: ignore[no-untyped-def]
    """Cuts the first `cut` sequences over nodes and gives the others to one node each.

    of, room: zeppelin.gpus.SortedSequences and PartitionLimits. slack: how far above its share of the work a node
    may go.
    Returns (first, size, members, seconds, least) of zbench.systems.zeppelin.partition.Partition; seconds are infinite
    where it does not fit.
    """
    count = len(of.tokens)
    first, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
    members = np.empty((count + cut * room.num_nodes) * room.per_node, np.int64)
    load, held, nic = np.zeros(room.num_nodes), np.zeros(room.num_nodes), np.zeros(room.num_nodes)
    base, rings = np.zeros((room.num_nodes, 4)), Rings(first, size, members)
    used = _rings(of, room, cut, slack, rings, _Nodes(load, held, nic, base))
    home = np.full(count, -1, np.int64)
    for s in range(cut, count):
        home[s] = least_with_room(load, held, of.tokens[s], room.capacity * room.per_node)
        if home[s] < 0:
            return first, size, members[:used], np.inf, np.inf
        load[home[s]] += of.attention[s] + of.linear[s]
        held[home[s]] += of.tokens[s]
    worst, least = 0.0, 0.0
    for node in range(room.num_nodes):
        mine = np.flatnonzero(home == node)
        ring = NodeBase(base[node, 0], base[node, 1], base[node, 2], base[node, 3], nic[node])
        used, seconds, lower = inside_node(of, room, node, mine, ring, rings, used)
        worst, least = max(worst, seconds), max(least, lower)
    return first, size, members[:used], worst, least


@nb.njit(**INNER)
def _rings(of, room, cut, slack, rings, nodes):  # type: ignore[no-untyped-def]
    """Lays the rings across nodes: each over the least loaded nodes, as many as its work and memory need. Returns how
    many members they have. They are added to `nodes`."""
    first, size, members = rings
    load, held, nic, base = nodes
    share = (of.attention.sum() + of.linear.sum()) / room.num_nodes
    per_node, used = room.per_node, 0
    for s in range(cut):
        by_load = np.argsort(load)
        wide = max(int(np.ceil((of.attention[s] + of.linear[s]) / max(slack * share, 1e-30))), 2)
        wide = min(max(wide, -(-of.tokens[s] // (room.capacity * per_node))), room.num_nodes)
        first[s], size[s] = used, wide * per_node
        for node in np.sort(by_load[:wide]):
            base[node, 0] += of.outer[s, wide - 1]
            base[node, 1] += of.linear[s] / size[s]
            base[node, 2] += of.tokens[s] / size[s]
            base[node, 3] += of.inside[s] * (size[s] - 1) / size[s]
            load[node] += of.outer[s, wide - 1] * per_node + of.linear[s] / wide
            held[node] += of.tokens[s] / wide
            nic[node] += of.across[s] * (size[s] - 1) / size[s]
            for place in range(per_node):
                members[used] = node * per_node + place
                used += 1
    return used
