"""Zeppelin's hierarchical partitioner: it decides which ranks share which sequence.

Two levels of the same move. Across nodes, the longest sequences are cut over just enough nodes and
the others go whole to the least loaded node; inside each node, the longest of its sequences are cut
over just enough GPUs and the others go whole to the least loaded GPU. Where the cut lies is the
threshold. `zones` says from which length a cut can be free because attention hides the traffic;
of the thresholds that the batch offers above it, the one with the least estimated time is taken. Where
links inside a node are narrow, sequences below that length can be more than a GPU's share of the work:
uncut they are waited for, so thresholds down to these are tried as well. A
bucket (node or GPU) never takes more tokens than its memory holds: where whole sequences do not
fit, the threshold falls. zeppelin.nodes deals to nodes, zeppelin.gpus inside one; here are the thresholds
and what is made of them. docs/systems/zeppelin.md tells which of this is the paper's.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from zbench.cost.cost import Cost
from zbench.plans.plan import Ints
from zbench.systems.zeppelin.gpus import PartitionLimits, SortedSequences
from zbench.systems.zeppelin.nodes import deal
from zbench.systems.zeppelin.zones import capacity_tokens, curves, ring_seconds, zones

SLACKS = (1.0, 1.25)  # how far above its share of the work a node may go before a sequence is cut wider
# Played / estimated seconds of built plans, eight batches of arxiv with llama_7b on a800_4x8: without remapping 1.01 to
# 1.11, with it 1.08 to 1.5 (its moves are not estimated). They only decide what is built first, and what not at all.
PLAIN_MISS, REMAP_LEAST, REMAP_LIKELY = 1.03, 1.1, 1.25
TRIES = 12  # most thresholds tried across nodes: batches with more such sequences gain nothing from cutting them all
FORWARD = 1 / 3.5  # share of attention time in the forward: its FLOPs are 1 of 1 + 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A partition of a batch: the ranks of every sequence, and the estimate of its time. first, size: int64
    [num_sequences], the sequence's ranks are members[first : first + size], in ring order.

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
        """The seconds that a built plan is likely to take: estimates miss the moves of remapping, and little else."""
        return self.seconds * (REMAP_LIKELY if self.remap else PLAIN_MISS)

    @property
    def floor(self) -> float:
        """The seconds from which on a partition is worth building, if the best plan so far takes longer: what a simple
        partition takes at least; for others a judgement, which can miss a plan better by a per cent or two but never
        rules out a simpler one."""
        return self.least if self.simple else self.seconds * (REMAP_LEAST if self.remap else PLAIN_MISS)


def partitions(lengths: Ints, cost: Cost, kv_moves: int, lanes: int, may_remap: bool) -> list[Partition]:
    """Lists, with and without remapping, the best estimate and the partition that cuts least, of cuts in the zones and
    of those below them that balance needs; the likely best first."""
    cluster = cost.cluster
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order]
    # Zones: what may be cut across nodes and inside one; `least` sequences fit no node and have to be.
    c = curves(sizes, cost, kv_moves)
    inside_border, across_border = zones(cost, kv_moves, lanes)
    capacity = max(capacity_tokens(cost), -(-int(lengths.sum()) // cluster.num_ranks))
    least = int((sizes > capacity * cluster.gpus_per_node).sum())
    most = max(least, min(int((sizes >= across_border).sum()), least + TRIES)) if cluster.num_nodes > 1 else 0
    inner_zone = int(max((sizes >= inside_border).sum(), (sizes > capacity).sum()))
    work = c.attention + c.linear
    heavy = int((work > work.sum() / cluster.num_ranks).sum())
    outer = ring_seconds(sizes[:most], cluster.gpus_per_node * np.arange(1, cluster.num_nodes + 1), cost)
    room = PartitionLimits(capacity, cluster.num_nodes, cluster.gpus_per_node, FORWARD, 1 / kv_moves)
    back = np.argsort(order, kind="stable")
    proposed: list[Partition] = []
    # A cut that its own attention does not hide may cost more than the imbalance: the best of either kind is proposed.
    for long in [inner_zone, heavy] if heavy > inner_zone else [inner_zone]:
        inner = ring_seconds(sizes[:long], np.arange(1, cluster.gpus_per_node + 1), cost)
        found = []
        # Every number of sequences cut across nodes; inside each node `deal` tries numbers, too.
        for remap in (True, False) if may_remap else (False,):
            # With remapping every rank has the mean of linear time, so it decides nothing and is added in the end.
            mean = c.linear.sum() / cluster.num_ranks if remap else 0.0
            linear = c.linear * (0.0 if remap else 1.0)
            sequences = SortedSequences(sizes, c.attention, linear, c.inside, c.across / lanes, inner, outer)
            for cut, slack in product(range(least, most + 1), SLACKS):
                if cut == 0 and slack != SLACKS[0]:
                    continue  # nothing is cut across nodes
                first, size, members, seconds, lower = deal(sequences, room, cut, slack)
                if seconds < np.inf:
                    found.append(Partition(first[back], size[back], members, seconds + mean, lower + mean, remap))
        known = {(one.remap, one.seconds) for one in proposed}
        proposed += [one for one in _compared(found) if (one.remap, one.seconds) not in known]
    return sorted(proposed, key=lambda one: one.likely)


def _compared(found: list[Partition]) -> list[Partition]:
    """Picks, of the partitions with and of those without remapping, the one that cuts least and the best estimate."""
    out: list[Partition] = []
    for remap in (True, False):
        same = [one for one in found if one.remap == remap]
        best = sorted(same, key=lambda one: one.seconds)[:1]
        out += [replace(one, simple=not remap) for one in same[:1]] + [one for one in best if one is not same[0]]
    return out
