"""Counts every distinct pair of lists that attends have, and its work, once.

Pairs of a ring are counted together (zbench.plans.ring_area), all others one by one (zbench.plans.walk).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.area import Work
from zbench.plans.columns import ATTEND, Column, Ops
from zbench.plans.ring_area import CELLS, LEAST, rectangles
from zbench.plans.walk import ListPairs, PieceLists, PieceSizes, gather_pieces, walk
from zbench.plans.window import PieceColumns, cut, work_of

if TYPE_CHECKING:
    from zbench.plans.plan import Plan

CHUNK = 1 << 15  # pairs a thread takes at a time


@dataclass(frozen=True)
class Pairs:
    """Pairs of lists (q, kv) and the work of each, compressed rows by q list.

    offsets: int64 [num_lists + 1]. kv: int32 [num_pairs], ascending in a row. work: of each pair, int32 if it can be.
    """

    offsets: Ints
    kv: NDArray[np.int32]
    work: Work

    def find(self, q_list: Column, kv_list: Column) -> Ints:
        """Returns the index of every pair, int64 [n]; -1 for one that is not there."""
        found: Ints = _find(q_list, kv_list, self.offsets, self.kv)
        return found

    @staticmethod
    def of(plan: "Plan", ops: Ops, more: Ops) -> "Pairs":
        """Counts the pairs of the attends of both lists of operations over the plan's lists of blocks."""
        offsets, kv = _distinct(ops, more, len(plan.lists))
        columns = [np.zeros(len(kv), np.int32) for _ in Work.__dataclass_fields__]
        for where, table in _counted(plan, offsets, kv):
            if len(table) and int(table.max()) >= 2**31:
                columns = [column.astype(np.int64) for column in columns]
            for column, found in zip(columns, table.T, strict=True):
                column[where] = found
        return Pairs(offsets, kv, Work(*columns))


