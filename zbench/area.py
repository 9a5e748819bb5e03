"""How much attention an attend computes, and in what pieces. Pure: no torch.

Blocks are disjoint, so for one piece of queries the keys it sees in a list of blocks are a prefix
of that list's pieces within the sequence: a difference of two prefix sums, and whether the piece
itself is in the list. Query pieces whose keys line up are merged into one **segment**, which is
what a variable-length attention kernel takes: m queries against n keys seen by all of them
(a rectangle), or against n keys and causally each other (a rectangle and a triangle).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.plan import ATTEND, Ints, Ops, Plan

CHUNK = 1 << 15  # pairs a thread takes at a time
TILE = 128  # rows and columns that flash-attention kernels work on at a time (FlashAttention-2, section 3.3)


@dataclass(frozen=True)
class Work:
    """Per attend (arrays over the attends of a list), for one head.

    area: visible (query, key) pairs. tiles: tiles of TILE x TILE that hold a visible pair.
    queries, keys: tokens of q that see anything, and tokens of kv they see, summed over segments.
    segments: sequences or parts of one that the kernel sees as separate.
    longest: tiles of the longest row. rows: rows of tiles. triangles: segments whose queries see each other causally.
    """

    area: Ints
    tiles: Ints
    queries: Ints
    keys: Ints
    segments: Ints
    longest: Ints
    rows: Ints
    triangles: Ints

    @staticmethod
    def whole(lengths: Ints) -> "Work":
        """Causal attention of whole sequences, [n], each by itself."""
        rows = -(-lengths // TILE)
        area, tiles = lengths * (lengths + 1) // 2, rows * (rows + 1) // 2
        one = np.ones_like(lengths)
        return Work(area, tiles, lengths, lengths, one, rows, rows, one)

    def take(self, index: Ints) -> "Work":
        return Work(*(getattr(self, name)[index] for name in Work.__dataclass_fields__))


def work(plan: Plan, ops: Ops) -> tuple[Ints, Work]:
    """(indices of the attends in ops, their work). `ops`: any operations over the plan's lists."""
    attend = np.flatnonzero(ops.kind == ATTEND)
    pair = ops.blocks[attend] * len(plan.lists) + ops.kv_blocks[attend]
    known, table = plan.pair_work
    at = np.minimum(np.searchsorted(known, pair), max(len(known) - 1, 0))
    if not len(known) or (known[at] != pair).any():  # not the plan's own operations
        known, table = pair_work(plan, pair)
        at = np.searchsorted(known, pair)
    return attend, table.take(at)


