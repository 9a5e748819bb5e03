"""Hybrid data parallelism: a ring as wide as each sequence needs, rounds of equal work.

The scheduler of Megatron-LM's hybrid context parallelism (`BalancedCPScheduler`): a sequence gets the
next power of two of length / tokens per rank ranks; its work is length^2 / ranks; sequences are dealt
to groups of ranks so that loads balance, in as many rounds as it takes. A group runs its sequences of
a round in micro-batches of at most as many tokens as a rank takes.
Source: Megatron-LM, megatron/core/pipeline_parallel/hybrid_cp_schedule.py, re-implemented from its
described policy.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.common.micro_batches import fitting_tokens, need_bytes

BUCKET_SLACK = 1.1  # a bucket of equal work closes above 1.1 times its share
MULTIPLES = (1.5, 2, 3, 4)  # of an even share of the batch: stretches of a sequence that a rank may take
BALANCED = 0.05  # a round may end early once (max - min) / max load is below this


@dataclass(slots=True)
class Group:
    """A ring of ranks in one round: how many ranks, the sequences they run, their work (tokens^2 per rank)."""

    size: int
    seqs: list[int] = field(default_factory=list)
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class HybridDP:
    """Hybrid data parallelism as a system: every sequence has a ring as wide as it needs, and rounds have equal work.
    tokens_per_rank: longest stretch of a sequence a rank takes before it is cut wider; None: for every batch the
    fastest predicted of `stretches`. received_kv: what becomes of it until the backward; Transformer Engine carries
    it round again.

    Raises:
        ValueError: tokens_per_rank is not a whole number of at least 1.
    """

    cost: Cost
    tokens_per_rank: int | None = None
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_whole_number("system.tokens_per_rank", self.tokens_per_rank, 1, or_null=True)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return fastest_stretch(self.tokens_per_rank, batch, self.cost, lambda limit: self._plans(batch, limit))

    def _plans(self, batch: Batch, limit: int) -> tuple[Plan, ...]:
        ranks, needed = self.cost.cluster.num_ranks, -(-batch.lengths // limit)
        degree = np.minimum(2 ** np.ceil(np.log2(needed)).astype(np.int64), ranks)
        return schedule_plans(batch.lengths, rounds(batch.lengths, degree, ranks), limit, self.cost, self.received_kv)


def fastest_stretch(
    tokens_per_rank: int | None, batch: Batch, cost: Cost, plans_at: Callable[[int], tuple[Plan, ...]]
) -> tuple[Plan, ...]:
    """Returns the plans at that stretch of a sequence a rank; None: of all `stretches` those predicted fastest that fit
    memory.

    Predicted is a layer of every micro-batch, played by itself. Where none fits, it is the one that needs least.
    """
    if tokens_per_rank is not None:
        return plans_at(tokens_per_rank)
    memory = int(cost.cluster.device.memory_bytes)
    timed: list[tuple[int, float, int, tuple[Plan, ...]]] = []
    for limit in stretches(batch, cost):
        plans = plans_at(limit)
        over = max(0, max(need_bytes(plan, cost) for plan in plans) - memory)
        timed.append((over, sum(layer_seconds(plan, cost, 1) for plan in plans), len(timed), plans))
    return min(timed, key=lambda one: one[:3])[3]


def stretches(batch: Batch, cost: Cost) -> list[int]:
    """Lists the stretches to try: the batch's tokens over the ranks, and multiples of it as far as a GPU holds them."""
    even = -(-batch.num_tokens // cost.cluster.num_ranks)
    return [even, *(wide for wide in (int(times * even) for times in MULTIPLES) if wide <= fitting_tokens(cost))]


def schedule_plans(
    lengths: Ints, schedule: list[list[Group]], limit: int, cost: Cost, backward: Mode
) -> tuple[Plan, ...]:
    """Returns the plans of a schedule: in each round every group runs its sequences packed to at most `limit` tokens a
    rank."""
    plans: list[Plan] = []
    for groups in schedule:
        packs = [_packs(group, lengths, limit) for group in groups]
        for index in range(max(len(pack) for pack in packs)):
            turn = [(group.size, pack[index : index + 1]) for group, pack in zip(groups, packs, strict=True)]
            with_seqs = [(size, seqs[0] if seqs else []) for size, seqs in turn]
            plans.append(side_by_side(lengths, with_seqs, cost, backward))
    return tuple(plans)


def side_by_side(lengths: Ints, groups: list[tuple[int, list[int]]], cost: Cost, backward: Mode) -> Plan:
    """Makes one micro-batch of rings side by side: groups (ranks, sequences) on consecutive ranks, the widest first."""
    groups = sorted(groups, key=lambda group: -group[0])
    sizes = np.array([size for size, _ in groups])
    begin = np.cumsum(sizes) - sizes
    seqs = np.array([seq for _, mine in groups for seq in mine], np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(mine) for _, mine in groups])
    builder = Builder(lengths[seqs], cost.cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=seqs)
    for size in np.unique(sizes[owner])[::-1]:
        same = np.flatnonzero(sizes == size)
        mine = np.flatnonzero(np.isin(owner, same))
        rows = begin[same][:, None] + np.arange(size)
        ring(builder, mine, np.searchsorted(same, owner[mine]), rows)
    return reverse(builder.build(), backward)


