"""Zeppelin's hierarchical partitioner: which ranks share which sequence. Pure: no torch.

Two levels of the same move. Across nodes, the longest sequences are cut over just enough nodes and
the others go whole to the least loaded node; inside each node, the longest of its sequences are cut
over just enough GPUs and the others go whole to the least loaded GPU. Where the cut lies is the
threshold. `zones` says from which length a cut can be free because attention hides the traffic;
of the thresholds that the batch offers above it, the one with the least estimated time is taken. A
bucket (node or GPU) never takes more tokens than its memory holds: where whole sequences do not
fit, the threshold falls. docs/systems.md tells which of this is the paper's.
"""

from dataclasses import dataclass, replace
from itertools import product

import numba as nb
import numpy as np
from numpy.typing import NDArray

from systems.zeppelin_zones import capacity_tokens, curves, ring_seconds, zones
from zbench.cost import Cost
from zbench.plan import Ints

Floats = NDArray[np.float64]
SLACKS = (1.0, 1.25)  # how far above its share of the work a node may go before a sequence is cut wider
# Played / estimated seconds of built plans, eight batches of arxiv with llama_7b on a800_4x8: without remapping 1.01 to
# 1.11, with it 1.08 to 1.5 (its moves are not estimated). They only decide what is built first, and what not at all.
PLAIN_MISS, REMAP_LEAST, REMAP_LIKELY = 1.03, 1.1, 1.25
TRIES = 12  # most thresholds tried across nodes: batches with more such sequences gain nothing from cutting them all
FORWARD = 1 / 3.5  # share of attention time in the forward: its FLOPs are 1 of 1 + 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """first, size: int64 [num_sequences], the sequence's ranks are members[first : first + size], in ring order.

    seconds: estimate for one layer; least: what one layer takes at least, by the compute of
    its fullest rank and by its busiest link.
    remap: whether the estimate counts on tokens being remapped. simple: cuts as little as memory allows, and
    counts on nothing.
    """

    first: Ints
    size: Ints
    members: Ints
    seconds: float = np.inf
    least: float = 0.0
    remap: bool = False
    simple: bool = False

    @property
    def likely(self) -> float:
        """What a built plan is likely to take: estimates miss the moves of remapping, and little else."""
        return self.seconds * (REMAP_LIKELY if self.remap else PLAIN_MISS)

    @property
    def floor(self) -> float:
        """Not worth building unless the best plan so far takes longer: what a simple partition takes at least; for
        others a judgement, which can miss a plan better by a per cent or two but never rules out a simpler one."""
        return self.least if self.simple else self.seconds * (REMAP_LEAST if self.remap else PLAIN_MISS)


def partitions(lengths: Ints, cost: Cost, kv_moves: int, lanes: int, may_remap: bool) -> list[Partition]:
    """With and without remapping, the best estimate and the partition that cuts least; the likely best first."""
    cluster = cost.cluster
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order]
    c = curves(sizes, cost, kv_moves)
    inside_border, across_border = zones(cost, kv_moves, lanes)
    capacity = max(capacity_tokens(cost), -(-int(lengths.sum()) // cluster.num_ranks))
    least = int((sizes > capacity * cluster.gpus_per_node).sum())
    most = max(least, min(int((sizes >= across_border).sum()), least + TRIES)) if cluster.num_nodes > 1 else 0
    long = int(max((sizes >= inside_border).sum(), (sizes > capacity).sum()))
    inner = ring_seconds(sizes[:long], np.arange(1, cluster.gpus_per_node + 1), cost)
    outer = ring_seconds(sizes[:most], cluster.gpus_per_node * np.arange(1, cluster.num_nodes + 1), cost)
    found = []
    for remap in (True, False) if may_remap else (False,):
        mean = c.linear.sum() / cluster.num_ranks if remap else 0.0
        linear = c.linear * (0.0 if remap else 1.0)
        for cut, slack in product(range(least, most + 1), SLACKS):
            if cut == 0 and slack != SLACKS[0]:
                continue  # nothing is cut across nodes
            first, size, members, seconds, lower = _both_levels(
                sizes, c.attention, linear, c.inside, c.across / lanes, inner, outer, cut, slack,
                capacity, cluster.num_nodes, cluster.gpus_per_node, FORWARD, 1 / kv_moves,
            )  # fmt: skip
            if seconds < np.inf:
                back = np.argsort(order, kind="stable")
                found.append(Partition(first[back], size[back], members, seconds + mean, lower + mean, remap))
    out: list[Partition] = []
    for remap in (True, False):
        same = [one for one in found if one.remap == remap]
        best = sorted(same, key=lambda one: one.seconds)[:1]
        out += [replace(one, simple=not remap) for one in same[:1]] + [one for one in best if one is not same[0]]
    return sorted(out, key=lambda one: one.likely)


@nb.njit(cache=True)
def _phases(attention, linear, moved, forward, moved_forward):  # type: ignore[no-untyped-def]
    """Linear time hides nothing; in either direction attention and transfers hide each other."""
    return (
        linear
        + max(forward * attention, moved_forward * moved)
        + max((1 - forward) * attention, (1 - moved_forward) * moved)
    )


@nb.njit(cache=True)
def _least_with_room(load, held, tokens, capacity):  # type: ignore[no-untyped-def]
    """The least loaded bucket that has room for `tokens`, -1 if none has."""
    best = -1
    for bucket in range(len(load)):
        if held[bucket] + tokens <= capacity and (best < 0 or load[bucket] < load[best]):
            best = bucket
    return best


@nb.njit(cache=True)
def _both_levels(  # type: ignore[no-untyped-def]
    tokens,
    attention,
    linear,
    inside,
    across,
    inner,
    outer,
    cut,
    slack,
    capacity,
    num_nodes,
    per_node,
    forward,
    moved_forward,
):
    """Sequences are sorted, longest first. Returns (first, size, members, seconds, least); inf: does not fit."""
    count = len(tokens)
    first, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
    members = np.empty((count + cut * num_nodes) * per_node, np.int64)
    load, held, nic = (
        np.zeros(num_nodes),
        np.zeros(num_nodes),
        np.zeros(num_nodes),
    )
    # What the rings across nodes put on every GPU of a node: attention, linear, tokens, NVLink.
    base = np.zeros((num_nodes, 4))
    home = np.full(count, -1, np.int64)
    share = (attention.sum() + linear.sum()) / num_nodes
    used = 0
    for s in range(count):
        if s < cut:
            by_load = np.argsort(load)
            wide = max(int(np.ceil((attention[s] + linear[s]) / max(slack * share, 1e-30))), 2)
            wide = min(max(wide, -(-tokens[s] // (capacity * per_node))), num_nodes)
            first[s], size[s] = used, wide * per_node
            for node in np.sort(by_load[:wide]):
                base[node, 0] += outer[s, wide - 1]
                base[node, 1] += linear[s] / size[s]
                base[node, 2] += tokens[s] / size[s]
                base[node, 3] += inside[s] * (size[s] - 1) / size[s]
                load[node] += outer[s, wide - 1] * per_node + linear[s] / wide
                held[node] += tokens[s] / wide
                nic[node] += across[s] * (size[s] - 1) / size[s]
                for place in range(per_node):
                    members[used] = node * per_node + place
                    used += 1
            continue
        home[s] = _least_with_room(load, held, tokens[s], capacity * per_node)
        if home[s] < 0:
            return first, size, members[:used], np.inf, np.inf
        load[home[s]] += attention[s] + linear[s]
        held[home[s]] += tokens[s]
    worst, least = 0.0, 0.0
    for node in range(num_nodes):
        used, seconds, lower = _inside_node(
            tokens, attention, linear, inside, inner, np.flatnonzero(home == node), base[node], nic[node], capacity,
            per_node, node * per_node, forward, moved_forward, first, size, members, used,
        )  # fmt: skip
        worst, least = max(worst, seconds), max(least, lower)
    return first, size, members[:used], worst, least


@nb.njit(cache=True)
def _inside_node(  # type: ignore[no-untyped-def]
    tokens,
    attention,
    linear,
    inside,
    inner,
    mine,
    base,
    nic,
    capacity,
    per_node,
    base_rank,
    forward,
    moved_forward,
    first,
    size,
    members,
    used,
):
    """Tries every number of sequences to cut inside the node, writes the best. Returns (used, seconds, least)."""
    long, total = 0, (base[0] + base[1]) * per_node
    for s in mine:
        total += attention[s] + linear[s]
        long += s < len(inner)
    best, best_cut = np.inf, len(mine)  # everything over the whole node always fits if the node's tokens do
    rank_of, wide_of = np.empty((len(mine), per_node), np.int64), np.empty(len(mine), np.int64)
    lower = 0.0
    for cut in range(long + 1):
        seconds, lower = _fill(
            tokens, attention, linear, inside, inner, mine, cut, total / per_node, base, nic, capacity, per_node,
            forward, moved_forward, rank_of, wide_of,
        )  # fmt: skip
        if seconds < best:
            best, best_cut = seconds, cut
        elif cut > best_cut + 6:
            break
    best, lower = _fill(tokens, attention, linear, inside, inner, mine, best_cut, total / per_node, base, nic, capacity,
                        per_node, forward, moved_forward, rank_of, wide_of)  # fmt: skip
    for i in range(len(mine)):
        first[mine[i]], size[mine[i]] = used, wide_of[i]
        for place in range(wide_of[i]):
            members[used] = base_rank + rank_of[i, place]
            used += 1
    return used, best, lower


@nb.njit(cache=True)
def _fill(  # type: ignore[no-untyped-def]
    tokens,
    attention,
    linear,
    inside,
    inner,
    mine,
    cut,
    share,
    base,
    nic,
    capacity,
    per_node,
    forward,
    moved_forward,
    rank_of,
    wide_of,
):
    """Gives a node's sequences to its GPUs, cutting the first `cut`. Returns (seconds, least)."""
    compute, lines = np.full(per_node, base[0]), np.full(per_node, base[1])
    held, moved = np.full(per_node, base[2]), np.full(per_node, base[3])
    fits = True
    for i in range(len(mine)):
        s = mine[i]
        wide = 1
        if i < cut and s < len(inner) and per_node > 1:
            wide = min(max(int(np.ceil((attention[s] + linear[s]) / max(share, 1e-30))), 2), per_node)
        whole = _least_with_room(compute + lines, held, tokens[s], capacity) if wide == 1 else -1
        if whole >= 0:
            rank_of[i, 0] = whole
        else:  # cut on purpose, or for want of memory
            by_load = np.argsort(compute + lines)
            while wide < per_node and held[by_load[:wide]].max() + tokens[s] / wide > capacity:
                wide += 1
            rank_of[i, :wide] = np.sort(by_load[:wide])
        wide_of[i] = wide
        for place in range(wide):
            rank = rank_of[i, place]
            if wide > 1 and s < len(inner):
                compute[rank] += inner[s, wide - 1]
            else:
                compute[rank] += attention[s] / wide
            lines[rank] += linear[s] / wide
            held[rank] += tokens[s] / wide
            moved[rank] += inside[s] * (wide - 1) / wide
            fits = fits and held[rank] <= capacity + 1
    seconds = 0.0
    for rank in range(per_node):
        seconds = max(seconds, _phases(compute[rank], lines[rank], max(moved[rank], nic), forward, moved_forward))
    return (seconds if fits else np.inf), max((compute + lines).max(), moved.max(), nic)
