"""Megatron-LM's dynamic context parallelism: rounds of packs, each pack on as many ranks as balance it.

The packing-aware successor of hybrid_dp (`sequence_packing_scheduler=default_dynamic_cp`). A round is a micro-batch:
contiguous groups of ranks, aligned powers of two wide, and one pack for each, which a ring runs. Sequences are placed
longest first. A sequence has the ranks that hold it at `pack_tokens` each, or more where that makes the busiest rank of
the round less busy; its work is length^2 / ranks. Ranks without work join the narrowest groups at the end.

Source: Megatron-LM, megatron/core/datasets/data_schedule.py and data_schedule_utils.py, DefaultDynamicCPScheduler and
next_hdp_group_packing_aware (development branch, d48bd6be).
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number, is_whole
from zbench.describe.compiled import ENTERED
from zbench.describe.units import with_noun
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Ints, Plan
from zbench.systems.hybrid_dp import Group, fastest_stretch, side_by_side

CAP = 1.05  # times the longest sequence x pack_tokens is the most work of a rank (_DYNAMIC_CP_WORKLOAD_CAP_DELTA)


@dataclass(frozen=True, slots=True)
class DynamicCP:
    """Megatron-LM's dynamic context parallelism as a system: groups of power-of-two sizes, formed anew in every round.
    pack_tokens: of a rank in a round at most (max_seqlen_per_dp_cp_rank); None: for every batch the fastest predicted
    of hybrid_dp's stretches. least_degree: ranks of a group at least (min_cp_size). received_kv: what becomes
    of it until the backward; Transformer Engine carries it round again.

    Raises:
        ValueError: pack_tokens is no whole number of at least 1, or least_degree no power of two among the ranks.
    """

    cost: Cost
    pack_tokens: int | None = None
    least_degree: int = 1
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_whole_number("system.pack_tokens", self.pack_tokens, 1, or_null=True)
        least, ranks = self.least_degree, self.cost.cluster.num_ranks
        if not is_whole(least) or not 1 <= least <= ranks or least & (least - 1):
            raise ValueError(
                f"system.least_degree is {least!r}; it takes a power of two of at most the "
                f"{with_noun(ranks, self.cost.owner)}"
            )

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return fastest_stretch(self.pack_tokens, batch, self.cost, lambda limit: self._plans(batch, limit))

    def _plans(self, batch: Batch, limit: int) -> tuple[Plan, ...]:
        return tuple(
            side_by_side(batch.lengths, [(group.size, group.seqs) for group in groups], self.cost, self.received_kv)
            for groups in dynamic_rounds(batch.lengths, self.cost.cluster.num_ranks, limit, self.least_degree)
        )


def dynamic_rounds(lengths: Ints, num_ranks: int, limit: int, least: int = 1) -> list[list[Group]]:
    """Forms rounds of groups, the widest first, that together run every sequence once and leave no rank without any.

    limit: tokens of a rank in a round; only a sequence longer than that on all ranks has more. least: ranks of a group.
    """
    left, out = np.argsort(-lengths, kind="stable"), []
    while len(left):
        group, sizes = _placed(lengths[left], num_ranks, limit, least)
        if not expanded(sizes, num_ranks):
            group, sizes = _on_all(lengths[left], num_ranks, limit), np.array([num_ranks])
        out.append([Group(int(size), left[group == number].tolist()) for number, size in enumerate(sizes)])
        left = left[group < 0]
    return out


def expanded(sizes: Ints, num_ranks: int) -> bool:
    """Doubles the first of the narrowest groups, in place, until every rank has one; False where that cannot be.

    Where a doubled group would be wider than all ranks, it becomes all ranks. sizes: int64 [num_groups], falling.
    """
    while (empty := num_ranks - int(sizes.sum())) > 0:
        first = int(np.argmin(sizes))
        more = min(int(sizes[first]), num_ranks - int(sizes[first]))
        if more > empty:
            return False
        sizes[first] += more
    return True


@nb.njit(**ENTERED)
def _placed(lengths, num_ranks, limit, least):  # type: ignore[no-untyped-def]
    """Places sequences in groups for one round: returns (the group of every sequence, -1 where it waits for another
    round; ranks of every group), before expansion.

    lengths: longest first. A sequence takes the first of the places that leave the busiest rank least busy, narrower
    groups before wider ones and those that are there before a new one.
    """
    group = np.full(len(lengths), -1, np.int64)
    sizes, tokens, work = np.zeros(num_ranks, np.int64), np.zeros(num_ranks), np.zeros(num_ranks)
    cap = float(lengths[0]) * float(limit) * CAP
    count, used, busiest = 0, 0, 0.0
    for i in range(len(lengths)):
        length = float(lengths[i])
        width = least
        while width * limit < lengths[i]:
            width *= 2
        width = min(width, num_ranks)
        if i == 0:  # whatever it is
            place, chosen, best = 0, width, length * length / width
        else:
            place, chosen, best = -1, 0, np.inf
        while i > 0 and width <= num_ranks:
            mine = length * length / width
            for at in range(count):
                if sizes[at] == width and tokens[at] + length / width <= limit:
                    then = max(busiest, work[at] + mine)
                    if then <= cap and then < best:
                        place, chosen, best = at, width, then
            then = max(busiest, mine)
            if num_ranks - used >= width and then <= cap and then < best:
                place, chosen, best = count, width, then
            width *= 2
        if place < 0:
            continue
        if place == count:
            sizes[count] = chosen
            used += chosen
            count += 1
        group[i] = place
        tokens[place] += length / chosen
        work[place] += length * length / chosen
        busiest = best
    return group, sizes[:count]


def _on_all(lengths: Ints, num_ranks: int, limit: int) -> Ints:
    """Returns a round whose only group is all ranks: 0 for every sequence, in order, that still fits, else -1."""
    group, tokens = np.full(len(lengths), -1, np.int64), 0.0
    for i, share in enumerate((lengths / num_ranks).tolist()):
        if tokens + share <= limit:
            group[i] = 0
            tokens += share
    return group
