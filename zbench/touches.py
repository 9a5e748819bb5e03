"""Every touch of an item by a list of operations, grouped by item: compiled, for zbench.dataflow. Pure: no torch."""

import numba as nb
import numpy as np

from zbench.model import DKV, DO, DQ, KV, O, Q
from zbench.plan import ATTEND

READ, TAKE, WRITE, ADD = range(4)  # in the order an operation does them
IS_COPY = np.array([True, True, False, True, False, False])  # by tensor: q kv o do dq dkv
FORWARD = np.array([(READ, Q, 0), (READ, KV, 1), (ADD, O, 0)])  # of an attend: action, tensor, whether of its kv blocks
BACKWARD = np.array([(READ, Q, 0), (READ, KV, 1), (READ, DO, 0), (ADD, DQ, 0), (ADD, DKV, 1)])
TRANSFERS = np.array([(TAKE, ADD), (READ, WRITE)])  # at the source and at the destination: of sums, of copies
OP, ACTION, LO, HI, TENSOR, BLOCK, RANK = range(7)  # rows of what `touches` returns


@nb.njit(cache=True)
def touches(kept, ops, lists, num_blocks, num_ranks, backward):  # type: ignore[no-untyped-def]
    """(int64 [7, n], rows as above; int64 [num_items + 1], where each item's begin).

    kept: (tensor, dst, lo, hi, blocks) of copies that are there before the first operation. ops: (kind, tensor, src,
    dst, lo, hi, blocks, kv blocks). lists: (offsets, items). Items are in the order of tensor, block and rank.
    """
    offsets = lists[0]
    count = 0
    for index in kept[4]:
        count += offsets[index + 1] - offsets[index]
    kind, blocks, kv_blocks = ops[0], ops[6], ops[7]
    for i in range(len(kind)):
        own = offsets[blocks[i] + 1] - offsets[blocks[i]]
        count += 2 * own
        if kind[i] == ATTEND:
            keys = offsets[kv_blocks[i] + 1] - offsets[kv_blocks[i]]
            count += own + 2 * keys if backward else keys
    found = np.empty((7, count), np.int64)
    _fill(found, kept, ops, lists, backward)
    by_rank = _sorted(found[RANK], num_ranks, np.arange(count))
    order = _sorted(found[TENSOR] * num_blocks + found[BLOCK], len(IS_COPY) * num_blocks, by_rank)
    out, runs, num = np.empty_like(found), np.empty(count + 1, np.int64), 0
    for at in range(count):
        for row in range(7):
            out[row, at] = found[row, order[at]]
        if at == 0 or (
            out[RANK, at] != out[RANK, at - 1]
            or out[BLOCK, at] != out[BLOCK, at - 1]
            or out[TENSOR, at] != out[TENSOR, at - 1]
        ):
            runs[num] = at
            num += 1
    runs[num] = count
    return out, runs[: num + 1].copy()


@nb.njit(cache=True)
def _fill(out, kept, ops, lists, backward):  # type: ignore[no-untyped-def]
    """Touches in plan order; of an operation in the order of what it does.

    `_add` is given no constants: numba would compile it again for each of them.
    """
    at, nobody, write = np.int64(0), np.int64(-1), np.int64(WRITE)
    for i in range(len(kept[0])):
        at = _add(out, at, nobody, write, kept[2][i], kept[3][i], kept[0][i], kept[1][i], kept[4][i], lists)
    kind, tensor, src, dst, lo, hi, blocks, kv_blocks = ops
    attends = BACKWARD if backward else FORWARD
    for i in range(len(kind)):
        a, b, q, kv, rank = lo[i], hi[i], blocks[i], kv_blocks[i], src[i]
        if kind[i] == ATTEND:
            for row in range(len(attends)):
                at = _add(out, at, i, attends[row, 0], a, b, attends[row, 1], rank, kv if attends[row, 2] else q, lists)
        else:
            leaves, comes = TRANSFERS[int(IS_COPY[tensor[i]])]
            at = _add(out, at, i, leaves, a, b, tensor[i], rank, q, lists)
            at = _add(out, at, i, comes, a, b, tensor[i], dst[i], q, lists)


@nb.njit(cache=True)
def _add(out, at, op, action, lo, hi, tensor, rank, index, lists):  # type: ignore[no-untyped-def]
    """One touch for every block of a list; returns where the next one goes."""
    offsets, items = lists
    for place in range(offsets[index], offsets[index + 1]):
        out[OP, at], out[ACTION, at], out[LO, at], out[HI, at] = op, action, lo, hi
        out[TENSOR, at], out[BLOCK, at], out[RANK, at] = tensor, items[place], rank
        at += 1
    return at


@nb.njit(cache=True)
def _sorted(key, size, order):  # type: ignore[no-untyped-def]
    """`order`, stably sorted by key[order], which is below `size`: by counting."""
    begin, out = np.zeros(size + 1, np.int64), np.empty_like(order)
    for at in range(len(key)):
        begin[key[at] + 1] += 1
    for at in range(size):
        begin[at + 1] += begin[at]
    for index in order:
        out[begin[key[index]]] = index
        begin[key[index]] += 1
    return out
