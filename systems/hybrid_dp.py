"""Hybrid data parallelism: a ring as wide as each sequence needs, rounds of equal work.

The scheduler of Megatron-LM's hybrid context parallelism (`BalancedCPScheduler`): a sequence gets the
next power of two of length / tokens per rank ranks; its work is length^2 / ranks; sequences are dealt
to groups of ranks so that loads balance, in as many rounds as it takes. A group runs its sequences of
a round in micro-batches of at most as many tokens as a rank takes.
Source: Megatron-LM, megatron/core/pipeline_parallel/hybrid_cp_schedule.py, re-implemented from its
described policy. Pure: no torch.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.patterns import ring
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.rewrite.reverse import Mode, check_mode

BUCKET_SLACK = 1.1  # a bucket of equal work closes above 1.1 times its share
BALANCED = 0.05  # a round may end early once (max - min) / max load is below this


@dataclass(slots=True)
class Group:
    """Ranks that share a ring in one round: how many, the sequences they run, their work (tokens^2 per rank)."""

    size: int
    seqs: list[int] = field(default_factory=list)
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class HybridDP:
    """tokens_per_rank: longest stretch of a sequence a rank takes before it is cut wider; None: the batch's
    tokens over the ranks. backward: what becomes of received kv; Transformer Engine carries it round again.

    Raises:
        ValueError: tokens_per_rank is not a whole number of at least 1.
    """

    cost: Cost
    tokens_per_rank: int | None = None
    backward: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.backward", self.backward)
        check_tokens_per_rank(self.tokens_per_rank)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks = self.cost.cluster.num_ranks
        limit = longest_stretch(batch, self.tokens_per_rank, ranks)
        needed = -(-batch.lengths // limit)
        degree = np.minimum(2 ** np.ceil(np.log2(needed)).astype(np.int64), ranks)
        return micro_batches(batch.lengths, rounds(batch.lengths, degree, ranks), limit, self.cost, self.backward)


def check_tokens_per_rank(value: int | None) -> None:
    """Raises ValueError unless it is None or a whole number of at least 1."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"system.tokens_per_rank is {value!r}; it takes a whole number of at least 1, or null")


def longest_stretch(batch: Batch, tokens_per_rank: int | None, num_ranks: int) -> int:
    """Tokens of a sequence a rank takes before it is cut wider: as given, or the batch's over the ranks."""
    return tokens_per_rank or -(-batch.num_tokens // num_ranks)


def micro_batches(
    lengths: Ints, schedule: list[list[Group]], limit: int, cost: Cost, backward: Mode
) -> tuple[Plan, ...]:
    """Plans of a schedule: in each round every group runs its sequences packed to at most `limit` tokens a rank."""
    plans: list[Plan] = []
    for groups in schedule:
        packs = [_packs(group, lengths, limit) for group in groups]
        for index in range(max(len(pack) for pack in packs)):
            turn = [(group.size, pack[index : index + 1]) for group, pack in zip(groups, packs, strict=True)]
            side_by_side = [(size, seqs[0] if seqs else []) for size, seqs in turn]
            plans.append(_micro_batch(lengths, side_by_side, cost, backward))
    return tuple(plans)


def _micro_batch(lengths: Ints, groups: list[tuple[int, list[int]]], cost: Cost, backward: Mode) -> Plan:
    """Groups (ranks, sequences) side by side on consecutive ranks, the widest first."""
    groups = sorted(groups, key=lambda group: -group[0])
    sizes = np.array([size for size, _ in groups])
    begin = np.cumsum(sizes) - sizes
    seqs = np.array([seq for _, mine in groups for seq in mine], np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(mine) for _, mine in groups])
    builder = Builder(lengths[seqs], cost.cluster.num_ranks, cost.model.num_heads, sequences=seqs)
    for size in np.unique(sizes[owner])[::-1]:
        same = np.flatnonzero(sizes == size)
        mine = np.flatnonzero(np.isin(owner, same))
        rows = begin[same][:, None] + np.arange(size)
        ring(builder, mine, np.searchsorted(same, owner[mine]), rows)
    return reverse(builder.build(), backward)


def _packs(group: Group, lengths: Ints, limit: int) -> list[list[int]]:
    """The group's sequences in runs of at most `limit` tokens a rank (or one sequence, if that is more)."""
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
    """Rounds of groups that together run every sequence once; degree: ranks each sequence needs."""
    work = lengths.astype(np.float64) ** 2 / degree
    left = sorted(range(len(lengths)), key=lambda seq: (-int(lengths[seq]), seq))
    out = []
    while left:
        groups, left = _next_round(left, degree, work, num_ranks)
        out.append(groups)
    return out


def _next_round(seqs: list[int], degree: Ints, work: np.ndarray, num_ranks: int) -> tuple[list[Group], list[int]]:
    """(groups of one round, the sequences left for later ones, longest first)."""
    buckets = _buckets(seqs, degree, work)
    groups: list[Group] = []
    free, later, width = num_ranks, [], int(degree[seqs[0]])
    turn = 0
    while any(buckets):
        bucket = buckets[turn % len(buckets)]
        turn += 1
        if not bucket:
            continue
        seq = bucket[0]
        need = int(degree[seq])
        if need < width and not free and _balanced(groups):
            break
        width = min(width, need)
        same = [group for group in groups if group.size == need]
        if need <= free:
            groups.append(Group(need, [seq], float(work[seq])))
            free -= need
        elif same:
            least = min(same, key=lambda group: group.load)
            least.seqs.append(seq)
            least.load += float(work[seq])
        else:
            later.append(seq)
        bucket.popleft()
    later += [seq for bucket in buckets for seq in bucket]
    later += _trim(groups, work)
    fill(groups, free)
    place = {seq: index for index, seq in enumerate(seqs)}
    return groups, sorted(later, key=place.__getitem__)


def _buckets(seqs: list[int], degree: Ints, work: np.ndarray) -> list[deque[int]]:
    """The sorted sequences in runs of about equal work, as many as there are degrees."""
    count = len({int(degree[seq]) for seq in seqs})
    share = BUCKET_SLACK * float(work[seqs].sum()) / count
    out, load = [deque[int]()], 0.0
    for seq in seqs:
        if out[-1] and load + work[seq] > share and len(out) < count:
            out.append(deque())
            load = 0.0
        out[-1].append(seq)
        load += float(work[seq])
    return out


def _balanced(groups: list[Group]) -> bool:
    loads = [group.load for group in groups]
    return max(loads) - min(loads) <= BALANCED * max(loads)


def _trim(groups: list[Group], work: np.ndarray) -> list[int]:
    """Takes the last sequence off the most loaded group while that narrows the gap between most and least loaded."""
    out: list[int] = []
    while len(groups) > 1:
        *_, second, most = sorted(groups, key=lambda group: group.load)
        if len(most.seqs) < 2:
            break
        least, reduced = min(group.load for group in groups), most.load - float(work[most.seqs[-1]])
        if max(second.load, reduced) - min(least, reduced) >= most.load - least:
            break
        most.load = reduced
        out.append(most.seqs.pop())
    return out


def fill(groups: list[Group], free: int) -> None:
    """Leaves no rank idle: doubles the narrowest group, as far as free ranks go, until none is left."""
    while free:
        narrow = min(groups, key=lambda group: group.size)
        more = min(narrow.size, free)
        narrow.load *= narrow.size / (narrow.size + more)
        narrow.size += more
        free -= more
