"""Lists the rows that an attend gives its kernel, and how they are cut into segments.

zbench.plans.area counts an attend's segments; this module lists them. A segment is m queries of one sequence
against n keys that all of them see, and causally each other where it is `diagonal` (its keys are then the
n and after them the m). Rows are numbered in **list order**: block after block as the list has them, the
pieces of a block by (sequence, start). What travels, and what a rank holds, is in this order too.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.compiled import ENTERED
from zbench.describe.mask import Mask
from zbench.plans.plan import Ints, Plan
from zbench.plans.walk import ListPairs, PieceLists, PieceSizes, seek
from zbench.plans.window import PieceColumns, cut, segment_rows


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of one (q list, kv list), in order.

    q_rows: int64 [queries] rows of the q list, kv_rows: int64 [keys] rows of the kv list, both segment after segment.
    queries, before: int64 [num_segments], m and n of the module's docstring. diagonal: bool [num_segments].
    left: int64 [num_segments], keys to the left of the diagonal that ends at the bottom right which are seen, -1: all;
        others than -1 under a window alone (zbench.plans.window), where the segment is diagonal.
    """

    q_rows: Ints
    kv_rows: Ints
    queries: Ints
    before: Ints
    diagonal: Flags
    left: Ints

    @property
    def keys(self) -> Ints:
        """The keys of each segment, int64 [num_segments]."""
        return np.asarray(self.before + np.where(self.diagonal, self.queries, 0), np.int64)


def segments(plan: Plan, q_list: Ints, kv_list: Ints) -> list[Segments]:
    """Cuts the rows of every pair of lists, int64 [num_pairs] each; a pair without a visible key has no segment."""
    used, inverse = np.unique(np.concatenate([q_list, kv_list]), return_inverse=True)
    offsets, items, base = _pieces(plan, used)
    blocks = plan.blocks
    sizes = blocks.stop - blocks.start
    bounds = np.searchsorted(blocks.seq, np.arange(len(plan.lengths) + 1)).astype(np.int64)
    q, kv = inverse[: len(q_list)].astype(np.int64), inverse[len(q_list) :].astype(np.int64)
    pairs, lists = ListPairs(q, kv), PieceLists(offsets, items)
    mask = plan.mask.for_lengths(plan.lengths)
    if mask.window:
        return _windowed(plan, mask.window, pairs, lists, base, bounds)
    arguments = (pairs, lists, base, PieceSizes(blocks.seq, sizes, bounds), mask.causal)
    nothing = np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    counts = _list(*arguments, nothing, False)
    ends = np.concatenate([np.zeros((1, 3), np.int64), np.cumsum(counts, axis=0)])
    table = np.zeros((ends[-1, 0], 3), np.int64), np.empty(ends[-1, 1], np.int64), np.empty(ends[-1, 2], np.int64)
    _list(*arguments, table, True)
    out = []
    for (s0, q0, k0), (s1, q1, k1) in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        queries, before, diagonal = table[0][s0:s1].T
        out.append(Segments(table[1][q0:q1], table[2][k0:k1], queries, before, diagonal == 1, 0 * before - 1))
    return out


def whole_sequences(lengths: Ints, mask: Mask) -> tuple[Ints, Ints, Flags, Ints]:
    """Returns (queries, before, diagonal, left) of whole sequences, [n], each by itself, as in Segments."""
    causal, none = np.full(len(lengths), mask.causal), 0 * lengths
    left = np.where((mask.window > 0) & (lengths > mask.window), mask.window - 1, -1)
    return lengths, none if mask.causal else lengths, causal, left


