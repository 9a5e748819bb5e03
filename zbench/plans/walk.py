"""Walks pairs of lists of blocks piece by piece: compiled, for zbench.plans.pairs.

For one piece of queries the keys it sees in a list of blocks are a prefix of that list's pieces within the sequence: a
difference of two prefix sums, and whether the piece itself is in the list.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.area import COLUMNS, HALF, STRIP, TILE
from zbench.plans.columns import Column


class ListPairs(NamedTuple):
    """Lists of queries and of keys, int64 [num_pairs] each: rows of PieceLists."""

    q: Ints
    kv: Ints


class PieceLists(NamedTuple):
    """Compressed rows: of every list its pieces by (sequence, start)."""

    offsets: Ints
    items: Ints


class PieceSizes(NamedTuple):
    """Pieces for compiled loops. seq, sizes: of every piece. bounds: int64 [num_sequences + 1], each sequence's
    pieces."""

    seq: Column
    sizes: Column
    bounds: Ints


@nb.njit(**ENTERED)
def gather_pieces(used, list_offsets, list_items, piece_offsets, piece_items):  # type: ignore[no-untyped-def]
    """Gathers the pieces of the lists, in (sequence, start) order: returns (offsets, pieces), with nothing of lists
    that are not `used`."""
    offsets = np.zeros(len(used) + 1, np.int64)
    for row in range(len(used)):
        offsets[row + 1] = offsets[row]
        if used[row]:
            for at in range(list_offsets[row], list_offsets[row + 1]):
                block = list_items[at]
                offsets[row + 1] += piece_offsets[block + 1] - piece_offsets[block]
    items = np.empty(offsets[-1], np.int64)
    for row in range(len(used)):
        if not used[row]:
            continue
        fill = offsets[row]
        for at in range(list_offsets[row], list_offsets[row + 1]):
            block = list_items[at]
            for piece in range(piece_offsets[block], piece_offsets[block + 1]):
                items[fill] = piece_items[piece]
                fill += 1
        if list_offsets[row + 1] - list_offsets[row] > 1:
            items[offsets[row] : fill] = np.sort(items[offsets[row] : fill])
    return offsets, items


@nb.njit(**ENTERED)
def seek(items, begin, end, value):  # type: ignore[no-untyped-def]
    """Finds the first index in items[begin:end] with items[index] >= value: doubling steps, then bisection."""
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
def walk(pairs, lists, prefix, pieces, causal):  # type: ignore[no-untyped-def]
    """Counts the work of ListPairs of PieceLists, int64 [num_pairs, COLUMNS], as in zbench.plans.area.Work.

    prefix: tokens before each of the lists' items. pieces: PieceSizes.
    """
    (q_rows, kv_rows), (offsets, items), (seq, sizes, bounds) = pairs, lists, pieces
    out = np.zeros((len(q_rows), COLUMNS), np.int64)
    for pair in range(len(q_rows)):
        k, k_end = offsets[kv_rows[pair]], offsets[kv_rows[pair] + 1]
        m, n, diagonal, last = 0, 0, False, -1  # the open segment: queries, keys before them, triangle?, sequence
        for at in range(offsets[q_rows[pair]], offsets[q_rows[pair] + 1]):
            piece = items[at]
            s = seq[piece]
            k = seek(items, k, k_end, bounds[s])
            own = seek(items, k, k_end, piece if causal else bounds[s + 1])
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


@nb.njit(**INNER)
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
    last = -(-(m + n) // TILE) if diagonal else kv_tiles  # tiles of the last row, which no other row has more of
    row[5] = max(row[5], last)
    empty = q_tiles * TILE - m
    row[8] += last * (empty // STRIP)
    row[9] += last * (empty // HALF)