def _packs(group: Group, lengths: Ints, limit: int) -> list[list[int]]:
    """Returns the group's sequences in runs of at most `limit` tokens a rank (or one sequence, if that is more)."""
    out: list[list[int]] = []
    room = 0
    for seq in group.seqs:
        if int(lengths[seq]) > room:
            out.append([])
            room = max(limit * group.size, int(lengths[seq]))
        out[-1].append(seq)
        room -= int(lengths[seq])
    return out


def rounds(lengths: Ints, degree: Ints, num_ranks: int) -> list[list[Group]]:
    """Forms rounds of groups that together run every sequence once; degree: ranks each sequence needs."""
    work = lengths.astype(np.float64) ** 2 / degree
    left = sorted(range(len(lengths)), key=lambda seq: (-int(lengths[seq]), seq))
    out = []
    while left:
        groups, left = _next_round(left, degree, work, num_ranks)
        out.append(groups)
    return out


def _next_round(seqs: list[int], degree: Ints, work: np.ndarray, num_ranks: int) -> tuple[list[Group], list[int]]:
    """Returns (groups of one round, the sequences left for later ones: longest first, then what was handed back)."""
    buckets = _buckets(seqs, degree, work)
    groups: list[Group] = []
    free, narrower = num_ranks, False
    while (bucket := _fitting(buckets, degree, groups, free)) is not None:
        seq = bucket.popleft()
        need = int(degree[seq])
        if need <= free:
            groups.append(Group(need, [seq], float(work[seq])))
            free -= need
        else:
            least = min((group for group in groups if group.size == need), key=lambda group: group.load)
            least.seqs.append(seq)
            least.load += float(work[seq])
        narrower = narrower or need < degree[seqs[0]]
        if narrower and _balanced(groups, free):
            break
    later = [seq for bucket in buckets for seq in bucket] + _trim(groups, free, work)
    fill_idle_ranks(groups, free)
    return groups, later


def _buckets(seqs: list[int], degree: Ints, work: np.ndarray) -> list[deque[int]]:
    """Returns the sequences in runs of about equal work, about as many as there are degrees.

    A bucket also closes while only as many sequences are left as buckets are to come; Megatron counts those
    that are closed twice.
    """
    count = len({int(degree[seq]) for seq in seqs})
    share = sum(float(work[seq]) for seq in seqs) / count
    out, load = [deque[int]()], 0.0
    for index, seq in enumerate(seqs):
        few = len(seqs) - index <= count - 2 * (len(out) - 1)
        if out[-1] and (few or load + work[seq] > BUCKET_SLACK * share):
            out.append(deque())
            load = 0.0
        out[-1].append(seq)
        load += float(work[seq])
    return out


def _fitting(buckets: list[deque[int]], degree: Ints, groups: list[Group], free: int) -> deque[int] | None:
    """Returns the first bucket whose next sequence has a group of its width or free ranks; None ends the round."""
    sizes = {group.size for group in groups}
    return next((b for b in buckets if b and (degree[b[0]] <= free or int(degree[b[0]]) in sizes)), None)


def _balanced(groups: list[Group], free: int) -> bool:
    """Returns whether the least loaded rank, an idle one if there is, is within 5 % of the most loaded one."""
    loads = [group.load for group in groups] + [0.0] * (free > 0)
    return max(loads) - min(loads) <= BALANCED * max(loads)


def _trim(groups: list[Group], free: int, work: np.ndarray) -> list[int]:
    """Takes the last sequence off the most loaded group while that narrows the gap between most and least loaded."""
    out: list[int] = []
    while free == 0 and not _balanced(groups, free):
        most = max(groups, key=lambda group: group.load)
        loads = [group.load - (float(work[group.seqs[-1]]) if group is most else 0.0) for group in groups]
        gap = most.load - min(group.load for group in groups)
        if len(most.seqs) < 2 or max(loads) - min(loads) >= gap:
            break
        most.load -= float(work[most.seqs[-1]])
        out.append(most.seqs.pop())
    return out


def fill_idle_ranks(groups: list[Group], free: int) -> None:
    """Leaves no rank idle: doubles the narrowest group, as far as free ranks go, until none is left."""
    while free:
        narrow = min(groups, key=lambda group: group.size)
        more = min(narrow.size, free)
        narrow.load *= narrow.size / (narrow.size + more)
        narrow.size += more
        free -= more
