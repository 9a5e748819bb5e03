"""Finds two attends that share a pair of blocks and a head: compiled, for zbench.proof.coverage.

Query blocks are looked at one by one, so that only one block's pairs are held at a time.
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import ATTEND, Ops, Plan


def attended_twice(plan: Plan, ops: Ops) -> tuple[int, int, int] | None:
    """Finds the first pair of blocks with a head that an earlier attend has too: returns (operation, query block, kv
    block).

    Of the pair's attends, by their first heads, it is the first that begins before the one before it ends; an attend
    whose lists hold a block twice is one by itself.
    """
    lists = plan.lists
    query, kv = _first_pair(
        ops.kind, ops.blocks, ops.kv_blocks, ops.head_lo, ops.head_hi, lists.offsets, lists.items, len(plan.blocks)
    )
    if query < 0:
        return None
    attends = np.flatnonzero(ops.kind == ATTEND)
    times = np.array(
        [
            (lists[q] == query).sum() * (lists[k] == kv).sum()
            for q, k in zip(ops.blocks[attends], ops.kv_blocks[attends], strict=True)
        ],
        np.int64,
    )
    mine = np.repeat(attends, times)
    mine = mine[np.argsort(ops.head_lo[mine], kind="stable")]
    again = ops.head_lo[mine[1:]] < ops.head_hi[mine[:-1]]
    return int(mine[1:][int(np.argmax(again))]), int(query), int(kv)


@nb.njit(**ENTERED)
def _first_pair(kind, blocks, kv_blocks, head_lo, head_hi, offsets, items, num_blocks):  # type: ignore[no-untyped-def]
    """Finds the first (query block, kv block) with two attends that share a head, (-1, -1) if there is none."""
    begin, attend = _by_query(kind, blocks, offsets, items, num_blocks)
    most = 0
    for query in range(num_blocks):
        count = 0
        for at in range(begin[query], begin[query + 1]):
            count += offsets[kv_blocks[attend[at]] + 1] - offsets[kv_blocks[attend[at]]]
        most = max(most, count)
    latest = np.full(num_blocks, -1, np.int32)  # by kv block, the last attend of the query block that has it
    before, of = np.empty(most, np.int32), np.empty(most, np.int32)
    for query in range(num_blocks):
        count, found = 0, num_blocks
        for at in range(begin[query], begin[query + 1]):
            i = attend[at]
            for place in range(offsets[kv_blocks[i]], offsets[kv_blocks[i] + 1]):
                kv = items[place]
                earlier = latest[kv]
                while earlier >= 0:
                    j = of[earlier]
                    if head_lo[j] < head_hi[i] and head_lo[i] < head_hi[j]:
                        found = min(found, kv)
                    earlier = before[earlier]
                before[count], of[count], latest[kv] = latest[kv], i, count
                count += 1
        if found < num_blocks:
            return query, found
        for at in range(begin[query], begin[query + 1]):
            i = attend[at]
            for place in range(offsets[kv_blocks[i]], offsets[kv_blocks[i] + 1]):
                latest[items[place]] = -1
    return -1, -1


@nb.njit(**INNER)
def _by_query(kind, blocks, offsets, items, num_blocks):  # type: ignore[no-untyped-def]
    """Sorts attends by query block: returns (offsets, attends), those of a block in order."""
    begin = np.zeros(num_blocks + 1, np.int64)
    for i in range(len(kind)):
        if kind[i] == ATTEND:
            for place in range(offsets[blocks[i]], offsets[blocks[i] + 1]):
                begin[items[place] + 1] += 1
    begin = np.cumsum(begin)
    attend, fill = np.empty(begin[-1], np.int32), begin[:-1].copy()
    for i in range(len(kind)):
        if kind[i] == ATTEND:
            for place in range(offsets[blocks[i]], offsets[blocks[i] + 1]):
                attend[fill[items[place]]] = i
                fill[items[place]] += 1
    return begin, attend
