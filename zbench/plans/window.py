"""Works out what attends compute under a window: segments of whole runs of queries. Compiled.

Under a mask `window:N` (zbench.describe.mask) a query sees the last N tokens up to itself, so positions matter, which
the causal walk (zbench.plans.walk) does not look at. Queries that follow one another are cut where the window leaves a
run of keys behind, so that each segment is of one of three kinds:

    a rectangle     all queries see all keys
    own keys last   keys before them, then the queries' own; `left` keys to the left of the diagonal that ends at the
                    bottom right are seen, -1 if all are: FlashAttention's window_size=(left, 0)
    left behind     no own keys; every query sees a key less than the one before. Read backwards, last query and last
                    key first, it is a causal segment: its rows are listed backwards, and a kernel need not know

Sequences no longer than the window are cut as causal ones are (zbench.plans.segments).
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.area import COLUMNS, HALF, STRIP, TILE
from zbench.plans.columns import Column
from zbench.plans.walk import seek

# Columns of the table of segments: the pair of lists, queries, keys before the queries' own (or all keys), whether it
# is causal at its end, and how many keys to the left of the diagonal are seen (-1: all).
PAIR, QUERIES, BEFORE, DIAGONAL, LEFT = range(5)


class PieceColumns(NamedTuple):
    """Pieces for compiled loops.

    seq, start, stop: of every piece. bounds: int64 [num_sequences + 1], each sequence's pieces.
    """

    seq: Column
    start: Column
    stop: Column
    bounds: Ints


@nb.njit(**ENTERED)
def work_of(table, num_pairs):  # type: ignore[no-untyped-def]
    """Returns int64 [num_pairs, COLUMNS], as in zbench.plans.area.Work: the work of the segments in `table`."""
    out = np.zeros((num_pairs, COLUMNS), np.int64)
    for i in range(len(table)):
        row = out[table[i, PAIR]]
        m, n, diagonal, left = table[i, QUERIES], table[i, BEFORE], table[i, DIAGONAL], table[i, LEFT]
        keys = n + m if diagonal else n
        q_tiles, kv_tiles, last = -(-m // TILE), -(-n // TILE), -(-keys // TILE)
        area, tiles, behind = m * n, q_tiles * kv_tiles, 0
        if diagonal:
            area += m * (m + 1) // 2
            tiles += q_tiles * (q_tiles + 1) // 2 - (q_tiles + kv_tiles - last)
        if left >= 0:
            seen = left - n  # queries after the first that see the first key
            hidden = max(m - 1 - seen, 0)
            area -= hidden * (hidden + 1) // 2
            behind = max(q_tiles - 1 - -(-seen // TILE), 0)
            tiles -= behind * (behind + 1) // 2
        empty = q_tiles * TILE - m
        row[0] += area
        row[1] += tiles
        row[2] += m
        row[3] += keys
        row[4] += 1
        row[5] = max(row[5], last)
        row[6] += q_tiles
        row[7] += 1 if diagonal else 0
        row[8] += (last - behind) * (empty // STRIP)
        row[9] += (last - behind) * (empty // HALF)
    return out


@nb.njit(cache=True, nogil=True)
def cut(pairs, lists, pieces, lengths, window):  # type: ignore[no-untyped-def]
    """Cuts pairs of lists under a window: returns (segments, spans), int64 [n, 5] each. A span: the sequence, positions
    [from, to) of its queries, and of its keys.

    Queries of a span are all that lie in it, and keys, too: gaps are in neither. A span of keys is backwards where
    its end is before its beginning, and then so are its queries.
    pairs: ListPairs. lists: PieceLists. pieces: PieceColumns. lengths: of every sequence.
    """
    (q_rows, kv_rows), (offsets, items), seq, bounds = pairs, lists, pieces.seq, pieces.bounds
    table, spans, count = np.empty((64, 5), np.int64), np.empty((64, 5), np.int64), 0
    for pair in range(len(q_rows)):
        k, k_end = offsets[kv_rows[pair]], offsets[kv_rows[pair] + 1]
        at, q_end = offsets[q_rows[pair]], offsets[q_rows[pair] + 1]
        while at < q_end:
            s, first = seq[items[at]], at
            while at < q_end and seq[items[at]] == s:
                at += 1
            k = seek(items, k, k_end, bounds[s])
            end = seek(items, k, k_end, bounds[s + 1])
            if k == end:
                continue
            room = 2 * (at - first + 1) * (end - k + 2)
            if count + room > len(table):
                table, spans = _grown(table, count + room), _grown(spans, count + room)
            queries, keys = items[first:at], items[k:end]
            if lengths[s] <= window:
                count = _causal(queries, keys, pieces, pair, s, (table, spans), count)
            else:
                count = _banded(queries, keys, pieces, window, pair, s, (table, spans), count)
    return table[:count].copy(), spans[:count].copy()


@nb.njit(**INNER)
def _grown(table, least):  # type: ignore[no-untyped-def]
    larger = np.empty((2 * least, table.shape[1]), np.int64)
    larger[: len(table)] = table
    return larger


@nb.njit(**INNER)
def _causal(queries, keys, pieces, pair, s, out, count):  # type: ignore[no-untyped-def]
    """Cuts a sequence's segments as zbench.plans.segments does: queries join while their keys line up."""
    start, stop, (table, spans) = pieces.start, pieces.stop, out
    at = 0
    while at < len(queries):
        own = seek(keys, 0, len(keys), queries[at])
        diagonal = own < len(keys) and keys[own] == queries[at]
        n = 0
        for j in range(own):
            n += stop[keys[j]] - start[keys[j]]
        if n == 0 and not diagonal:
            at += 1
            continue
        first, m, end = at, stop[queries[at]] - start[queries[at]], own + 1 if diagonal else own
        at += 1
        while at < len(queries):
            following = seek(keys, end, len(keys), queries[at])
            touches = following < len(keys) and keys[following] == queries[at]
            if touches != diagonal or following != end:
                break
            m += stop[queries[at]] - start[queries[at]]
            end = following + 1 if touches else following
            at += 1
        table[count] = (pair, m, n, 1 if diagonal else 0, -1)
        spans[count] = (s, start[queries[first]], stop[queries[at - 1]], 0, stop[keys[end - 1]])
        count += 1
    return count


