"""Zeppelin's partitioner inside a node: it decides which of the node's GPUs share which of its sequences.

Compiled; sequences are dealt for every threshold that zbench.systems.zeppelin.partition tries.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import INNER
from zbench.plans.plan import Ints

PATIENCE = 6  # numbers of sequences cut inside a node that are tried after the best so far


class SortedSequences(NamedTuple):
    """Sequences to partition, longest first, [num_sequences]; seconds are of one layer.

    attention, linear, inside, across: as in zbench.systems.zeppelin.zones.SequenceSeconds, whole and alone.
    inner, outer: attention seconds per rank of the longest in a ring, [num_long, width - 1]: over as many GPUs of a
    node, and over as many nodes.
    """

    tokens: Ints
    attention: Floats
    linear: Floats
    inside: Floats
    across: Floats
    inner: Floats
    outer: Floats


class PartitionLimits(NamedTuple):
    """Room and shape of the cluster, as the partitioner sees it. capacity: tokens a GPU holds. forward, moved: the
    forward's share of attention's time, and of kv's transfers."""

    capacity: int
    num_nodes: int
    per_node: int
    forward: float
    moved: float


class NodeBase(NamedTuple):
    """Load of rings across nodes on each GPU of a node (nvlink: seconds of its port), and on each of its NICs (nic)."""

    attention: float
    linear: float
    tokens: float
    nvlink: float
    nic: float


class Rings(NamedTuple):
    """Rings as they are written, and the members of each: as in zbench.systems.zeppelin.partition.Partition."""

    first: Ints
    size: Ints
    members: Ints


@nb.njit(**INNER)
def least_with_room(load, held, tokens, capacity):  # type: ignore[no-untyped-def]
    """Returns the least loaded bucket that has room for `tokens`, -1 if none has."""
    best = -1
    for bucket in range(len(load)):
        if held[bucket] + tokens <= capacity and (best < 0 or load[bucket] < load[best]):
            best = bucket
    return best


@nb.njit(**INNER)
def inside_node(of, room, node, mine, base, rings, used):  # type: ignore[no-untyped-def]
    """Tries every number of sequences to cut inside the node, writes the best. Returns (used, seconds, least).

    mine: the sequences that are in the node whole. base: NodeBase. rings: Rings; used: members written so far.
    """
    long, total = 0, (base.attention + base.linear) * room.per_node
    for s in mine:
        total += of.attention[s] + of.linear[s]
        long += s < len(of.inner)
    share = total / room.per_node
    best, best_cut = np.inf, len(mine)  # everything over the whole node always fits if the node's tokens do
    rank_of, wide_of = np.empty((len(mine), room.per_node), np.int64), np.empty(len(mine), np.int64)
    for cut in range(long + 1):
        seconds, _ = _fill(of, room, mine, cut, share, base, rank_of, wide_of)
        if seconds < best:
            best, best_cut = seconds, cut
        elif cut > best_cut + PATIENCE:
            break
    best, least = _fill(of, room, mine, best_cut, share, base, rank_of, wide_of)
    for i in range(len(mine)):
        rings.first[mine[i]], rings.size[mine[i]] = used, wide_of[i]
        for place in range(wide_of[i]):
            rings.members[used] = node * room.per_node + rank_of[i, place]
            used += 1
    return used, best, least


@nb.njit(**INNER)
def _fill(of, room, mine, cut, share, base, rank_of, wide_of):  # type: ignore[no-untyped-def]
    """Gives a node's sequences to its GPUs, cutting the first `cut`. Returns (seconds, least); inf: does not fit."""
    per_node = room.per_node
    compute, lines = np.full(per_node, base.attention), np.full(per_node, base.linear)
    held, moved = np.full(per_node, base.tokens), np.full(per_node, base.nvlink)
    fits = True
    for i in range(len(mine)):
        s = mine[i]
        wide = 1
        if i < cut and s < len(of.inner) and per_node > 1:
            wide = min(max(int(np.ceil((of.attention[s] + of.linear[s]) / max(share, 1e-30))), 2), per_node)
        wide = _place(compute + lines, held, of.tokens[s], wide, room.capacity, rank_of[i])
        wide_of[i] = wide
        for place in range(wide):
            rank = rank_of[i, place]
            if wide > 1 and s < len(of.inner):
                compute[rank] += of.inner[s, wide - 1]
            else:
                compute[rank] += of.attention[s] / wide
            lines[rank] += of.linear[s] / wide
            held[rank] += of.tokens[s] / wide
            moved[rank] += of.inside[s] * (wide - 1) / wide
            fits = fits and held[rank] <= room.capacity + 1
    seconds = 0.0
    for rank in range(per_node):
        seconds = max(seconds, _phases(room, compute[rank], lines[rank], max(moved[rank], base.nic)))
    return (seconds if fits else np.inf), max((compute + lines).max(), moved.max(), base.nic)


@nb.njit(**INNER)
def _place(load, held, tokens, wide, capacity, ranks):  # type: ignore[no-untyped-def]
    """Writes the GPUs of a sequence, the least loaded `wide`, or more for want of memory; returns how many."""
    if wide == 1:
        whole = least_with_room(load, held, tokens, capacity)
        if whole >= 0:
            ranks[0] = whole
            return 1
    by_load = np.argsort(load)
    while wide < len(load) and held[by_load[:wide]].max() + tokens / wide > capacity:
        wide += 1
    ranks[:wide] = np.sort(by_load[:wide])
    return wide


@nb.njit(**INNER)
def _phases(room, attention, linear, moved):  # type: ignore[no-untyped-def]
    """Returns the seconds of a layer: linear time hides nothing; in either direction attention and transfers hide each
    other."""
    return (
        linear
        + max(room.forward * attention, room.moved * moved)
        + max((1 - room.forward) * attention, (1 - room.moved) * moved)
    )
