"""The attention schemes, as blocks and operations.

Two functions make them all. `ulysses_ring` runs groups of R x U ranks: all-to-all over U ranks
(each then holds a range of heads, Ulysses) and a zigzag ring over R such groups; U = 1 is ring
attention, R = 1 is Ulysses, R = U = 1 is local attention. `all_gather` brings every rank of a group
all keys and values (Llama 3's context parallelism). Both work on many groups of one shape at once.

Sources: ring attention, Liu et al. 2023 (arXiv 2310.01889); the zigzag order, as in Transformer
Engine and Megatron-LM; Ulysses, Jacobs et al. 2023 (arXiv 2309.14509); the two together, USP, Fang
and Zhao 2024 (arXiv 2405.07719); the double ring, LoongTrain (arXiv 2406.18485); all-gather, the Llama 3
report (arXiv 2407.21783, section 3.3.2).
"""

import itertools
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.compiled import ENTERED
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import KV, O, Q
from zbench.describe.units import with_noun
from zbench.plans.area import is_band
from zbench.plans.build import Builder
from zbench.plans.columns import TYPES
from zbench.plans.plan import ATTEND, TRANSFER, Ints, Ops

_AT_ONCE = 1 << 16  # attends of a ring that are laid together: arrays that stay in a processor's cache


def ulysses_ring(
    builder: Builder, seqs: Ints, group: Ints, ranks: Ints, inner: int | None = None, slices: int = 1
) -> None:
    """Lays sequences over groups of R x U ranks, zigzag over R and by heads over U.

    seqs: int64 [n] sequence indices. group: int64 [n], the group of each. ranks: int64 [K, R, U].
    A token's home is in its zigzag chunk's row; each row's tokens are cut evenly over its U ranks.
    inner: rows of an inner ring, a divisor of R; None: one ring of all rows.
    slices: runs of a row's ranks; a rank attends with the queries of one run after another, each run's outputs on their
        way back beside the next attend, those of its own run last. 1: with all queries at once.

    Raises:
        ValueError: U is above the number of heads (a rank would have no head), inner does not divide R, or there are
            several slices and a ring.
    """
    num_groups, num_rows, num_cols = ranks.shape
    inner = num_rows if inner is None else inner
    if inner < 1 or num_rows % inner:
        raise ValueError(f"an inner ring of {with_noun(inner, 'rank')} does not divide a ring of {num_rows}")
    if num_cols > builder.num_heads:
        raise ValueError(
            f"an all-to-all over {with_noun(num_cols, 'rank')} needs as many heads; the model has {builder.num_heads}"
        )
    if slices > 1 and num_rows > 1:
        raise ValueError(
            f"{with_noun(slices, 'slice')} of queries take groups of one row; these are rings of {num_rows}"
        )
    seq, start, stop, row = _zigzag(builder.lengths, seqs, group, num_rows, builder.mask)
    seq, start, stop, block = _cut_rows(seq, start, stop, row, num_groups * num_rows, num_cols)
    base = builder.add_blocks(seq, start, stop, block, ranks.reshape(-1))
    ids = base + np.arange(ranks.size, dtype=np.int64).reshape(ranks.shape)
    bounds = builder.num_heads * np.arange(num_cols + 1, dtype=np.int64) // num_cols
    rows = ids[:, :, 0] if num_cols == 1 else builder.add_lists(ids.reshape(-1, num_cols)).reshape(num_groups, num_rows)
    if num_cols > 1:
        builder.add_ops(_exchange(ids, ranks, bounds, Q), _exchange(ids, ranks, bounds, KV))
    if slices > 1:
        builder.add_ops(_in_slices(builder, ids[:, 0], rows[:, 0], ranks[:, 0], bounds, slices))
    else:
        builder.add_ops(_ring(rows, ranks, bounds, inner))
        if num_cols > 1:
            builder.add_ops(_return(ids, ranks, bounds))


def local(builder: Builder, seqs: Ints, rank: Ints) -> None:
    """Lays every sequence whole on its rank (int64 [n]), one attend a rank."""
    ulysses_ring(builder, seqs, rank, np.arange(builder.num_ranks, dtype=np.int64).reshape(-1, 1, 1))


def ring(builder: Builder, seqs: Ints, group: Ints, ranks: Ints) -> None:
    """Lays sequences over zigzag rings of ranks: int64 [K, G]."""
    ulysses_ring(builder, seqs, group, ranks[:, :, None])