@nb.njit(**INNER)
def _banded(queries, keys, pieces, window, pair, s, out, count):  # type: ignore[no-untyped-def]
    """Cuts a sequence's segments under the window: each run of queries that are all among the keys, or none of them."""
    start, stop = pieces.start, pieces.stop
    at = 0
    while at < len(queries):
        a, b = start[queries[at]], stop[queries[at]]
        before = seek(keys, 0, len(keys), queries[at])  # pieces of keys before the run
        own = before < len(keys) and keys[before] == queries[at]
        end = before + 1 if own else before  # of the pieces of keys that the run sees
        at += 1
        while at < len(queries) and start[queries[at]] == b:
            following = seek(keys, end, len(keys), queries[at])
            touches = following < len(keys) and keys[following] == queries[at]
            if touches != own or following != end:
                break
            b = stop[queries[at]]
            end = following + 1 if own else following
            at += 1
        count = _run((a, b, own), keys[:end], pieces, window, pair, s, out, count)
    return count


@nb.njit(**INNER)
def _run(run, keys, pieces, window, pair, s, out, count):  # type: ignore[no-untyped-def]
    """Cuts the segments of a run (a, b, own) of queries [a, b), whose keys are `keys`, the last their own where
    `own`."""
    (a, b, own), start, stop, (table, spans) = run, pieces.start, pieces.stop, out
    piece, x = 0, a
    while x < b:
        edge = x - window + 1  # the first position that query x sees
        while piece < len(keys) and stop[keys[piece]] <= edge:
            piece += 1
        if piece == len(keys):
            return count
        low, after, last = max(edge, start[keys[piece]]), stop[keys[piece]], piece
        while last + 1 < len(keys) and start[keys[last + 1]] == after:
            last += 1
            after = stop[keys[last]]
        # Query x sees keys from `low` on; the window leaves this run of keys behind query by query, up to `after`.
        hides = low == edge
        y = min(b, after + window - 1) if own or hides else min(b, low + window)
        n = 0
        for j in range(piece, len(keys)):
            n += max(min(stop[keys[j]], y if own else b) - max(start[keys[j]], low), 0)
        m, backwards = y - x, False
        if own:
            seen = low + window - 1 - x  # queries after x that see key `low`
            left = n - m + seen if seen < m - 1 else -1
            table[count] = (pair, m, n - m, 1, left)
        elif hides and m > 1:
            table[count] = (pair, m, n - m, 1, -1)
            backwards = True
        else:
            table[count] = (pair, m, n, 0, -1)
        spans[count] = (s, x, y, y, low) if backwards else (s, x, y, low, y)
        count += 1
        x = y
    return count


@nb.njit(**ENTERED)
def segment_rows(table, spans, pairs, lists, base, pieces):  # type: ignore[no-untyped-def]
    """Lists the rows of all segments in turn, (of the q list, of the kv list); base: row of each item's first token."""
    queries = keys = 0
    for i in range(len(table)):
        queries += table[i, QUERIES]
        keys += table[i, BEFORE] + (table[i, QUERIES] if table[i, DIAGONAL] else 0)
    q_out, kv_out = np.empty(queries, np.int64), np.empty(keys, np.int64)
    q_at = kv_at = 0
    for i in range(len(table)):
        s, q_from, q_to, k_from, k_to = spans[i]
        q, kv, backwards = pairs.q[table[i, PAIR]], pairs.kv[table[i, PAIR]], k_to < k_from
        if backwards:
            k_from, k_to = k_to, k_from
        q_end = _span(lists, base, pieces, q, s, (q_from, q_to), q_out, q_at)
        kv_end = _span(lists, base, pieces, kv, s, (k_from, k_to), kv_out, kv_at)
        if backwards:
            q_out[q_at:q_end] = q_out[q_at:q_end][::-1].copy()
            kv_out[kv_at:kv_end] = kv_out[kv_at:kv_end][::-1].copy()
        q_at, kv_at = q_end, kv_end
    return q_out, kv_out


@nb.njit(**INNER)
def _span(lists, base, pieces, row, s, positions, out, at):  # type: ignore[no-untyped-def]
    """Writes the rows of a list's tokens at positions (begin, end) of a sequence, from out[at] on; where they end."""
    (offsets, items), start, stop, bounds, (begin, end) = lists, pieces.start, pieces.stop, pieces.bounds, positions
    for place in range(seek(items, offsets[row], offsets[row + 1], bounds[s]), offsets[row + 1]):
        piece = items[place]
        if piece >= bounds[s + 1] or start[piece] >= end:
            break
        for position in range(max(start[piece], begin), min(stop[piece], end)):
            out[at] = base[place] + position - start[piece]
            at += 1
    return at
