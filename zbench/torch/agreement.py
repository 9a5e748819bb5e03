"""Ranks of a group agree before plans run: on lengths, plans, cluster and model, or all raise the same error."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.describe.arrays import Ints
from zbench.describe.units import with_noun
from zbench.plans.plan import COLUMNS, Plan

Digests = tuple[int, int, int]  # of lengths, of what plans are for, of plans


def digests_of(lengths: Ints, made_for: object, plans: Sequence[Plan]) -> Digests:
    """Returns numbers that differ where lengths, int64 [num_sequences], what plans are made for, or plans differ."""
    return _number([lengths]), _number([repr(made_for)]), _number([part for plan in plans for part in _parts(plan)])


def agree(group: dist.ProcessGroup, mine: Digests, lengths: Ints, device: torch.device) -> None:
    """Returns if all ranks of the group have the same digests. Collective.

    Raises:
        ValueError: on all ranks, the first thing that differs, and on which rank.
    """
    every = _gathered(group, mine, device)
    rank = next((rank for rank, other in enumerate(every) if other != every[0]), None)
    if rank is None:
        return
    same_lengths, same_purpose, _ = (a == b for a, b in zip(every[0], every[rank], strict=True))
    if not same_lengths:
        told: list[Any] = [None] * group.size()
        dist.all_gather_object(told, lengths.tolist(), group=group)
        raise ValueError(f"lengths differ between ranks: {_first_difference(told[0], told[rank], rank)}")
    if not same_purpose:
        raise ValueError(f"plans differ between ranks: rank {rank}'s are for another cluster or model than rank 0's")
    raise ValueError(
        f"plans differ between ranks: rank {rank}'s are not rank 0's for the same lengths; plan with one system and "
        "the same keys everywhere, or on one rank that sends its plans to all"
    )


def agree_on_rows(group: dist.ProcessGroup, rows: torch.Tensor, device: torch.device) -> None:
    """Returns if all ranks of the group have rows, [any number, ...], of one dtype and trailing shape. Collective.

    Raises:
        ValueError: on all ranks, the first rank whose rows are of another one.
    """
    mine = f"{rows.dtype} [T, {', '.join(map(str, rows.shape[1:]))}]".replace(", ]", "]")
    every = _gathered(group, (_number([mine]),), device)
    rank = next((rank for rank, other in enumerate(every) if other != every[0]), None)
    if rank is not None:
        told: list[Any] = [None] * group.size()
        dist.all_gather_object(told, mine, group=group)
        raise ValueError(f"x differs between ranks: it is {told[0]} on rank 0 and {told[rank]} on rank {rank}")


def _gathered(group: dist.ProcessGroup, mine: tuple[int, ...], device: torch.device) -> list[tuple[int, ...]]:
    """Returns every rank's numbers, as many on each."""
    row = torch.tensor(mine, dtype=torch.int64, device=device)
    rows = [torch.empty_like(row) for _ in range(group.size())]
    dist.all_gather(rows, row, group=group)
    return [tuple(one.tolist()) for one in rows]


def _first_difference(first: list[int], other: list[int], rank: int) -> str:
    if len(first) != len(other):
        return f"rank 0 has {with_noun(len(first), 'sequence')}, rank {rank} has {len(other)}"
    at = next(at for at, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
    return f"sequence {at} has {first[at]} tokens on rank 0 and {other[at]} on rank {rank}"


def _parts(plan: Plan) -> list[Any]:
    """Lists all that a plan's programs are made of."""
    blocks = plan.blocks
    arrays = [plan.lengths, plan.sequences, blocks.seq, blocks.start, blocks.stop, blocks.block, blocks.home]
    arrays += [part for lists in (plan.lists, plan.lanes) for part in (lists.offsets, lists.items)]
    arrays += [getattr(ops, name) for ops in (plan.forward, plan.backward) for name in COLUMNS]
    return [*arrays, f"{plan.num_ranks} {plan.num_heads} {plan.mask} {plan.backward_mode} {plan.pipelines}"]


def _number(parts: Sequence[Any]) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        words = part if isinstance(part, str) else f"{part.dtype} {part.shape}"
        digest.update(words.encode())
        if not isinstance(part, str):
            digest.update(np.ascontiguousarray(part).data)
    return int.from_bytes(digest.digest(), "little", signed=True)