def _counted(plan: "Plan", offsets: Ints, kv: NDArray[np.int32]) -> Iterator[tuple[Ints | slice, Ints]]:
    """Yields (some pairs, int64 [their number, columns] as in Work) until all pairs were there."""
    count = np.diff(offsets)
    used = count > 0
    used[kv] = True
    blocks, pieces = plan.blocks, plan.blocks.pieces
    lists = gather_pieces(used, plan.lists.offsets, plan.lists.items, pieces.offsets, pieces.items)
    sizes = blocks.stop - blocks.start
    mask = plan.mask.for_lengths(plan.lengths)
    if mask.window:
        yield from _windowed(plan, mask.window, offsets, kv, lists)
        return
    ring = rings(offsets, kv, LEAST)
    for first in np.flatnonzero(ring == np.arange(len(ring))).tolist():
        members = kv[offsets[first] : offsets[first + 1]].astype(np.int64)
        found = rectangles(members, lists, blocks.seq, sizes, mask.causal)
        if found is None:
            ring[members] = -1
            continue
        together = members[-1] - members[0] + 1 == len(members)  # so their rows of pairs follow one another
        width = CELLS + len(members) if together else len(members)
        for begin, table in found.rows():
            for at in range(0, len(table), width):
                first_pair = int(offsets[members[begin + at // len(members)]])
                yield slice(first_pair, first_pair + len(table[at : at + width])), table[at : at + width]
    alone = np.repeat(ring < 0, count)
    if alone.any():
        place = np.flatnonzero(alone)
        prefix = np.concatenate([[0], np.cumsum(sizes[lists[1]])]).astype(np.int64)
        bounds = np.searchsorted(blocks.seq, np.arange(len(plan.lengths) + 1)).astype(np.int64)
        q_list, kv_list = np.repeat(np.arange(len(count)), count)[place], kv[place].astype(np.int64)
        arguments = PieceLists(*lists), prefix, PieceSizes(blocks.seq, sizes, bounds), mask.causal
        for part, table in _walked(ListPairs(q_list, kv_list), arguments):
            yield place[part], table


def _windowed(
    plan: "Plan", window: int, offsets: Ints, kv: NDArray[np.int32], lists: tuple[Ints, Ints]
) -> Iterator[tuple[slice, Ints]]:
    """Yields all pairs under a window, some at a time, which threads walk beside each other as in `_walked`."""
    blocks, q_list = plan.blocks, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    bounds = np.searchsorted(blocks.seq, np.arange(len(plan.lengths) + 1)).astype(np.int64)
    pieces = PieceColumns(blocks.seq, blocks.start, blocks.stop, bounds)

    def counted(part: slice) -> Ints:
        pairs = ListPairs(q_list[part], kv[part].astype(np.int64))
        found: Ints = work_of(cut(pairs, PieceLists(*lists), pieces, plan.lengths, window)[0], len(pairs.q))
        return found

    parts = [slice(at, at + CHUNK) for at in range(0, len(q_list), CHUNK)]
    with ThreadPoolExecutor() as pool:
        yield from zip(parts, pool.map(counted, parts), strict=True)


def _walked(pairs: ListPairs, arguments: tuple[PieceLists, Ints, PieceSizes, bool]) -> Iterator[tuple[slice, Ints]]:
    """(some of the pairs, their work) until all pairs were there. arguments: what zbench.plans.walk.walk takes more."""
    parts = [slice(at, at + CHUNK) for at in range(0, len(pairs.q), CHUNK)]
    if len(parts) == 1:
        yield parts[0], walk(pairs, *arguments)
        return
    with ThreadPoolExecutor() as pool:  # the compiled loop leaves the interpreter free; order and result stay the same
        some = (ListPairs(pairs.q[part], pairs.kv[part]) for part in parts)
        yield from zip(parts, pool.map(lambda each: walk(each, *arguments), some), strict=True)


def _distinct(ops: Ops, more: Ops, num_lists: int) -> tuple[Ints, NDArray[np.int32]]:
    """Returns, compressed by q list, the kv lists that the attends of both lists of operations have it with, each
    once."""
    offsets, kv = _bucketed(ops.kind, ops.blocks, ops.kv_blocks, more.kind, more.blocks, more.kv_blocks, num_lists)
    return offsets, kv


@nb.njit(**ENTERED)
def _bucketed(kind, q, kv, kind_2, q_2, kv_2, num_lists):  # type: ignore[no-untyped-def]
    begin = np.zeros(num_lists + 1, np.int64)
    for i in range(len(kind)):
        if kind[i] == ATTEND:
            begin[q[i] + 1] += 1
    for i in range(len(kind_2)):
        if kind_2[i] == ATTEND:
            begin[q_2[i] + 1] += 1
    begin = np.cumsum(begin)
    items, end = np.empty(begin[-1], np.int32), begin[:-1].copy()
    for i in range(len(kind)):
        if kind[i] == ATTEND:
            items[end[q[i]]] = kv[i]
            end[q[i]] += 1
    for i in range(len(kind_2)):
        if kind_2[i] == ATTEND:
            items[end[q_2[i]]] = kv_2[i]
            end[q_2[i]] += 1
    offsets, count = np.zeros(num_lists + 1, np.int64), 0
    seen = np.zeros(num_lists, np.bool_)
    for row in range(num_lists):
        count = _put(items, begin[row], end[row], count, seen)
        offsets[row + 1] = count
    return offsets, items[:count].copy()


@nb.njit(**INNER)
def _put(items, begin, end, to, seen):  # type: ignore[no-untyped-def]
    """Moves what items[begin:end] holds to items[to:], ascending and each once; returns where that ends."""
    if end - begin < 2:
        for at in range(begin, end):
            items[to] = items[at]
            to += 1
        return to
    low, high = items[begin], items[begin]
    for at in range(begin, end):
        low, high = min(low, items[at]), max(high, items[at])
    if high - low < 16 * (end - begin):
        for at in range(begin, end):
            seen[items[at]] = True
        for item in range(low, high + 1):
            if seen[item]:
                items[to] = item
                to += 1
                seen[item] = False
        return to
    ordered = np.sort(items[begin:end])
    for at in range(len(ordered)):
        if at == 0 or ordered[at] != ordered[at - 1]:
            items[to] = ordered[at]
            to += 1
    return to


@nb.njit(**ENTERED)
def rings(offsets, kv, least):  # type: ignore[no-untyped-def]
    """Finds for each list the smallest list of the ring it is in, -1 in none.

    A ring is of lists that all attend to the same ones, themselves. offsets, kv: per list, ascending, the lists that
    it attends to.
    """
    ring = np.full(len(offsets) - 1, -1, np.int64)
    for first in range(len(ring)):
        begin, count = offsets[first], offsets[first + 1] - offsets[first]
        if count < least or kv[begin] != first:
            continue
        same = True
        for at in range(begin, begin + count):
            other = offsets[kv[at]]
            same = offsets[kv[at] + 1] - other == count
            for place in range(count):
                if not same or kv[other + place] != kv[begin + place]:
                    same = False
                    break
            if not same:
                break
        if same:
            for at in range(begin, begin + count):
                ring[kv[at]] = first
    return ring


@nb.njit(**ENTERED)
def _find(q_list, kv_list, offsets, kv):  # type: ignore[no-untyped-def]
    out = np.empty(len(q_list), np.int64)
    for at in range(len(q_list)):
        low, end, wanted = offsets[q_list[at]], offsets[q_list[at] + 1], kv_list[at]
        if low < end and 0 <= wanted - kv[low] < end - low and kv[low + wanted - kv[low]] == wanted:
            out[at] = low + wanted - kv[low]  # the row has no gaps up to it
            continue
        high = end
        while low < high:
            middle = (low + high) // 2
            if kv[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        out[at] = low if low < end and kv[low] == wanted else -1
    return out
