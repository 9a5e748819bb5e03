"""Lays placed sequences as a plan: exchanges of heads in chunks, keys between rows, attends in between. Pure: no torch.

Heads are attended to in chunks, so that one chunk's exchange hides behind another's attends. Keys go from row to row
between GPUs of the same place: across nodes every NIC then carries its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from systems.nodewise_cuts import needs
from systems.nodewise_pace import BACKWARD, FORWARD, WHOLE, bounds, row_cut
from zbench.build import Builder
from zbench.model import KV, O, Q
from zbench.patterns import partner
from zbench.plan import ATTEND, TRANSFER, Ints, Ops

Floats = NDArray[np.float64]
Part = tuple[Ints, Ints, NDArray[np.bool_]]  # of a chunk: every GPU's first head, the one after its last, any at all
# What lanes serve first. An exchange of rows comes before one of groups: GPUs of other nodes wait for its keys.
ROW_OUT, GROUP_OUT, ACROSS, LOCAL, OWN, GROUP, OTHERS = range(7)
CHUNKS, TURNS = 64, 4096  # more than there are of either
KEY, KIND, TENSOR, SRC, DST, LO, HI, BLOCKS, KV_BLOCKS = range(9)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Pieces [start, stop) of sequences whose heads some GPUs share: whole sequences of a node, or a row of a cut one.

    ranks, share: [P], and how much of the tokens each is home of. heads: int64 [P + 1], bounds of each one's heads.
    """

    seq: Ints
    start: Ints
    stop: Ints
    ranks: Ints
    share: Floats
    heads: Ints

    @staticmethod
    def of_row(row: Ints, ranks: Ints, share: Floats, heads: Ints) -> "Shared":
        """row: one of Placement.rows (systems.nodewise_cuts)."""
        pieces = row[2:].reshape(2, 2)
        pieces = pieces[pieces[:, 1] > pieces[:, 0]]
        return Shared(np.full(len(pieces), row[0]), pieces[:, 0], pieces[:, 1], ranks, share, heads)

    @staticmethod
    def joined(rows: Sequence["Shared"], num_heads: int) -> "Shared":
        """Rows as one, of all their GPUs, which share heads evenly."""
        if len(rows) == 1:
            return rows[0]
        seq, start, stop, ranks = (
            np.concatenate([getattr(row, name) for row in rows]) for name in ("seq", "start", "stop", "ranks")
        )
        share = np.concatenate([row.share * (row.stop - row.start).sum() for row in rows])
        share /= share.sum()
        order = np.argsort(start)
        heads = num_heads * np.arange(len(ranks) + 1) // len(ranks)
        return Shared(seq, start[order], stop[order], ranks, share, heads)


