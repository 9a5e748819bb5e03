"""Operations of shared sequences as rows of a table: the compiled part of nodewise_lay. Pure: no torch."""

import numba as nb
import numpy as np

from zbench.describe.model import KV, O, Q
from zbench.plans.plan import ATTEND, TRANSFER
from zbench.systems.nodewise.pace import WHOLE, bounds
from zbench.systems.nodewise.rows import needs

# What lanes serve first. An exchange of rows comes before one of groups: GPUs of other nodes wait for its keys.
ROW_OUT, GROUP_OUT, ACROSS, LOCAL, OWN, GROUP, OTHERS = range(7)
CHUNKS, TURNS = 64, 4096  # more than there are of either
COLUMNS = 9
KEY, KIND, TENSOR, SRC, DST, LO, HI, BLOCKS, KV_BLOCKS = range(COLUMNS)


@nb.njit(cache=True)
def group(ranks, heads, ids, name, cut, chunk):  # type: ignore[no-untyped-def]
    """Whole sequences whose heads some GPUs share: exchanged, attended to, sent home. int64 [9, n], by KEY.

    ranks, ids: [P], every GPU and the block it is home of; name: of the list of them all. heads: [P + 1]. cut: of a
    GPU's heads (zbench.systems.nodewise.pace). chunk: number of the first part.
    """
    ends = _ends(heads, cut)
    parts, count = len(ends) - 1, len(ranks)
    out, at = np.empty((COLUMNS, parts * count * (3 * (count - 1) + 1)), np.int64), 0
    for c in range(parts):
        lo, hi = ends[c], ends[c + 1]
        at = _exchange(out, at, ranks, ids, lo, hi, GROUP_OUT, chunk + c)
        at = _attend(out, at, ranks, lo, hi, name, name, GROUP, chunk + c, 0)
        at = _home(out, at, ranks, ids, lo, hi, GROUP, chunk + c, 1)
    return out[:, :at]


@nb.njit(cache=True)
def cut_rows(ranks, heads, ids, names, spans, keys, cut):  # type: ignore[no-untyped-def]
    """A sequence in several rows: int64 [9, n]. ranks, ids: [rows, P]; heads: [rows, P + 1]; names: [rows]; spans:
    int64 [rows, 6] (nodewise_rows). keys: int64 [rows, rows], names of the lists of keys that a row attends to
    in each turn, -1 where that turn's are another's, too."""
    count, size = ranks.shape
    most = count * size * (3 * (size - 1) + 1 + 2 * (count - 1))
    out, at = np.empty((COLUMNS, 3 * most), np.int64), 0
    for r in range(count):
        ends = _ends(heads[r], cut)
        for c in range(len(ends) - 1):
            lo, hi = ends[c], ends[c + 1]
            at = _exchange(out, at, ranks[r], ids[r], lo, hi, ROW_OUT, c)
            at = _attend(out, at, ranks[r], lo, hi, names[r], names[r], OWN, c, 0)
            for turn in range(1, count):
                other = (r - turn) % count
                if needs(spans[r], spans[other]):
                    for p in range(size):
                        if hi[p] > lo[p]:
                            key = (ACROSS * CHUNKS + c) * TURNS + turn
                            row = (key, TRANSFER, KV, ranks[other, p], ranks[r, p], lo[p], hi[p], names[other], -1)
                            at = _put(out, at, row)
                if keys[r, turn] != -1:
                    at = _attend(out, at, ranks[r], lo, hi, names[r], keys[r, turn], OTHERS, c, turn)
            at = _home(out, at, ranks[r], ids[r], lo, hi, OTHERS, c, count)
    return out[:, :at]


@nb.njit(cache=True)
def local(ranks, ids, num_heads):  # type: ignore[no-untyped-def]
    """Blocks of whole sequences on one GPU each, [n]: int64 [9, n]."""
    out = np.empty((COLUMNS, len(ranks)), np.int64)
    for i in range(len(ranks)):
        key = LOCAL * CHUNKS * TURNS
        _put(out, i, (key, ATTEND, -1, ranks[i], ranks[i], 0, num_heads, ids[i], ids[i]))
    return out


