"""slime's dynamic batch schedule: a step's sequences packed first, the packs dealt to data-parallel groups then.

Packs are filled first-fit in the order of the batch, at most `pack_tokens` on a rank of a group
(`use_dynamic_batch_size`, `max_tokens_per_gpu`); the fullest are halved until there are as many for every group; groups
take them in turn, or, with `balance_data`, such that the estimated floating-point operations of the groups are about
equal (the largest differencing method, systems/common/differencing.py). With `balance_by_flops` packs are of about
equal operations to begin with, and of as many tokens as that brings. A group is a ring of `degree` ranks
(context_parallel_size).

Source: slime, slime/utils/dp_schedule.py, seqlen_balancing.py and flops_utils.py (624b824a).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean
from zbench.describe.model import Model
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.differencing import balanced_sets
from zbench.systems.common.mesh_plans import check_keys, fitting_plans, holding_degree, pack_limits


@dataclass(frozen=True, slots=True)
class SlimeSchedule:
    """slime's dynamic batch schedule as a system: packs first, then data-parallel groups of rings. degree: ranks of a
    ring; None: the fewest that hold a sequence of `context_limit` tokens in memory. pack_tokens: of a group's rank at
    most (max_tokens_per_gpu); None: a run chooses it before (zbench.run.fastest), and without a run it is what fits a
    GPU. balance_data, balance_by_flops: slime's switches; the second has the first on. context_limit: tokens of the
    longest sequence; the run gives its workload's.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks.
    """

    cost: Cost
    degree: int | None = None
    pack_tokens: int | None = None
    balance_data: bool = True
    balance_by_flops: bool = False
    context_limit: int | None = None

    def __post_init__(self) -> None:
        check_keys(self.cost, self.degree, self.pack_tokens, self.context_limit)
        check_boolean("system.balance_data", self.balance_data)
        check_boolean("system.balance_by_flops", self.balance_by_flops)

    def limits(self, tokens: int) -> list[dict[str, int]]:
        """Lists the limits of a pack to choose from, for batches of so many tokens (zbench.interfaces.protocols)."""
        return pack_limits(self.cost, tokens, self.pack_tokens)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, longest = self.cost.cluster.num_ranks, self.context_limit or batch.num_tokens
        degree = self.degree or holding_degree(longest, "ring", ranks, self.cost)
        lengths, groups = [int(length) for length in batch.lengths], ranks // degree
        flops = [forward_flops(self.cost.model, length) for length in lengths]
        return fitting_plans(
            batch,
            "ring",
            degree,
            self.pack_tokens,
            self.cost,
            lambda most: slime_packs(lengths, flops, groups, most, self.balance_data, self.balance_by_flops),
        )


def slime_packs(
    lengths: list[int], flops: list[int], num_groups: int, most: int, balance_data: bool, balance_by_flops: bool
) -> Ints:
    """Returns int64 [num_sequences, 2]: micro-batch and group of every sequence, in packs of `most` tokens; flops: of
    each."""
    packs = even_packs(lengths, flops, most) if balance_by_flops else _first_fit(lengths, most)
    halve(packs, -(-len(packs) // num_groups) * num_groups, lengths)
    packs += [[] for _ in range(-len(packs) % num_groups)]  # fewer sequences than packs wanted: groups without one
    loads = [sum(flops[seq] for seq in pack) for pack in packs]
    even = balance_data or balance_by_flops
    taken = balanced_sets(loads, num_groups, equal_counts=True) if even else strided(len(packs), num_groups)
    out = np.empty((len(lengths), 2), np.int64)
    for group, numbers in enumerate(taken):
        for turn, number in enumerate(numbers):
            out[packs[number]] = turn, group
    return out


def forward_flops(model: Model, length: int) -> int:
    """Returns slime's estimate of the FLOPs of one sequence: projections, causal attention, SwiGLU of every active
    expert, logits."""
    hidden, width = model.hidden, model.head_dim
    projections = 2 * hidden * width * model.num_heads + 4 * hidden * width * model.num_kv_heads + 2 * hidden * hidden
    feed_forward = 6 * hidden * model.ffn_hidden * model.experts_per_token
    layer = length * (projections + feed_forward) + 2 * model.num_heads * width * length * length
    return model.num_layers * layer + 2 * length * hidden * model.vocab


def _first_fit(lengths: list[int], most: int) -> list[list[int]]:
    """Packs every sequence, in order, into the first pack with room for it; a longer one than `most` has its own."""
    packs: list[list[int]] = []
    room: list[int] = []
    for seq, length in enumerate(lengths):
        at = next((i for i, free in enumerate(room) if length <= free), len(packs))
        if at == len(packs):
            packs.append([])
            room.append(most)
        packs[at].append(seq)
        room[at] -= length
    return packs


def even_packs(lengths: list[int], flops: list[int], most: int) -> list[list[int]]:
    """Makes as many packs as the tokens fill, of about equal operations; a pack may then have more than `most`
    tokens."""
    count = max(-(-sum(lengths) // max(most, 1)), 1)
    if count >= len(lengths):
        return [[seq] for seq in range(len(lengths))]
    return balanced_sets(flops, count, equal_counts=False)


def halve(packs: list[list[int]], count: int, lengths: list[int]) -> None:
    """Halves the pack with the most tokens, of those with several sequences, until there are `count`, or none is left.

    A half takes the longest sequence left whenever it has no more tokens than the other; the second is put last.
    """
    while len(packs) < count:
        several = [(sum(lengths[seq] for seq in pack), i) for i, pack in enumerate(packs) if len(pack) > 1]
        if not several:
            return
        fullest = max(several)[1]
        halves: tuple[list[int], list[int]] = [], []
        tokens = [0, 0]
        for seq in sorted(packs[fullest], key=lambda seq: -lengths[seq]):
            half = int(tokens[0] > tokens[1])
            halves[half].append(seq)
            tokens[half] += lengths[seq]
        packs[fullest] = halves[0]
        packs.append(halves[1])


def strided(count: int, num_groups: int) -> list[list[int]]:
    """Returns the numbers of every group's packs: groups take packs in turn."""
    return [list(range(group, count, num_groups)) for group in range(num_groups)]