def _zigzag(
    lengths: Ints, seqs: Ints, group: Ints, num_rows: int, mask: Mask = CAUSAL
) -> tuple[Ints, Ints, Ints, Ints]:
    """Cuts every sequence in 2R chunks, chunk c and 2R-1-c to row c; row ids count over all groups.

    Under a window a sequence of two windows or more is balanced by itself; it is cut in R chunks, so that what a row
    sees is on the rows just before it. A shorter one is more of a triangle than of a band.

    A remainder of r tokens goes one each to r chunks in turn, continuing where the last sequence
    stopped: always starting at chunk 0 would give the first rows of a large group half as much again.
    """
    if num_rows == 1:
        return seqs, np.zeros(len(seqs), np.int64), lengths[seqs], group
    seq, start, stop, row = _chunks(lengths[seqs], seqs, group, num_rows, is_band(lengths[seqs], mask))
    return seq, start, stop, row


@nb.njit(**ENTERED)
def _chunks(lengths, seqs, group, num_rows, bands):  # type: ignore[no-untyped-def]
    """Cuts sequences: returns (sequence, start, stop, row) of every chunk that holds a token; bands: which are cut in R
    chunks, not 2R."""
    count = 0
    for i in range(len(lengths)):
        count += min(lengths[i], num_rows if bands[i] else 2 * num_rows)
    found = np.empty((4, count), np.int64)
    seq, start, stop, row = found[0], found[1], found[2], found[3]
    at, begin = 0, 0
    for i in range(len(lengths)):
        chunks = num_rows if bands[i] else 2 * num_rows
        base, rest = lengths[i] // chunks, lengths[i] % chunks
        token = 0
        for chunk in range(chunks):
            size = base + (1 if (chunk - begin) % chunks < rest else 0)
            if size:
                seq[at], start[at], stop[at] = seqs[i], token, token + size
                row[at] = group[i] * num_rows + min(chunk, 2 * num_rows - 1 - chunk)
                token += size
                at += 1
        begin = (begin + rest) % chunks
    return seq, start, stop, row