@nb.njit(cache=True)
def _ends(heads, cut):  # type: ignore[no-untyped-def]
    """[parts + 1, P]: where every GPU's parts of its heads end. Who has all heads exchanges none, and cuts none."""
    ends, count = bounds(cut if len(heads) > 2 else WHOLE), len(heads) - 1
    out = np.empty((len(ends), count), np.int64)
    for c in range(len(ends)):
        for p in range(count):
            out[c, p] = heads[p] + int(np.floor((heads[p + 1] - heads[p]) * ends[c] + 0.5))
    return out


@nb.njit(cache=True)
def _put(out, at, row):  # type: ignore[no-untyped-def]
    for column in range(COLUMNS):
        out[column, at] = row[column]
    return at + 1


@nb.njit(cache=True)
def _partner(here, turn, count):  # type: ignore[no-untyped-def]
    """As zbench.plans.patterns.partner."""
    return here ^ turn if count & (count - 1) == 0 else (here + turn) % count


@nb.njit(cache=True)
def _attend(out, at, ranks, lo, hi, q, kv, phase, chunk, turn):  # type: ignore[no-untyped-def]
    key = (phase * CHUNKS + chunk) * TURNS + turn
    for p in range(len(ranks)):
        if hi[p] > lo[p]:
            at = _put(out, at, (key, ATTEND, -1, ranks[p], ranks[p], lo[p], hi[p], q, kv))
    return at


@nb.njit(cache=True)
def _exchange(out, at, ranks, ids, lo, hi, phase, chunk):  # type: ignore[no-untyped-def]
    """All-to-all, in rounds in which everybody sends and receives once; kv first, as other nodes wait for it."""
    for order, tensor in enumerate((KV, Q)):
        key = (phase * CHUNKS + chunk) * TURNS + order
        for turn in range(1, len(ranks)):
            for here in range(len(ranks)):
                to = _partner(here, turn, len(ranks))
                if hi[to] > lo[to]:
                    at = _put(out, at, (key, TRANSFER, tensor, ranks[here], ranks[to], lo[to], hi[to], ids[here], -1))
    return at


@nb.njit(cache=True)
def _home(out, at, ranks, ids, lo, hi, phase, chunk, order):  # type: ignore[no-untyped-def]
    key = (phase * CHUNKS + chunk) * TURNS + order
    for turn in range(1, len(ranks)):
        for here in range(len(ranks)):
            to = _partner(here, turn, len(ranks))
            if hi[here] > lo[here]:
                at = _put(out, at, (key, TRANSFER, O, ranks[here], ranks[to], lo[here], hi[here], ids[to], -1))
    return at


@nb.njit(cache=True)
def blocks(seq, start, stop, share):  # type: ignore[no-untyped-def]
    """Pieces [start, stop) of sequences, divided as `share` says: (seq, start, stop, block) of what they come to."""
    ends, cuts, total = np.cumsum(stop - start), np.empty(len(share), np.int64), 0.0
    for b in range(len(share)):
        total += share[b]
        cuts[b] = int(np.rint(total * ends[-1]))
    cuts[-1] = ends[-1]
    edges = np.unique(np.concatenate((np.zeros(1, np.int64), ends, cuts)))
    out = np.empty((4, len(edges) - 1), np.int64)
    for i in range(len(edges) - 1):
        piece = np.searchsorted(ends, edges[i], side="right")
        shift = start[piece] - (ends[piece] - (stop[piece] - start[piece]))
        out[0, i], out[1, i], out[2, i] = seq[piece], edges[i] + shift, edges[i + 1] + shift
        out[3, i] = np.searchsorted(cuts, edges[i], side="right")
    return out