class Layer:
    """Collects a plan's operations with the turns at which lanes serve them; `done` gives them to the builder, those of
    the forward (keep 0) and then, as a forward too, those of the backward (keep 1).

    chunks: in how many parts the heads of a GPU are exchanged and attended to at most, in rows of cut sequences.
    """

    def __init__(self, builder: Builder, chunks: int) -> None:
        self.builder, self.chunks = builder, chunks
        self.tables: tuple[list[Ints], list[Ints]] = ([], [])
        self._direction = FORWARD

    def done(self) -> None:
        for direction, rows in enumerate(self.tables):
            table = np.concatenate(rows)
            table = table[np.argsort(table[:, KEY], kind="stable")]
            kind, tensor, src, dst, lo, hi, blocks, kv = (np.ascontiguousarray(column) for column in table.T[KIND:])
            none = np.full(len(table), -1, np.int64)
            self.builder.add_ops(Ops(kind, tensor, src, dst, lo, hi, blocks, kv, none, np.full_like(none, direction)))

    def local(self, seqs: Ints, rank: Ints) -> None:
        """Whole sequences [n] on their ranks, one attend a rank."""
        used, block = np.unique(rank, return_inverse=True)
        if len(used):
            zero = np.zeros_like(seqs)
            ids = self.builder.add_blocks(seqs, zero, self.builder.lengths[seqs], block, used) + np.arange(len(used))
            for self._direction in (FORWARD, BACKWARD):
                self._attend(used, (0, self.builder.num_heads), ids, ids, LOCAL)

    def groups(self, groups: Sequence[Shared], cuts: Ints) -> None:
        """Whole sequences whose heads a node shares: exchanged, attended to, sent home, group after group.

        cuts: [2, G], of every group's heads in either direction (systems.nodewise_pace).
        """
        laid = [self._blocks(of) for of in groups]
        for self._direction in (FORWARD, BACKWARD):
            chunk = 0
            for of, (ids, names), cut in zip(groups, laid, cuts[self._direction], strict=True):
                for lo, hi, some in self._parts(of, cut):
                    self._exchange(of, ids, lo, hi, GROUP_OUT, chunk)
                    self._attend(of.ranks[some], (lo[some], hi[some]), names, names, GROUP, chunk)
                    self._home(of, ids, lo, hi, GROUP, chunk, 1)
                    chunk += 1

    def cut(self, rows: Sequence[Shared], spans: Ints) -> None:
        """A sequence in several rows, of as many GPUs each; spans: the rows as Placement.rows has them."""
        laid = [self._blocks(row) for row in rows]
        for self._direction in (FORWARD, BACKWARD):
            cut = row_cut(self.chunks, self._direction)
            for at, row in enumerate(rows):
                for chunk, part in enumerate(self._parts(row, cut)):
                    self._row(rows, spans, laid, at, chunk, part)

    def _row(
        self, rows: Sequence[Shared], spans: Ints, laid: list[tuple[Ints, int]], at: int, chunk: int, part: Part
    ) -> None:
        """One chunk of one of the rows."""
        row, (ids, names), (lo, hi, some), count = rows[at], laid[at], part, len(rows)
        ranks, heads = row.ranks[some], (lo[some], hi[some])
        self._exchange(row, ids, lo, hi, ROW_OUT, chunk)
        self._attend(ranks, heads, names, names, OWN, chunk)
        for turn in range(1, count):
            other = (at - turn) % count
            if needs(spans[at], spans[other]):
                kv = laid[other][1]
                self._send(KV, rows[other].ranks[some], ranks, heads, kv, ACROSS, chunk, turn)
                self._attend(ranks, heads, names, kv, OTHERS, chunk, turn)
        self._home(row, ids, lo, hi, OTHERS, chunk, count)

    def _blocks(self, of: Shared) -> tuple[Ints, int]:
        """(one block a GPU, the name of the list of them all)."""
        sizes = of.stop - of.start
        ends = np.cumsum(sizes)
        cuts = np.round(np.cumsum(of.share) * ends[-1]).astype(np.int64)
        cuts[-1] = ends[-1]
        edges = np.unique(np.concatenate([[0], ends, cuts]))
        left, right = edges[:-1], edges[1:]
        piece = np.searchsorted(ends, left, side="right")
        shift = of.start[piece] - (ends[piece] - sizes[piece])
        block = np.searchsorted(cuts, left, side="right")
        base = self.builder.add_blocks(of.seq[piece], left + shift, right + shift, block, of.ranks)
        ids = base + np.arange(len(of.ranks))
        return ids, int(ids[0]) if len(ids) == 1 else int(self.builder.add_lists(ids.reshape(1, -1))[0])

    def _parts(self, of: Shared, cut: int) -> list[Part]:
        ends = bounds(cut if len(of.ranks) > 1 else WHOLE)  # who has all heads needs no exchange
        lo, width = of.heads[:-1], np.diff(of.heads)
        heads = [lo + np.floor(width * end + 0.5).astype(np.int64) for end in ends.tolist()]
        return [(a, b, b > a) for a, b in pairwise(heads)]

    def _exchange(self, of: Shared, ids: Ints, lo: Ints, hi: Ints, phase: int, chunk: int) -> None:
        if len(ids) > 1:
            here, to = _rounds(len(ids))
            some = (hi > lo)[to]
            here, to = here[some], to[some]
            for turn, tensor in enumerate((KV, Q)):  # kv first: other nodes wait for it
                self._send(tensor, of.ranks[here], of.ranks[to], (lo[to], hi[to]), ids[here], phase, chunk, turn)

    def _home(self, of: Shared, ids: Ints, lo: Ints, hi: Ints, phase: int, chunk: int, turn: int) -> None:
        if len(ids) > 1:
            here, to = _rounds(len(ids))
            some = (hi > lo)[here]
            here, to = here[some], to[some]
            self._send(O, of.ranks[here], of.ranks[to], (lo[here], hi[here]), ids[to], phase, chunk, turn)

    def _send(
        self, tensor: int, src: Ints, dst: Ints, heads: tuple[Ints, Ints], blocks: Ints | int, phase: int, chunk: int,
        turn: int,
    ) -> None:  # fmt: skip
        self._add(TRANSFER, tensor, src, dst, heads, blocks, -1, phase, chunk, turn)

    def _attend(
        self, rank: Ints, heads: tuple[Ints | int, Ints | int], q: Ints | int, kv: Ints | int, phase: int,
        chunk: int = 0, turn: int = 0,
    ) -> None:  # fmt: skip
        self._add(ATTEND, -1, rank, rank, heads, q, kv, phase, chunk, turn)

    def _add(
        self, kind: int, tensor: int, src: Ints, dst: Ints, heads: tuple[Ints | int, Ints | int], blocks: Ints | int,
        kv_blocks: Ints | int, phase: int, chunk: int, turn: int,
    ) -> None:  # fmt: skip
        rows = np.empty((len(src), KV_BLOCKS + 1), np.int64)
        values = ((phase * CHUNKS + chunk) * TURNS + turn, kind, tensor, src, dst, *heads, blocks, kv_blocks)
        for column, value in enumerate(values):
            rows[:, column] = value
        self.tables[self._direction].append(rows)


@cache
def _rounds(count: int) -> tuple[Ints, Ints]:
    """(here, to) of an all-to-all, in rounds in which everybody sends and receives once."""
    turn, here = (axis.reshape(-1) for axis in np.indices((count - 1, count)))
    return here, partner(here, turn + 1, count)
