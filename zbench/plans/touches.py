"""Lists the touches of items by a list of operations, a rank at a time: compiled, for zbench.plans.dataflow.

An item never leaves its rank, so ranks can be looked at one by one, and what is held at a time is one rank's.
"""

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.plans.plan import ATTEND, Column, Ints, Ops, Plan

READ, TAKE, WRITE, ADD = range(4)  # in the order an operation does them
IS_COPY = np.array([True, True, False, True, False, False])  # by tensor: q kv o do dq dkv
FORWARD = np.array([(READ, Q, 0), (READ, KV, 1), (ADD, O, 0)])  # of an attend: action, tensor, whether of its kv blocks
BACKWARD = np.array([(READ, Q, 0), (READ, KV, 1), (READ, DO, 0), (ADD, DQ, 0), (ADD, DKV, 1)])
TRANSFERS = np.array([(TAKE, ADD), (READ, WRITE)])  # at the source and at the destination: of sums, of copies
PLACE, ACTION, LO, HI, ITEM = range(5)  # columns of a table of touches

Rows = tuple[Ints, NDArray[np.int32]]
Source = tuple[tuple[Column, ...], Rows, tuple[Column, ...], Rows, tuple[Ints, Ints], bool]


def source(plan: Plan, ops: Ops, backward: bool) -> Source:
    """Returns the arrays that `touches` reads of `ops`, the plan's forward or backward list.

    (copies that are there before the first operation, theirs by rank, operations, theirs by rank, lists, backward)
    """
    kept = plan.forward.take(np.flatnonzero(plan.forward.keep) if backward else slice(0, 0))
    return (
        (kept.tensor, kept.head_lo, kept.head_hi, kept.blocks),
        by_rank(np.ones(len(kept), bool), kept.dst, kept.dst, plan.num_ranks),
        (ops.kind, ops.tensor, ops.src, ops.dst, ops.head_lo, ops.head_hi, ops.blocks, ops.kv_blocks),
        by_rank(ops.kind == ATTEND, ops.src, ops.dst, plan.num_ranks),
        (plan.lists.offsets, plan.lists.items),
        backward,
    )


@nb.njit(**ENTERED)
def by_rank(alone, src, dst, num_ranks):  # type: ignore[no-untyped-def]
    """Returns (offsets, int32 indices) of the operations that each rank takes part in, in order; alone: src is dst."""
    offsets = np.zeros(num_ranks + 1, np.int64)
    for i in range(len(src)):
        offsets[src[i] + 1] += 1
        if not alone[i]:
            offsets[dst[i] + 1] += 1
    offsets = np.cumsum(offsets)
    index, fill = np.empty(offsets[-1], np.int32), offsets[:-1].copy()
    for i in range(len(src)):
        index[fill[src[i]]] = i
        fill[src[i]] += 1
        if not alone[i]:
            index[fill[dst[i]]] = i
            fill[dst[i]] += 1
    return offsets, index


@nb.njit(**ENTERED)
def scratch(of, num_blocks):  # type: ignore[no-untyped-def]
    """Makes the arrays that `touches` works in, for any rank: (touches, their numbers by item, where items begin, an
    item's tensor and block as one number, an item's number by tensor and block: -1 outside of `touches`)."""
    (_, _, _, kept), (kept_offsets, kept_index), ops, (offsets, index), (lists, _), backward = of
    kind, blocks, kv_blocks = ops[0], ops[6], ops[7]
    most = 0
    for rank in range(len(offsets) - 1):
        count = 0
        for at in range(kept_offsets[rank], kept_offsets[rank + 1]):
            count += lists[kept[kept_index[at]] + 1] - lists[kept[kept_index[at]]]
        for at in range(offsets[rank], offsets[rank + 1]):
            i = index[at]
            own = lists[blocks[i] + 1] - lists[blocks[i]]
            count += own
            if kind[i] == ATTEND:
                keys = lists[kv_blocks[i] + 1] - lists[kv_blocks[i]]
                count += 2 * own + 2 * keys if backward else own + keys
        most = max(most, count)
    return (
        np.empty((most, 5), np.int32),
        np.empty(most, np.int32),
        np.empty(most + 1, np.int32),
        np.empty(most, np.int64),
        np.full(len(IS_COPY) * num_blocks, -1, np.int32),
    )


@nb.njit(**ENTERED)
def touches(rank, of, work, home):  # type: ignore[no-untyped-def]
    """Fills `work` with the touches of one rank's items; returns (number of touches, number of items).

    Items come in the order of their first touch, an item's touches in plan order. A touch is (place of the operation
    among the rank's own, -1 for what was there before the first; READ, TAKE, WRITE or ADD; heads lo, hi; item). Reading
    what is at home is left out: it is always there. home: of every block.
    """
    kept, kept_rows, ops, rows, lists, backward = of
    found, by_item, runs, keys, number = work
    size, minus = (0, 0), np.int64(-1)
    for at in range(kept_rows[0][rank], kept_rows[0][rank + 1]):
        i = kept_rows[1][at]
        touch = (minus, np.int64(WRITE), np.int64(kept[1][i]), np.int64(kept[2][i]))
        size = _add(work, size, touch, np.int64(kept[0][i]), np.int64(kept[3][i]), rank, lists, home)
    kind, tensor, src, dst, lo, hi, blocks, kv_blocks = ops
    attends = BACKWARD if backward else FORWARD
    begin = rows[0][rank]
    for at in range(begin, rows[0][rank + 1]):
        i = rows[1][at]
        heads = (np.int64(lo[i]), np.int64(hi[i]))
        attend = kind[i] == ATTEND
        for row in range(len(attends) if attend else 2):
            index = np.int64(blocks[i])
            if attend:
                action, what = attends[row, 0], attends[row, 1]
                index = np.int64(kv_blocks[i]) if attends[row, 2] else index
            else:
                action, what = TRANSFERS[int(IS_COPY[tensor[i]]), row], np.int64(tensor[i])
                if (src[i] if row == 0 else dst[i]) != rank:
                    continue
            size = _add(work, size, (at - begin, action, heads[0], heads[1]), what, index, rank, lists, home)
    count, items = size
    runs[: items + 1] = 0
    for at in range(count):  # a counting sort
        runs[found[at, ITEM] + 1] += 1
    for item in range(items):
        number[keys[item]] = -1
        runs[item + 1] += runs[item]
    for at in range(count):
        item = found[at, ITEM]
        by_item[runs[item]] = at
        runs[item] += 1
    for item in range(items, 0, -1):
        runs[item] = runs[item - 1]
    runs[0] = 0
    return count, items


@nb.njit(**INNER)
def _add(work, size, touch, tensor, index, rank, lists, home):  # type: ignore[no-untyped-def]
    """Adds one touch for every block of a list; returns how many touches and items there are now."""
    found, _, _, keys, number = work
    count, items = size
    silent = touch[1] == READ and IS_COPY[tensor]
    for at in range(lists[0][index], lists[0][index + 1]):
        block = lists[1][at]
        if silent and home[block] == rank:
            continue
        key = tensor * len(home) + block
        item = number[key]
        if item < 0:
            item = number[key] = items
            keys[items] = key
            items += 1
        found[count, PLACE], found[count, ACTION], found[count, LO], found[count, HI] = touch
        found[count, ITEM] = item
        count += 1
    return count, items
