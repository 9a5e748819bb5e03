"""The rule of coverage: every visible (query, key, head) triple is attended exactly once.

Blocks are disjoint, so this takes no look at tokens: no two attends share a pair of blocks and a head, and the visible
pairs of all attends add up to those of all sequences.
"""

import numpy as np

from zbench.plans.area import work
from zbench.plans.plan import ATTEND, Ints, Lists, Ops, Plan
from zbench.proof.attended_twice import attended_twice


def coverage_fault(plan: Plan, ops: Ops, name: str) -> str:
    """Tells what the attends of the list `name` do twice or not at all; "" if nothing."""
    if twice := _pair_twice(plan, ops, name):
        return twice
    done = sum(_attended(plan, part) for _, part in ops.chunks())
    visible = plan.mask.pairs(plan.lengths) * plan.num_heads
    if done == visible:
        return ""
    what = f"{done} visible (query, key, head) triples are attended of {visible}"
    return f"{name}: {_missing(plan, ops, np.flatnonzero(ops.kind == ATTEND))}; {what}"


def _attended(plan: Plan, ops: Ops) -> int:
    """Counts the visible (query, key, head) triples of the operations' attends."""
    attend, amount = work(plan, ops)
    return int((amount.area * (ops.head_hi - ops.head_lo)[attend]).sum())


def _pairs_named(plan: Plan, ops: Ops) -> int:
    """Counts the pairs of blocks that the operations' attends name, as often as they do."""
    attend, lengths = ops.kind == ATTEND, plan.lists.lengths.astype(float)
    return int((lengths[ops.blocks[attend]] * lengths[ops.kv_blocks[attend]]).sum())


def _missing(plan: Plan, ops: Ops, attend: Ints) -> str:
    """Names the first pair of blocks that is not attended in every head; only called when there is one."""
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
    """Returns (index into attend, query block, kv block) for all pairs of blocks of all attends."""
    lists = plan.lists
    q_count, kv_count = lists.lengths[ops.blocks[attend]], lists.lengths[ops.kv_blocks[attend]]
    pairs = q_count * kv_count
    op = np.repeat(np.arange(len(attend)), pairs)
    place = np.arange(len(op)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    q = lists.items[lists.offsets[ops.blocks[attend]][op] + place // kv_count[op]]
    kv = lists.items[lists.offsets[ops.kv_blocks[attend]][op] + place % kv_count[op]]
    return op, q, kv


def _pair_twice(plan: Plan, ops: Ops, name: str) -> str:
    """Tells of two attends (or one, by a repeated block) that share a (query block, kv block) pair and a head."""
    most, named = len(plan.blocks) ** 2 * plan.num_heads, sum(_pairs_named(plan, part) for _, part in ops.chunks())
    if named > most:  # not looked at one by one: they may be too many for the memory
        return (
            f"{name}: attends name {named} pairs of blocks, which is more than {len(plan.blocks)} x "
            f"{len(plan.blocks)} for each of {plan.num_heads} heads: some are attended a second time"
        )
    found = attended_twice(plan, ops)
    if found is None:
        return ""
    op, q, kv = found
    return (
        f"{name} operation {op} ({plan.view(ops, op)}) attends to block {kv} with block {q} "
        f"a second time, on rank {ops.src[op]}"
    )
