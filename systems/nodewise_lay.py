"""Lays a placement as a plan: local attends around shared ones, heads in chunks, keys between nodes. Pure: no torch.

A GPU starts with most of its local sequences while q and kv of shared ones are exchanged, and ends with the rest of
them while o goes home. Heads are attended to in chunks, so that one chunk's exchange hides behind another's attends.
Across nodes a GPU sends the keys of its heads to the GPU with the same place: every NIC carries its part.
"""

from dataclasses import dataclass

import numpy as np

from systems.nodewise_cuts import needs
from zbench.build import Builder
from zbench.model import KV, O, Q
from zbench.patterns import partner
from zbench.plan import Ints, Ops


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Pieces whose heads some GPUs share: a group of whole sequences, or a row of a cut one.

    ranks, share: [P], and how much of the tokens each is home of. heads: int64 [P + 1].
    """

    seq: Ints
    start: Ints
    stop: Ints
    ranks: Ints
    share: np.ndarray
    heads: Ints

    @staticmethod
    def of_row(row: Ints, ranks: Ints, share: np.ndarray, heads: Ints) -> "Shared":
        """row: as in zbench's Placement.rows."""
        pieces = row[2:].reshape(2, 2)
        pieces = pieces[pieces[:, 1] > pieces[:, 0]]
        return Shared(np.full(len(pieces), row[0]), pieces[:, 0], pieces[:, 1], ranks, share, heads)


# Order in which operations stand: a lane serves them so.
ROW_OUT, GROUP_OUT, ACROSS, EARLY, OWN, GROUP, OTHERS, LATE = range(8)


class Layer:
    """Collects a plan's operations with their turns; `done` hands them to the builder in order."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.parts: list[tuple[tuple[int, int, int], Ops]] = []

    def add(self, ops: Ops, phase: int, chunk: int = 0, turn: int = 0) -> None:
        if len(ops):
            self.parts.append(((phase, chunk, turn), ops))

    def done(self) -> None:
        for _, ops in sorted(self.parts, key=lambda part: part[0]):
            self.builder.add_ops(ops)

    def local(self, seqs: Ints, rank: Ints, late: np.ndarray) -> None:
        """Whole sequences [n] on their ranks; `late` ones are attended to last."""
        for phase, some in ((EARLY, ~late), (LATE, late)):
            used, block = np.unique(rank[some], return_inverse=True)
            if not len(used):
                continue
            mine = seqs[some]
            base = self.builder.add_blocks(mine, np.zeros_like(mine), self.builder.lengths[mine], block, used)
            ids = base + np.arange(len(used))
            self.add(Ops.attends(used, (0, self.builder.num_heads), ids, ids), phase)

    def group(self, of: Shared, chunks: int) -> None:
        """Whole sequences whose heads a node shares: exchanged, attended to once, sent home."""
        ids, rows = self._blocks(of)
        for chunk in range(chunks):
            lo, hi = _bounds(of.heads, chunk, chunks)
            self._exchange(of, ids, lo, hi, chunk, GROUP_OUT)
            some = hi > lo
            attends = Ops.attends(of.ranks[some], (lo[some], hi[some]), rows[some], rows[some])
            self.add(attends, GROUP, chunk)
            self._home(of, ids, lo, hi, GROUP, chunk)

    def cut(self, rows: list[Shared], spans: Ints, chunks: int) -> None:
        """A sequence in several rows, of as many GPUs each: keys go from row to row between GPUs of the same place.

        spans: its rows of Placement.rows, in the same order.
        """
        laid = [self._blocks(row) for row in rows]
        count = len(rows)
        for chunk in range(chunks):
            for at, row in enumerate(rows):
                lo, hi = _bounds(row.heads, chunk, chunks)
                some = hi > lo
                heads = lo[some], hi[some]
                ids, names = laid[at]
                self._exchange(row, ids, lo, hi, chunk, ROW_OUT)
                self.add(Ops.attends(row.ranks[some], heads, names[some], names[some]), OWN, chunk)
                for turn in range(1, count):
                    other = (at - turn) % count
                    if needs(spans[at], spans[other]):
                        kv = laid[other][1][some]
                        brought = Ops.transfers(KV, rows[other].ranks[some], row.ranks[some], heads, kv)
                        self.add(brought, ACROSS, chunk, turn)
                        self.add(Ops.attends(row.ranks[some], heads, names[some], kv), OTHERS, chunk, 2 * turn)
                self._home(row, ids, lo, hi, OTHERS, chunk, 2 * count)

    def _blocks(self, of: Shared) -> tuple[Ints, Ints]:
        """One block a GPU, and the name of the list of them all, a GPU."""
        sizes = of.stop - of.start
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        cuts = np.round(np.cumsum(of.share) * total).astype(np.int64)
        cuts[-1] = total
        edges = np.unique(np.concatenate([[0], ends, cuts]))
        left, right = edges[:-1], edges[1:]
        piece = np.searchsorted(ends, left, side="right")
        shift = of.start[piece] - (ends[piece] - sizes[piece])
        block = np.searchsorted(cuts, left, side="right")
        base = self.builder.add_blocks(of.seq[piece], left + shift, right + shift, block, of.ranks)
        ids = base + np.arange(len(of.ranks))
        if len(ids) == 1:
            return ids, ids
        return ids, np.repeat(self.builder.add_lists(ids.reshape(1, -1)), len(ids))

    def _exchange(self, of: Shared, ids: Ints, lo: Ints, hi: Ints, chunk: int, phase: int) -> None:
        here, to = _pairs(len(ids))
        some = (hi > lo)[to]
        here, to = here[some], to[some]
        for turn, tensor in enumerate((KV, Q)):  # kv first: other nodes wait for it
            ops = Ops.transfers(tensor, of.ranks[here], of.ranks[to], (lo[to], hi[to]), ids[here])
            self.add(ops, phase, chunk, turn)

    def _home(self, of: Shared, ids: Ints, lo: Ints, hi: Ints, phase: int, chunk: int, turn: int = 1) -> None:
        here, to = _pairs(len(ids))
        some = (hi > lo)[here]
        here, to = here[some], to[some]
        self.add(Ops.transfers(O, of.ranks[here], of.ranks[to], (lo[here], hi[here]), ids[to]), phase, chunk, turn)


def _bounds(heads: Ints, chunk: int, chunks: int) -> tuple[Ints, Ints]:
    """Of the chunk: every GPU's first head and the one after its last."""
    lo, width = heads[:-1], np.diff(heads)
    return lo + width * chunk // chunks, lo + width * (chunk + 1) // chunks


def _pairs(count: int) -> tuple[Ints, Ints]:
    """(here, to) of an all-to-all, in rounds in which everybody sends and receives once."""
    turn, here = (axis.reshape(-1) for axis in np.indices((count - 1, count)))
    return here, partner(here, turn + 1, count)
