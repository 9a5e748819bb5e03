"""Megatron-LM's hybrid context parallelism as MagiAttention's benchmark runs it. Pure: no torch.

Its scheduler deals documents to groups of ranks in rounds (zbench.systems.hybrid_dp.rounds is that policy), with 8,192
tokens a rank whatever the pack has. A group runs its documents one after another: a ring of Transformer Engine where
it has several ranks, one plain call where it is a single one. All ranks meet between rounds.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import ATTEND, Ints, Plan
from zbench.simulator.attention import programs
from zbench.simulator.hop_graph import HopGraph
from zbench.systems.hybrid_dp import Group, rounds

TOKENS_PER_RANK = 8192  # max_seqlen_per_rank in the benchmark's hybrid_dcp.py, which no caller of it changes


def plans(lengths: Ints, causal: bool, cluster: Cluster, model: Model) -> list[Plan]:
    """Returns one plan a round; consecutive ranks form the groups, the widest first."""
    needed = -(-lengths // TOKENS_PER_RANK)
    degree = np.minimum(2 ** np.ceil(np.log2(needed)).astype(np.int64), cluster.num_ranks)
    return [_round(groups, lengths, causal, cluster, model) for groups in rounds(lengths, degree, cluster.num_ranks)]


def _round(groups: list[Group], lengths: Ints, causal: bool, cluster: Cluster, model: Model) -> Plan:
    groups = sorted(groups, key=lambda group: -group.size)
    seqs = np.array([seq for group in groups for seq in group.seqs], np.int64)
    builder = Builder(lengths[seqs], cluster.num_ranks, model.num_heads, Mask(causal), sequences=seqs)
    first = place = 0
    for group in groups:
        row = np.arange(first, first + group.size).reshape(1, -1)
        for _ in group.seqs:
            ring(builder, np.array([place]), np.zeros(1, np.int64), row)
            place += 1
        first += group.size
    return reverse(builder.build(), "carry")


def mixed_programs(plan: Plan, cost: Cost) -> tuple[HopGraph, HopGraph]:
    """Returns the plan's programs, documents of a single rank without the wrapper's staging."""
    found = []
    bare = programs(plan, replace(cost, wrapper=""))
    for ops, staged, plain in zip((plan.forward, plan.backward), programs(plan, cost), bare, strict=True):
        attends = ops.kind == ATTEND
        parts = np.bincount(ops.blocks[attends], minlength=len(plan.lists))  # of a ring's block: a step each
        alone = attends & (parts[ops.blocks] == 1)
        found.append(replace(staged, busy=np.where(alone[staged.hops.op], plain.busy, staged.busy)))
    return found[0], found[1]