def pair_work(plan: Plan, pair: Ints) -> tuple[Ints, Work]:
    """(distinct pairs, ascending, their work). pair: q list x number of lists + kv list; each is computed once."""
    distinct, count = np.unique(pair), max(len(plan.lists), 1)
    table = _pairs(plan, distinct // count, distinct % count)
    return distinct, Work(*(np.ascontiguousarray(column) for column in table.T))


def _pairs(plan: Plan, q_list: Ints, kv_list: Ints) -> NDArray[np.int64]:
    used = np.unique(np.concatenate([q_list, kv_list]))
    row_of = np.full(len(plan.lists), -1, np.int64)
    row_of[used] = np.arange(len(used))
    pieces = plan.blocks.pieces
    offsets, items = _gather(used, plan.lists.offsets, plan.lists.items, pieces.offsets, pieces.items)
    blocks = plan.blocks
    sizes = blocks.stop - blocks.start
    prefix = np.concatenate([[0], np.cumsum(sizes[items])]).astype(np.int64)
    bounds = np.searchsorted(blocks.seq, np.arange(len(plan.lengths) + 1)).astype(np.int64)

    def walk(part: slice) -> NDArray[np.int64]:
        rows = row_of[q_list[part]], row_of[kv_list[part]]
        table: NDArray[np.int64] = _walk(*rows, offsets, items, prefix, blocks.seq, sizes, bounds, plan.causal)
        return table

    if len(q_list) <= CHUNK:
        return walk(slice(None))
    with ThreadPoolExecutor() as pool:  # the compiled loop leaves the interpreter free; order and result stay the same
        return np.concatenate(list(pool.map(walk, (slice(at, at + CHUNK) for at in range(0, len(q_list), CHUNK)))))


@nb.njit(cache=True)
def _gather(used, list_offsets, list_items, piece_offsets, piece_items):  # type: ignore[no-untyped-def]
    """The pieces of every used list, in (sequence, start) order."""
    offsets = np.zeros(len(used) + 1, np.int64)
    for row in range(len(used)):
        for at in range(list_offsets[used[row]], list_offsets[used[row] + 1]):
            block = list_items[at]
            offsets[row + 1] += piece_offsets[block + 1] - piece_offsets[block]
        offsets[row + 1] += offsets[row]
    items = np.empty(offsets[-1], np.int64)
    for row in range(len(used)):
        fill = offsets[row]
        for at in range(list_offsets[used[row]], list_offsets[used[row] + 1]):
            block = list_items[at]
            for piece in range(piece_offsets[block], piece_offsets[block + 1]):
                items[fill] = piece_items[piece]
                fill += 1
        if list_offsets[used[row] + 1] - list_offsets[used[row]] > 1:
            items[offsets[row] : fill] = np.sort(items[offsets[row] : fill])
    return offsets, items


@nb.njit(cache=True)
def _seek(items, begin, end, value):  # type: ignore[no-untyped-def]
    """First index in items[begin:end] with items[index] >= value: doubling steps, then bisection."""
    step, low = 1, begin
    while low + step < end and items[low + step] < value:
        low += step
        step *= 2
    high = min(low + step, end)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(cache=True, nogil=True)
def _walk(q_rows, kv_rows, offsets, items, prefix, seq, sizes, bounds, causal):  # type: ignore[no-untyped-def]
    out = np.zeros((len(q_rows), 8), np.int64)
    for pair in range(len(q_rows)):
        k, k_end = offsets[kv_rows[pair]], offsets[kv_rows[pair] + 1]
        m, n, diagonal, last = 0, 0, False, -1  # the open segment: queries, keys before them, triangle?, sequence
        for at in range(offsets[q_rows[pair]], offsets[q_rows[pair] + 1]):
            piece = items[at]
            s = seq[piece]
            k = _seek(items, k, k_end, bounds[s])
            own = _seek(items, k, k_end, piece if causal else bounds[s + 1])
            seen = prefix[own] - prefix[k]
            touches = causal and own < k_end and items[own] == piece
            if seen == 0 and not touches:
                continue
            joins = s == last and touches == diagonal and (seen == n + m if diagonal else seen == n)
            if joins:
                m += sizes[piece]
            else:
                _close(out[pair], m, n, diagonal)
                m, n, diagonal, last = sizes[piece], seen, touches, s
        _close(out[pair], m, n, diagonal)
    return out


@nb.njit(cache=True)
def _close(row, m, n, diagonal):  # type: ignore[no-untyped-def]
    """Adds a finished segment to a pair's sums (columns as in Work)."""
    if m == 0:
        return
    q_tiles, kv_tiles = -(-m // TILE), -(-n // TILE)
    row[0] += m * n + (m * (m + 1) // 2 if diagonal else 0)
    row[1] += q_tiles * kv_tiles
    if diagonal:  # the last row of tiles ends where the keys do, which may be inside the rectangle's last tile
        row[1] += q_tiles * (q_tiles + 1) // 2 - (q_tiles + kv_tiles - -(-(m + n) // TILE))
    row[2] += m
    row[3] += n + (m if diagonal else 0)
    row[4] += 1
    row[6] += q_tiles
    row[7] += 1 if diagonal else 0
    row[5] = max(row[5], -(-(m + n) // TILE) if diagonal else kv_tiles)
