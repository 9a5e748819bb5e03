"""Plans of schedules: what zbench proves, plays and runs of rings or whole samples that a contract describes."""

import numpy as np

from zbench.contracts.schedule import RingGroup, SampleSchedule
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_plans import mesh_plans


def plans_of_rings(schedule: SampleSchedule, cost: Cost, backward: Mode = "carry") -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch of a schedule of rings, which has kept to its contract.

    Samples are numbered in the order of `schedule.lengths`.
    """
    number = {sample: index for index, sample in enumerate(schedule.lengths)}
    lengths = np.array(list(schedule.lengths.values()), np.int64)
    rounds = ([_numbered(group, number) for group in groups] for groups in schedule.groups())
    return tuple(plan_of_round(lengths, groups, cost, backward) for groups in rounds)


def plan_of_round(lengths: Ints, groups: list[tuple[int, int, list[int]]], cost: Cost, backward: Mode) -> Plan:
    """Makes the plan of one micro-batch of rings. lengths: int64, of the batch's samples. groups: (first rank, ranks,
    samples) of each, which together have all ranks."""
    first, sizes = (np.array([group[place] for group in groups], np.int64) for place in (0, 1))
    seqs = np.array([seq for _, _, mine in groups for seq in mine], np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(mine) for _, _, mine in groups])
    builder = Builder(lengths[seqs], cost.cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=seqs)
    for size in np.unique(sizes)[::-1]:
        same = np.flatnonzero(sizes == size)
        mine = np.flatnonzero(np.isin(owner, same))
        ring(builder, mine, np.searchsorted(same, owner[mine]), first[same][:, None] + np.arange(size))
    return reverse(builder.build(), backward)


def _numbered(group: RingGroup, number: dict[int | str, int]) -> tuple[int, int, list[int]]:
    return group.first, group.size, [number[sample] for sample in group.samples]


def plans_of_whole(schedule: SampleSchedule, cost: Cost) -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch of whole samples on data-parallel ranks, which has kept to its contract.

    The cluster has as many GPUs for every rank of the schedule: neighbours, which exchange heads. Samples are numbered
    in the order of `schedule.lengths`.
    """
    number = {sample: index for index, sample in enumerate(schedule.lengths)}
    pack = np.empty((len(number), 2), np.int64)
    for turn, lists in enumerate(schedule.micro_batches):
        for rank, samples in enumerate(lists):
            pack[[number[sample] for sample in samples]] = turn, rank
    batch = Batch(np.array(list(schedule.lengths.values()), np.int64), seed=0, step=0)
    return mesh_plans(batch, "ulysses", cost.cluster.num_ranks // schedule.ranks, cost, pack)
