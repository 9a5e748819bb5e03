"""Megatron-LM's `dp_balanced` packing: packs in the order of the batch, as many as the groups can share evenly.

The baseline beside Megatron's dynamic context parallelism. Sequences fill packs in the order in which they come; then
single sequences are moved off the last packs into packs of their own, until there are as many for every
data-parallel group. Group g of each micro-batch takes the g-th of its packs and runs it as a ring of
`degree` ranks (context_parallel_size), every sequence cut over all of them. Despite its name it looks at no work.

Source: Megatron-LM, megatron/core/datasets/data_schedule.py, DpBalancedScheduler (d48bd6be).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_plans import check_keys, fitting_plans, holding_degree, pack_limits


@dataclass(frozen=True, slots=True)
class DpBalanced:
    """Megatron-LM's dp_balanced packing as a system: packs filled in the order of the batch, as many for every
    data-parallel group. degree: ranks of a ring; None: the fewest that hold a sequence of `context_limit` tokens in
    memory. pack_tokens: of a group's rank at most (max_seqlen_per_dp_cp_rank); None: a run chooses it before
    (zbench.run.fastest), and without a run it is what fits a GPU. context_limit: tokens of the longest sequence; the
    run gives its workload's.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks.
    """

    cost: Cost
    degree: int | None = None
    pack_tokens: int | None = None
    context_limit: int | None = None

    def __post_init__(self) -> None:
        check_keys(self.cost, self.degree, self.pack_tokens, self.context_limit)

    def limits(self, tokens: int) -> list[dict[str, int]]:
        """Limits of a pack, for batches of so many tokens (zbench.interfaces.abilities)."""
        return pack_limits(self.cost, tokens, self.pack_tokens)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, longest = self.cost.cluster.num_ranks, self.context_limit or batch.num_tokens
        degree = self.degree or holding_degree(longest, "ring", ranks, self.cost)
        groups = ranks // degree
        return fitting_plans(
            batch, "ring", degree, self.pack_tokens, self.cost, lambda most: assign_packs(batch.lengths, groups, most)
        )


def assign_packs(lengths: Ints, num_groups: int, most: int) -> Ints:
    """Returns int64 [num_sequences, 2]: micro-batch and group of every sequence. most: tokens of a pack."""
    number = np.empty(len(lengths), np.int64)
    for index, pack in enumerate(balanced_packs([int(length) for length in lengths], num_groups, most)):
        number[pack] = index
    return np.stack(np.divmod(number, num_groups), axis=1)


def balanced_packs(lengths: list[int], num_groups: int, most: int) -> list[list[int]]:
    """Returns the sequences of every pack, in order; a longer sequence than `most` has a pack of its own.

    A multiple of `num_groups`, as far as there are sequences: where all packs are single ones, some are missing.
    """
    out: list[list[int]] = []
    room = 0
    for seq, length in enumerate(lengths):
        if not out or length > room:
            out.append([])
            room = most
        out[-1].append(seq)
        room -= length
    missing, last = -len(out) % num_groups, len(out) - 1
    while missing and last >= 0:
        if len(out[last]) > 1:
            out.append([out[last].pop()])
            missing -= 1
        else:
            last -= 1
    return out