def _cut_rows(
    seq: Ints, start: Ints, stop: Ints, row: Ints, num_rows: int, num_cols: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Cuts the stream of each row's tokens evenly into num_cols blocks."""
    if num_cols == 1:
        return seq, start, stop, row
    order = np.argsort(row, kind="stable")
    seq, start, stop, row = seq[order], start[order], stop[order], row[order]
    ends = np.cumsum(stop - start)  # the rows' streams, one after another
    tokens = np.bincount(row, weights=stop - start, minlength=num_rows).astype(np.int64)
    row_begin = np.cumsum(tokens) - tokens
    cuts = (row_begin[:, None] + tokens[:, None] * np.arange(num_cols) // num_cols).reshape(-1)
    edges = np.unique(np.concatenate([[0], ends, cuts]))
    left, right = edges[:-1], edges[1:]
    piece = np.searchsorted(ends, left, side="right")
    block = np.searchsorted(cuts, left, side="right") - 1
    shift = start[piece] - (ends[piece] - (stop - start)[piece])
    return seq[piece], left + shift, right + shift, block


def _ring(rows: Ints, ranks: Ints, bounds: Ints, inner: int) -> Ops:
    """Returns the operations of R steps: kv moves on one row while each rank attends to what it has. rows: [K, R]
    lists, ranks: [K, R, U].

    The rows are windows of `inner`. Inside a window kv goes round an inner ring; when it has been round, the
    window goes on with the kv that the same row of the window before began with, sent at the start of that round.
    What a step's attends need is sent before the attends of the step before; between windows, of the lap before.
    """
    num_rows = ranks.shape[1]
    every = np.arange(num_rows, dtype=np.int64)
    sent = np.where(every % inner > 0, every - 1, every - inner)  # the step before whose attends it is
    at_once = max(_AT_ONCE // ranks.size, 1)
    columns = {name: np.empty((2 * num_rows - 1) * ranks.size, wanted) for name, wanted in TYPES.items()}
    end = 0
    for first in range(0, num_rows, at_once):
        steps = every[first : first + at_once]
        due = every[1:][(sent[1:] >= first) & (sent[1:] < first + at_once)]
        # In rows of a whole step: what is sent before a step's attends, then these.
        order = np.argsort(np.concatenate([2 * sent[due], 2 * steps + 1]), kind="stable")
        rows_of = _step_columns(due, steps, rows, ranks, bounds, inner)
        begin, end = end, end + len(order) * ranks.size
        for name, column in columns.items():
            column[begin:end] = np.asarray(rows_of[name]).reshape(len(order), -1)[order].reshape(-1)
    return Ops(**columns)


def _step_columns(
    due: Ints, steps: Ints, rows: Ints, ranks: Ints, bounds: Ints, inner: int
) -> dict[str, NDArray[np.signedinteger[Any]]]:
    """Returns the columns of the transfers that bring what the steps `due` attend to, and of the attends of `steps`."""
    num_groups, num_rows, num_cols = ranks.shape
    both = np.concatenate([due, steps])
    shape = (len(both), num_groups, num_rows, num_cols)
    place = np.arange(num_rows, dtype=np.int32)
    lap, turn = (both // inner).astype(np.int32)[:, None], (both % inner).astype(np.int32)[:, None]
    kv_row = (place // inner - lap) % (num_rows // inner) * inner + (place % inner - turn) % inner  # [S, R]
    kv = np.broadcast_to(rows.astype(np.int32)[:, kv_row].swapaxes(0, 1)[..., None], shape)
    inside, outside = place // inner * inner + (place - 1) % inner, (place - inner) % num_rows
    sender = np.where(turn[: len(due)] > 0, inside, outside)
    dst = np.broadcast_to(ranks.astype(np.int32), shape)
    src, queries = dst.copy(), kv.copy()
    src[: len(due)] = ranks[:, sender].swapaxes(0, 1)  # [K, S, R, U] -> [S, K, R, U]
    queries[len(due) :] = rows[:, :, None]
    is_attend = np.broadcast_to((np.arange(len(both)) >= len(due))[:, None, None, None], shape)
    return {
        "kind": np.where(is_attend, np.int8(ATTEND), np.int8(TRANSFER)),
        "tensor": np.where(is_attend, np.int8(-1), np.int8(KV)),
        "src": src,
        "dst": dst,
        "head_lo": np.broadcast_to(bounds[:-1].astype(np.int16), shape),
        "head_hi": np.broadcast_to(bounds[1:].astype(np.int16), shape),
        "blocks": queries,
        "kv_blocks": np.where(is_attend, kv, np.int32(-1)),
        "via": np.broadcast_to(np.int16(-1), shape),
        "keep": np.broadcast_to(np.int8(0), shape),
        "collective": np.broadcast_to(np.int8(0), shape),
    }


def _exchange(ids: Ints, ranks: Ints, bounds: Ints, tensor: int) -> Ops:
    """Returns the transfers of an all-to-all inside rows: each block's head range u to the row's rank u, in rounds of
    shifted partners."""
    shift, group, row, col = (axis.reshape(-1) for axis in np.indices((ranks.shape[2] - 1, *ranks.shape)))
    to = partner(col, shift + 1, ranks.shape[2])
    return Ops.transfers(
        tensor, ranks[group, row, col], ranks[group, row, to], (bounds[to], bounds[to + 1]), ids[group, row, col]
    )


def _return(ids: Ints, ranks: Ints, bounds: Ints) -> Ops:
    """Returns the transfers of the way back: rank u's heads of o to the home of every block of its row."""
    shift, group, row, col = (axis.reshape(-1) for axis in np.indices((ranks.shape[2] - 1, *ranks.shape)))
    to = partner(col, shift + 1, ranks.shape[2])
    return Ops.transfers(
        O, ranks[group, row, col], ranks[group, row, to], (bounds[col], bounds[col + 1]), ids[group, row, to]
    )


def _in_slices(builder: Builder, ids: Ints, rows: Ints, ranks: Ints, bounds: Ints, slices: int) -> Ops:
    """Returns the attends of rows of ranks with the queries of one run of their ranks after another, and what is sent
    back after each.

    ids, ranks: [K, U]. rows: [K] lists of all keys and values of a row.
    """
    num_cols = ranks.shape[1]
    slices = min(slices, num_cols)
    cuts = num_cols * np.arange(slices + 1, dtype=np.int64) // slices
    queries = np.stack([builder.add_lists(ids[:, lo:hi]) for lo, hi in itertools.pairwise(cuts)], axis=1)
    row, col = (axis.reshape(-1) for axis in np.indices(ranks.shape))
    own = np.searchsorted(cuts, col, side="right") - 1
    rank, heads = ranks.reshape(-1), (bounds[col], bounds[col + 1])
    keys = np.repeat(rows, num_cols)
    ops = []
    for turn in range(1, slices + 1):
        run = partner(own, turn, slices) if turn < slices else own
        ops.append(Ops.attends(rank, heads, queries[row, run], keys))
        size = cuts[run + 1] - cuts[run]
        for one in range(int(size.max())):
            to = cuts[run] + (col + one) % size
            sent = (one < size) & (to != col)
            back = Ops.transfers(O, rank, ranks[row, to], heads, ids[row, to])
            ops.append(back.take(sent))
    return Ops.concatenate(ops)


def sequence_zigzag(lengths: Ints, num_rows: int, mask: Mask = CAUSAL) -> tuple[Ints, Ints, Ints, Ints]:
    """Cuts every sequence in 2R zigzag chunks (under a window as _zigzag says); returns the pieces (seq, start, stop,
    owner)."""
    seqs = np.arange(len(lengths), dtype=np.int64)
    return _zigzag(lengths, seqs, np.zeros_like(seqs), num_rows, mask)


def pack_zigzag(lengths: Ints, num_rows: int, mask: Mask = CAUSAL) -> tuple[Ints, Ints, Ints, Ints]:
    """Cuts the sequences, one after another, as a single one would be; returns the pieces (seq, start, stop, owner)."""
    whole = np.zeros(1, np.int64)
    _, left, right, owner = _zigzag(lengths.sum()[None], whole, whole, num_rows, mask)
    ends = np.cumsum(lengths)
    edges = np.union1d(np.concatenate([[0], ends]), right)
    begin, end = edges[:-1], edges[1:]
    seq = np.searchsorted(ends, begin, side="right")
    offset = ends[seq] - lengths[seq]
    return seq, begin - offset, end - offset, owner[np.searchsorted(left, begin, side="right") - 1]


def all_gather(builder: Builder, seq: Ints, start: Ints, stop: Ints, owner: Ints, ranks: Ints) -> None:
    """Lays pieces so that every rank gets the kv of all blocks, then attends once with its own q.

    seq, start, stop, owner: int64 [n] pieces and the index (into ranks.reshape(-1)) of the rank that
    owns each. ranks: int64 [N, P], P ranks in each of N nodes. A block crosses to each other node
    once, along a ring of the ranks with the same place in their nodes, and is spread inside the node
    from there; sending it to every rank directly would move P times the bytes through the NICs.
    """
    num_nodes, per_node = ranks.shape
    base = builder.add_blocks(seq, start, stop, owner, ranks.reshape(-1))
    ids = base + np.arange(ranks.size, dtype=np.int64).reshape(ranks.shape)
    all_heads = (0, builder.num_heads)
    hop, node, place = (axis.reshape(-1) for axis in np.indices((num_nodes, num_nodes, per_node)))
    crossing = hop > 0  # hop h brings node n the block of node n - h
    to = ranks[node, place]
    held = ids[(node - hop) % num_nodes, place]
    sender = ranks[(node - 1) % num_nodes, place][crossing]
    across = Ops.transfers(KV, sender, to[crossing], all_heads, held[crossing], collective=True)
    shift = np.arange(1, per_node, dtype=np.int64)
    target = ranks[node[:, None], (place[:, None] + shift) % per_node].reshape(-1)
    count = len(shift)
    inside = Ops.transfers(KV, np.repeat(to, count), target, all_heads, np.repeat(held, count), collective=True)
    # In rounds of one message a rank: a rank's whole list at once would have all others wait for the same rank.
    turn = np.concatenate(
        [hop[crossing] * 2 * per_node, np.repeat(hop * 2 * per_node, count) + np.tile(shift, len(hop))]
    )
    builder.add_ops(Ops.concatenate([across, inside]).take(np.argsort(turn, kind="stable")))
    everything = builder.add_lists(ids.reshape(1, -1))
    builder.add_ops(Ops.attends(ranks.reshape(-1), all_heads, ids.reshape(-1), np.repeat(everything, ranks.size)))


def partner(col: Ints, turn: Ints | int, count: int) -> Ints:
    """Returns whom each of `count` ranks sends to in round `turn`: everybody sends and receives one message a round.

    Powers of two pair ranks off (exclusive or), so that a round's partners are all in the same node or all
    in another: rounds of shifted partners have all ranks of a node call on the same rank of the next one first.
    """
    return col ^ turn if count & (count - 1) == 0 else (col + turn) % count
