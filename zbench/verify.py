"""Proves a plan correct before anything runs it. Pure: no torch.

Proven, for the forward and the backward list:

1. every token of every sequence belongs to exactly one block, and no block is empty;
2. every operation names ranks, heads and blocks that exist, and no transfer goes to its own rank;
3. every visible (query, key, head) triple is attended exactly once: no two attends share a pair of
   blocks and a head, and the visible pairs of all attends add up to those of all sequences;
4. nothing is used before an earlier operation made it, and every partial output and gradient
   reaches its home (the rules of zbench.dataflow);
5. pipelines are of ranks that exist, each in one at most; their tokens are at their leads, where all heads of a
   sequence attend at once, and nothing is sent (where a cost model is given: they can be, on that cluster);
6. every rank stays within its memory, where a cost model is given.

Time is about linear in the plan's operations and pieces.
"""

import numpy as np

from zbench.area import work
from zbench.batch import Batch
from zbench.columns import in_order
from zbench.cost import Cost
from zbench.coverage import attended_twice
from zbench.dataflow import fault
from zbench.memory import peak_bytes
from zbench.model import DKV, DO, DQ, KV, O, Q
from zbench.pipeline_rules import pipeline_fault
from zbench.plan import ATTEND, TRANSFER, Ints, Lists, Ops, Plan

_ALLOWED = {"forward": (Q, KV, O), "backward": (KV, DO, DQ, DKV)}


class PlanError(ValueError):
    """A plan that must not run; the message names the operation, rank and block."""


class OutOfMemory(PlanError):
    """A plan that is correct but does not fit; the message names the rank and both sizes."""


def verify(plan: Plan, cost: Cost | None = None) -> None:
    """Returns if `plan` is correct (and, with a cost model, fits its cluster's memory).

    Raises:
        PlanError: the first rule broken; OutOfMemory: only the memory is too small.
    """
    _tokens(plan)
    both = (("forward", plan.forward, False), ("backward", plan.backward, True))
    for name, ops, _ in both:
        _fields(plan, ops, name)
    for name, ops, backward in both:
        _coverage(plan, ops, name)
        found = fault(plan, ops, backward)
        if found is not None:
            raise PlanError(f"{_where(plan, ops, name, found.op)} {found.reason}")
    reason = pipeline_fault(plan, cost)
    if reason:
        raise PlanError(reason)
    if cost is not None:
        _memory((plan,), cost)


def _memory(plans: tuple[Plan, ...], cost: Cost) -> None:
    peak = peak_bytes(plans, cost)
    rank, capacity = int(peak.argmax()), cost.cluster.device.memory_bytes
    if peak[rank] > capacity:
        raise OutOfMemory(
            f"rank {rank} needs {peak[rank] / 2**30:.1f} GiB, "
            f"a {cost.cluster.device.name} has {capacity / 2**30:.1f} GiB"
        )


def verify_step(batch: Batch, plans: tuple[Plan, ...], cost: Cost | None = None) -> None:
    """Every plan verified, every sequence of the batch whole in exactly one of them, and all with the same pipelines,
    whose stages have memory for the micro-batches that are under way at a time.

    Raises:
        PlanError: the first rule broken; OutOfMemory: only the memory is too small.
    """
    times = np.zeros(len(batch.lengths), np.int64)
    for index, plan in enumerate(plans):
        if len(plan.sequences) != len(plan.lengths) or not np.isin(plan.sequences, np.arange(len(times))).all():
            raise PlanError(f"micro-batch {index} names sequences that the batch does not have")
        if (batch.lengths[plan.sequences] != plan.lengths).any():
            raise PlanError(f"micro-batch {index} has sequences of other lengths than the batch")
        np.add.at(times, plan.sequences, 1)
    if (times != 1).any():
        seq = int(np.argmax(times != 1))
        raise PlanError(f"sequence {seq} is in {times[seq]} micro-batches; it has to be in one")
    layouts = {plan.pipelines.layout if plan.pipelines is not None else () for plan in plans}
    if len(layouts) > 1:
        raise PlanError("micro-batches have different pipelines; those of a step have to have the same")
    for plan in plans:
        verify(plan, cost)
    if cost is not None and plans[0].pipelines is not None:
        _memory(plans, cost)


def _where(plan: Plan, ops: Ops, name: str, index: int) -> str:
    return f"{name} operation {index} ({plan.view(ops, index)})" if index >= 0 else f"{name}: before any operation"


def _tokens(plan: Plan) -> None:
    blocks, lengths = plan.blocks, plan.lengths
    if len(blocks.block) and not (blocks.block.min() >= 0 and blocks.block.max() < len(blocks)):
        raise PlanError(f"pieces name blocks outside 0..{len(blocks) - 1}")
    if len(blocks.seq) and not (blocks.seq.min() >= 0 and blocks.seq.max() < len(lengths)):
        raise PlanError(f"pieces name sequences outside 0..{len(lengths) - 1}")
    homeless = (blocks.home < 0) | (blocks.home >= plan.num_ranks)
    if homeless.any():
        raise PlanError(f"block {int(np.argmax(homeless))} has no home among {plan.num_ranks} ranks")
    if not in_order(blocks.seq, blocks.start):
        raise PlanError("pieces are not in (sequence, start) order")
    sizes = blocks.stop - blocks.start
    if (sizes < 1).any():
        raise PlanError(f"block {int(blocks.block[np.argmin(sizes)])} has an empty piece")
    empty = np.bincount(blocks.block, minlength=len(blocks)) == 0
    if empty.any():
        raise PlanError(f"block {int(np.argmax(empty))} is empty")
    # In order, without holes or overlaps: each piece starts where the one before stopped, or at 0 of the next sequence.
    new = np.concatenate([[True], blocks.seq[1:] != blocks.seq[:-1]])[: len(sizes)]
    expected = np.where(new, 0, np.concatenate([[0], blocks.stop[:-1]])[: len(sizes)])
    wrong = blocks.start != expected
    if wrong.any():
        at = int(np.argmax(wrong))
        raise PlanError(
            f"sequence {blocks.seq[at]}: block {blocks.block[at]} has tokens from {blocks.start[at]}, "
            f"those before it end at {expected[at]}: a token is owned twice or not at all"
        )
    owned = np.bincount(blocks.seq, weights=sizes, minlength=len(lengths))
    if (owned != lengths).any():
        short = int(np.argmax(owned != lengths))
        raise PlanError(f"sequence {short} has {lengths[short]} tokens, its blocks hold {int(owned[short])}")