def _windowed(plan: Plan, window: int, pairs: ListPairs, lists: PieceLists, base: Ints, bounds: Ints) -> list[Segments]:
    """Cuts the rows of pairs under a window, as `segments` does. lists, base: as _pieces gives them."""
    blocks = plan.blocks
    pieces = PieceColumns(blocks.seq, blocks.start, blocks.stop, bounds)
    table, spans = cut(pairs, lists, pieces, plan.lengths, window)
    q_rows, kv_rows = segment_rows(table, spans, pairs, lists, base, pieces)
    every = Segments(q_rows, kv_rows, table[:, 1], table[:, 2], table[:, 3] == 1, table[:, 4])
    ends = np.searchsorted(table[:, 0], np.arange(len(pairs[0]) + 1))
    q_ends, kv_ends = (np.concatenate([[0], np.cumsum(count)])[ends] for count in (every.queries, every.keys))
    out = []
    for i in range(len(pairs[0])):
        some = slice(ends[i], ends[i + 1])
        q_part, kv_part = q_rows[q_ends[i] : q_ends[i + 1]], kv_rows[kv_ends[i] : kv_ends[i + 1]]
        parts = every.queries[some], every.before[some], every.diagonal[some], every.left[some]
        out.append(Segments(q_part, kv_part, *parts))
    return out


def _pieces(plan: Plan, used: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns (offsets, pieces, rows): of each used list the pieces by (sequence, start), and where each begins in the
    list."""
    lists, pieces = plan.lists, plan.blocks.pieces
    counts = lists.lengths[used]
    block = lists.items[_runs(lists.offsets[used], counts)]
    piece_counts = pieces.lengths[block]
    piece = pieces.items[_runs(pieces.offsets[block], piece_counts)]
    row = np.repeat(np.repeat(np.arange(len(used)), counts), piece_counts)
    size = (plan.blocks.stop - plan.blocks.start)[piece]
    ends = np.cumsum(size)
    offsets = np.searchsorted(row, np.arange(len(used) + 1)).astype(np.int64)
    begin = np.concatenate([[0], ends])[offsets[:-1]]  # tokens before each list
    base = ends - size - begin[row]
    order = np.lexsort((piece, row))
    return offsets, piece[order], base[order]


def _runs(starts: Ints, counts: Ints) -> Ints:
    """Returns the numbers start, start + 1, ... of every run, one run after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - counts), counts), np.int64)


@nb.njit(**ENTERED)
def _list(pairs, lists, base, pieces, causal, out, fill):  # type: ignore[no-untyped-def]
    """Walks every pair as zbench.plans.walk does; returns [num_pairs, 3] counts of segments, queries and keys.

    With `fill`, writes `out`: a table (queries, keys before, diagonal), and rows of the q and of the kv lists.
    """
    (q_rows, kv_rows), (offsets, items), (seq, sizes, bounds) = pairs, lists, pieces
    table, q_out, kv_out = out
    counts = np.zeros((len(q_rows), 3), np.int64)
    s_at = q_at = k_at = 0
    for pair in range(len(q_rows)):
        k, k_end = offsets[kv_rows[pair]], offsets[kv_rows[pair] + 1]
        at, q_end = offsets[q_rows[pair]], offsets[q_rows[pair] + 1]
        while at < q_end:
            s = seq[items[at]]
            k = seek(items, k, k_end, bounds[s])
            own = seek(items, k, k_end, items[at] if causal else bounds[s + 1])
            diagonal = causal and own < k_end and items[own] == items[at]
            seen = 0
            for j in range(k, own):
                seen += sizes[items[j]]
            if seen == 0 and not diagonal:
                at += 1
                continue
            m, first = sizes[items[at]], at
            at += 1
            end = own + 1 if diagonal else own  # of the keys that this segment reads
            while at < q_end and seq[items[at]] == s:  # later pieces join while their keys line up
                nxt = seek(items, end, k_end, items[at] if causal else bounds[s + 1])
                touches = causal and nxt < k_end and items[nxt] == items[at]
                if touches != diagonal or nxt != end:
                    break
                m += sizes[items[at]]
                end = nxt + 1 if touches else nxt
                at += 1
            if fill:
                table[s_at + counts[pair, 0]] = (m, seen, 1 if diagonal else 0)
                for j in range(first, at):
                    for token in range(sizes[items[j]]):
                        q_out[q_at] = base[j] + token
                        q_at += 1
                for j in range(k, end):
                    for token in range(sizes[items[j]]):
                        kv_out[k_at] = base[j] + token
                        k_at += 1
            counts[pair, 0] += 1
            counts[pair, 1] += m
            counts[pair, 2] += seen + (m if diagonal else 0)
        s_at += counts[pair, 0]
    return counts
