"""Lays placed sequences as a plan: exchanges of heads in chunks, keys between rows, attends in between. Pure: no torch.

Heads are attended to in chunks, so that one chunk's exchange hides behind another's attends. Keys go from row to row
between GPUs of the same place: across nodes every NIC then carries its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Ops
from zbench.systems.nodewise import ops as compiled
from zbench.systems.nodewise.ops import KEY, KIND
from zbench.systems.nodewise.pace import BACKWARD, FORWARD, bounds, row_cut
from zbench.systems.nodewise.rows import needs

Floats = NDArray[np.float64]
PAIR = 2  # other rows whose keys are one call (a choice: three or four were as good)


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
        """row: one of Placement.rows (zbench.systems.nodewise.cuts)."""
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
    pairs: whether rows attend to the keys of two others in one call of the backward, which has them from the start.
    """

    def __init__(self, builder: Builder, chunks: int, pairs: bool = False) -> None:
        self.builder, self.chunks, self.pairs = builder, chunks, pairs
        self.tables: tuple[list[Ints], list[Ints]] = ([], [])

    def done(self) -> None:
        for direction, tables in enumerate(self.tables):
            table = np.concatenate(tables, axis=1)
            kind, tensor, src, dst, lo, hi, blocks, kv = table[KIND:, np.argsort(table[KEY], kind="stable")]
            none, zero = np.full_like(kind, -1), np.zeros_like(kind)
            self.builder.add_ops(Ops(kind, tensor, src, dst, lo, hi, blocks, kv, none, zero + direction, zero))

    def local(self, seqs: Ints, rank: Ints) -> None:
        """Whole sequences [n] on their ranks, one attend a rank."""
        used, block = np.unique(rank, return_inverse=True)
        if len(used):
            zero = np.zeros_like(seqs)
            ids = self.builder.add_blocks(seqs, zero, self.builder.lengths[seqs], block, used) + np.arange(len(used))
            for direction in (FORWARD, BACKWARD):
                self.tables[direction].append(compiled.local(used, ids, self.builder.num_heads))

    def groups(self, groups: Sequence[Shared], cuts: Ints) -> None:
        """Whole sequences whose heads a node shares: exchanged, attended to, sent home, group after group.

        cuts: [2, G], of every group's heads in either direction (zbench.systems.nodewise.pace).
        """
        laid = [self._blocks(of) for of in groups]
        for direction in (FORWARD, BACKWARD):
            chunk = 0
            for of, (ids, name), cut in zip(groups, laid, cuts[direction].tolist(), strict=True):
                self.tables[direction].append(compiled.group(of.ranks, of.heads, ids, name, cut, chunk))
                chunk += len(bounds(cut)) - 1

    def cut(self, rows: Sequence[Shared], spans: Ints) -> None:
        """A sequence in several rows, of as many GPUs each; spans: the rows as Placement.rows has them."""
        if not self.builder.mask.causal:
            spans = np.concatenate(
                [spans[:, :2], 0 * spans[:, 2:3] - 1, spans[:, 3:]], axis=1
            )  # begin before all queries
        laid = [self._blocks(row) for row in rows]
        ids, names = np.stack([one for one, _ in laid]), np.array([name for _, name in laid], np.int64)
        ranks, heads = np.stack([row.ranks for row in rows]), np.stack([row.heads for row in rows])
        for direction in (FORWARD, BACKWARD):
            cut = row_cut(self.chunks, direction)
            keys = self._keys(ids, names, spans, PAIR if self.pairs and direction == BACKWARD else 1)
            self.tables[direction].append(compiled.cut_rows(ranks, heads, ids, names, spans, keys, cut))

    def _keys(self, ids: Ints, names: Ints, spans: Ints, most: int) -> Ints:
        """For compiled.cut_rows: of `most` other rows that a row sees the last one's turn has all keys."""
        count = len(names)
        keys = np.full((count, count), -1, np.int64)
        for r in range(count):
            turns = [turn for turn in range(1, count) if needs(spans[r], spans[r - turn])]
            for some in (turns[at : at + most] for at in range(0, len(turns), most)):
                others = r - np.array(some)
                one = len(some) == 1
                keys[r, some[-1]] = names[others[0]] if one else self.builder.add_lists(ids[others].reshape(1, -1))[0]
        return keys

    def _blocks(self, of: Shared) -> tuple[Ints, int]:
        """(one block a GPU, the name of the list of them all)."""
        seq, start, stop, block = compiled.blocks(of.seq, of.start, of.stop, of.share)
        base = self.builder.add_blocks(seq, start, stop, block, of.ranks)
        ids = base + np.arange(len(of.ranks))
        return ids, int(ids[0]) if len(ids) == 1 else int(self.builder.add_lists(ids.reshape(1, -1))[0])