def _fields(plan: Plan, ops: Ops, name: str) -> None:
    items = plan.lists.items
    if len(items) and not (items.min() >= 0 and items.max() < len(plan.blocks)):
        raise PlanError(f"a list names blocks outside 0..{len(plan.blocks) - 1}")
    if (plan.lists.lengths < 1).any():
        raise PlanError("a list of blocks is empty")
    for begin, part in ops.chunks():
        _fields_of(plan, part, name, begin)


def _fields_of(plan: Plan, ops: Ops, name: str, begin: int) -> None:
    def check(bad: np.ndarray, what: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            raise PlanError(f"{name} operation {begin + at} on rank {ops.src[at]} {what}")

    transfer = ops.kind == TRANSFER
    check(~transfer & (ops.kind != ATTEND), "is neither a transfer nor an attend")
    check(
        (np.minimum(ops.src, ops.dst) < 0) | (np.maximum(ops.src, ops.dst) >= plan.num_ranks),
        f"names a rank outside 0..{plan.num_ranks - 1}",
    )
    check(transfer & (ops.src == ops.dst), "sends to its own rank")
    check(~transfer & (ops.src != ops.dst), "attends on two ranks")
    check(
        (ops.head_lo < 0) | (ops.head_lo >= ops.head_hi) | (ops.head_hi > plan.num_heads),
        f"has heads outside 0:{plan.num_heads}, or none",
    )
    check((ops.blocks < 0) | (ops.blocks >= len(plan.lists)), "names a list that does not exist")
    check(~transfer & ((ops.kv_blocks < 0) | (ops.kv_blocks >= len(plan.lists))), "names a list that does not exist")
    check(transfer & ~np.isin(ops.tensor, _ALLOWED[name]), f"sends a tensor that does not exist in the {name}")
    check((ops.via >= len(plan.lanes)) | (~transfer & (ops.via >= 0)), "is routed over lanes that do not exist")
    keepable = transfer & np.isin(ops.tensor, (Q, KV)) & (name == "forward")
    check((ops.keep != 0) & ~((ops.keep == 1) & keepable), "is marked to be kept; only q and kv of the forward can be")


def _coverage(plan: Plan, ops: Ops, name: str) -> None:
    twice = attended_twice(plan, ops)
    if twice is not None:
        op, q, kv = twice
        what = f"attends to block {kv} with block {q} a second time, on rank {ops.src[op]}"
        raise PlanError(f"{_where(plan, ops, name, op)} {what}")
    done = sum(_attended(plan, part) for _, part in ops.chunks())
    lengths = plan.lengths
    visible = int((lengths * (lengths + 1) // 2).sum() if plan.causal else (lengths * lengths).sum()) * plan.num_heads
    if done != visible:
        what = f"{done} visible (query, key, head) triples are attended of {visible}"
        raise PlanError(f"{name}: {_missing(plan, ops, np.flatnonzero(ops.kind == ATTEND))}; {what}")


def _attended(plan: Plan, ops: Ops) -> int:
    """Visible (query, key, head) triples of the operations' attends."""
    attend, amount = work(plan, ops)
    return int((amount.area * (ops.head_hi - ops.head_lo)[attend]).sum())


def _missing(plan: Plan, ops: Ops, attend: Ints) -> str:
    """The first pair of blocks that is not attended in every head; only called when there is one."""
    op, q, kv = _block_pairs(plan, ops, attend)
    heads = (ops.head_hi - ops.head_lo)[attend][op]
    count = len(plan.blocks)
    every = np.arange(count, dtype=np.int64)
    for block in range(count):
        mine = q == block
        done = np.bincount(kv[mine], weights=heads[mine], minlength=count)
        pairs = Ops.attends(0 * every, (0, 1), 0 * every + block, every)
        _, amount = work(plan.with_(lists=Lists.singletons(count), forward=pairs, backward=pairs), pairs)
        short = (amount.area > 0) & (done < plan.num_heads)
        if short.any():
            other, home = int(np.argmax(short)), int(plan.blocks.home[block])
            part = f"{int(done[other])} of {plan.num_heads} heads"
            return f"block {block} (home: rank {home}) attends to block {other} in {part}"
    raise AssertionError("every pair of blocks is attended in every head")


def _block_pairs(plan: Plan, ops: Ops, attend: Ints) -> tuple[Ints, Ints, Ints]:
    """(index into attend, query block, kv block) for all pairs of blocks of all attends."""
    lists = plan.lists
    q_count, kv_count = lists.lengths[ops.blocks[attend]], lists.lengths[ops.kv_blocks[attend]]
    pairs = q_count * kv_count
    op = np.repeat(np.arange(len(attend)), pairs)
    place = np.arange(len(op)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    q = lists.items[lists.offsets[ops.blocks[attend]][op] + place // kv_count[op]]
    kv = lists.items[lists.offsets[ops.kv_blocks[attend]][op] + place % kv_count[op]]
    return op, q, kv
