"""Who makes what an operation uses: the data edges of a list of operations. Pure: no torch.

An item is (tensor, block, rank). Copies (q, kv, do) are there from the start on the block's home
and come elsewhere by transfer; sums (o, dq, dkv) collect what attends and arrivals add, and a
transfer takes all that has been added so far. Every rule about operations and data is here: the
verifier reports the first one broken, the simulator and the list scheduler wait along the edges,
and the memory account follows the items.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.model import TENSOR_NAMES
from zbench.plan import Ints, Ops, Plan
from zbench.touches import ADD, IS_COPY, READ, TAKE, TENSOR, WRITE, touches

_OK, _MISSING, _TWICE, _NOTHING, _SPLIT, _LEFT = range(6)


@dataclass(frozen=True)
class Accesses:
    """Every touch of an item, grouped by item and in plan order within it.

    op: the operation, -1 for what was there before the first; action: READ, TAKE, WRITE or ADD;
    lo, hi: heads; runs: [num_items + 1] where each item's touches begin; tensor, block, rank: [num_items].
    """

    op: Ints
    action: Ints
    lo: Ints
    hi: Ints
    runs: Ints
    tensor: Ints
    block: Ints
    rank: Ints


@dataclass(frozen=True)
class Fault:
    """The first rule an operation breaks: what, at which operation (-1: before any), block and rank."""

    reason: str
    op: int
    block: int
    rank: int


@dataclass(frozen=True)
class Edges:
    """producer[i] has to be complete before consumer[i] starts; both int64 [num_edges], operation indices."""

    producer: Ints
    consumer: Ints


def accesses(plan: Plan, ops: Ops, backward: bool) -> Accesses:
    """All touches of all items by `ops`, which are the plan's forward or backward list."""
    kept = plan.forward.take(plan.forward.keep == 1) if backward else Ops.concatenate([])
    found, runs = touches(
        (kept.tensor, kept.dst, kept.head_lo, kept.head_hi, kept.blocks),
        (ops.kind, ops.tensor, ops.src, ops.dst, ops.head_lo, ops.head_hi, ops.blocks, ops.kv_blocks),
        (plan.lists.offsets, plan.lists.items), len(plan.blocks), plan.num_ranks, backward,
    )  # fmt: skip
    op, action, lo, hi = found[:TENSOR]
    tensor, block, rank = found[TENSOR:, runs[:-1]]
    return Accesses(op, action, lo, hi, runs, tensor, block, rank)


def edges(plan: Plan, ops: Ops, backward: bool) -> Edges | Fault:
    """The data edges of `ops`, or the first rule they break."""
    table = accesses(plan, ops, backward)
    is_home = plan.blocks.home[table.block] == table.rank
    is_copy = IS_COPY[table.tensor]
    arguments = (table.op, table.action, table.lo, table.hi, table.runs, is_copy, is_home, plan.num_heads)
    none = np.zeros(0, np.int64)
    fault, at, item, count = _match(*arguments, none, none, False)
    if fault != _OK:
        return _fault(plan, ops, table, int(fault), int(at), int(item), backward)
    producer, consumer = np.empty(count, np.int64), np.empty(count, np.int64)
    _match(*arguments, producer, consumer, True)
    return Edges(producer, consumer)


def _fault(plan: Plan, ops: Ops, table: Accesses, code: int, at: int, item: int, backward: bool) -> Fault:
    op, tensor = int(table.op[at]), TENSOR_NAMES[int(table.tensor[item])]
    block, rank = int(table.block[item]), int(table.rank[item])
    home, what = int(plan.blocks.home[block]), f"{tensor} of block {block}"
    reason = {
        _MISSING: f"uses {what} on rank {rank} before an earlier operation brought it there",
        _TWICE: f"brings {what} to rank {rank}, which has it already",
        _NOTHING: f"sends {what} from rank {rank}, where nothing was added to it for all of these heads",
        _SPLIT: f"sends {what} from rank {rank} for heads that cut through an earlier contribution",
        _LEFT: f"adds to {what} on rank {rank}, and nothing sends that home to rank {home}",
    }[code]
    return Fault(reason, op, block, rank)


@nb.njit(cache=True)
def _match(op, action, lo, hi, runs, is_copy, is_home, num_heads, producer, consumer, fill):  # type: ignore[no-untyped-def]
    """Walks every item's touches in order; returns (fault, access, item, number of edges)."""
    count = 0
    taken = np.zeros(len(op), np.bool_)
    for item in range(len(runs) - 1):
        begin, end = runs[item], runs[item + 1]
        for at in range(begin, end):
            if action[at] == READ and not is_home[item]:
                reach = lo[at]
                while reach < hi[at]:  # the head range may have come in several transfers
                    found = -1
                    for earlier in range(begin, at):
                        if action[earlier] == WRITE and lo[earlier] <= reach < hi[earlier]:
                            found = earlier
                    if found < 0:
                        return _MISSING, at, item, 0
                    reach = hi[found]
                    if op[found] >= 0:
                        if fill:
                            producer[count], consumer[count] = op[found], op[at]
                        count += 1
            elif action[at] == WRITE:
                if is_home[item]:
                    return _TWICE, at, item, 0
                for earlier in range(begin, at):
                    if action[earlier] == WRITE and lo[earlier] < hi[at] and lo[at] < hi[earlier]:
                        return _TWICE, at, item, 0
            elif action[at] == TAKE:
                reach = lo[at]
                while reach < hi[at]:
                    found = reach
                    for earlier in range(begin, at):
                        if action[earlier] == ADD and not taken[earlier] and lo[earlier] <= reach:
                            found = max(found, hi[earlier])
                    if found == reach:
                        return _NOTHING, at, item, 0
                    reach = found
                for earlier in range(begin, at):
                    if action[earlier] == ADD and not taken[earlier] and lo[earlier] < hi[at] and lo[at] < hi[earlier]:
                        if lo[earlier] < lo[at] or hi[earlier] > hi[at]:
                            return _SPLIT, at, item, 0
                        taken[earlier] = True
                        if fill:
                            producer[count], consumer[count] = op[earlier], op[at]
                        count += 1
        if not is_copy[item] and not is_home[item]:
            for at in range(begin, end):
                if action[at] == ADD and not taken[at]:
                    return _LEFT, at, item, 0
    return _OK, 0, 0, count
