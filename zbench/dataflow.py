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

from zbench.model import DKV, DO, DQ, KV, TENSOR_NAMES, O, Q
from zbench.plan import ATTEND, TRANSFER, Ints, Ops, Plan

READ, TAKE, WRITE, ADD = range(4)  # in the order an operation does them
IS_COPY = np.array([True, True, False, True, False, False])  # by tensor: q kv o do dq dkv
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
    attend = np.flatnonzero(ops.kind == ATTEND)
    copy = np.flatnonzero((ops.kind == TRANSFER) & IS_COPY[ops.tensor])
    total = np.flatnonzero((ops.kind == TRANSFER) & ~IS_COPY[ops.tensor])
    q, kv = ops.blocks, ops.kv_blocks
    touches: list[tuple[Ints, int, Ints | int, Ints, Ints]] = [
        (copy, READ, ops.tensor, q, ops.src), (copy, WRITE, ops.tensor, q, ops.dst),
        (total, TAKE, ops.tensor, q, ops.src), (total, ADD, ops.tensor, q, ops.dst),
        (attend, READ, Q, q, ops.src), (attend, READ, KV, kv, ops.src),
    ]  # fmt: skip
    if backward:
        touches += [(attend, READ, DO, q, ops.src), (attend, ADD, DQ, q, ops.src), (attend, ADD, DKV, kv, ops.src)]
    else:
        touches += [(attend, ADD, O, q, ops.src)]
    columns = [_initial(plan)] if backward else []
    columns += [_touch(plan, ops, *touch) for touch in touches]
    op, action, lo, hi, tensor, block, rank = (np.concatenate(column) for column in zip(*columns, strict=True))
    key = (tensor * len(plan.blocks) + block) * plan.num_ranks + rank
    # Two stable sorts: plan order first, then by item. Both inputs are a few ascending runs, which timsort merges.
    order = np.argsort(op * 4 + action, kind="stable")
    order = order[np.argsort(key[order], kind="stable")]
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.zeros(0, np.int64)
    item = order[first]
    runs = np.concatenate([first, [len(key)]]).astype(np.int64)
    return Accesses(op[order], action[order], lo[order], hi[order], runs, tensor[item], block[item], rank[item])


def _touch(
    plan: Plan, ops: Ops, index: Ints, action: int, tensor: Ints | int, lists: Ints, rank: Ints
) -> tuple[Ints, ...]:
    """One touch per operation in `index` and block in its list."""
    rows = lists[index]
    counts = plan.lists.lengths[rows]
    op = np.repeat(index, counts)
    begin = np.repeat(plan.lists.offsets[rows] - (np.cumsum(counts) - counts), counts)
    block = plan.lists.items[begin + np.arange(len(op))]
    kind = np.full(len(op), tensor, np.int64) if isinstance(tensor, int) else tensor[op]
    return op, np.full(len(op), action, np.int64), ops.head_lo[op], ops.head_hi[op], kind, block, rank[op]


def _initial(plan: Plan) -> tuple[Ints, ...]:
    """The copies that the forward left for the backward, as writes before the first operation."""
    kept = np.flatnonzero(plan.forward.keep == 1)
    op, action, lo, hi, tensor, block, rank = _touch(
        plan, plan.forward, kept, WRITE, plan.forward.tensor, plan.forward.blocks, plan.forward.dst
    )
    return np.full(len(op), -1, np.int64), action, lo, hi, tensor, block, rank


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
