"""What a plan holds as columns: its blocks, lists of them, and its operations. Pure: no torch.

At 1,024 ranks a plan has a million operations, too many for an object each.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
TRANSFER, ATTEND = 0, 1


@dataclass(frozen=True)
class Lists:
    """Lists of ids, each stored once and named by its index (compressed rows).

    offsets: int64 [num_lists + 1]; items: int64 [total].
    """

    offsets: Ints
    items: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ints:
        return self.items[self.offsets[index] : self.offsets[index + 1]]

    @cached_property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @staticmethod
    def of(rows: list[Ints] | list[list[int]]) -> "Lists":
        sizes = np.array([len(row) for row in rows], np.int64)
        items = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.zeros(0, np.int64)
        return Lists(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), items.astype(np.int64))

    @staticmethod
    def singletons(count: int) -> "Lists":
        """List i holds just i."""
        return Lists(np.arange(count + 1, dtype=np.int64), np.arange(count, dtype=np.int64))


@dataclass(frozen=True)
class Blocks:
    """Disjoint sets of tokens and the rank each calls home.

    seq, start, stop, block: int64 [num_pieces], tokens [start, stop) of sequence seq belong to block;
        sorted by (seq, start).
    home: int64 [num_blocks], the rank whose linear modules and loss see the block, all heads of it.
    """

    seq: Ints
    start: Ints
    stop: Ints
    block: Ints
    home: Ints

    def __len__(self) -> int:
        return len(self.home)

    @cached_property
    def tokens(self) -> Ints:
        """int64 [num_blocks]: tokens of each block."""
        return np.bincount(self.block, weights=self.stop - self.start, minlength=len(self)).astype(np.int64)

    @cached_property
    def pieces(self) -> Lists:
        """Per block its piece indices, in (seq, start) order."""
        counts = np.bincount(self.block, minlength=len(self))
        return Lists(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.argsort(self.block, kind="stable"))


@dataclass(frozen=True)
class Ops:
    """Operations in order, as columns (int64 [num_ops] each).

    kind: TRANSFER or ATTEND.
    tensor: what a transfer carries (zbench.model.Q ... DKV); -1 for an attend.
    src, dst: a transfer's ranks; both the rank of an attend.
    head_lo, head_hi: query heads [lo, hi).
    blocks: list of blocks, as an index into Plan.lists: what a transfer carries, the q of an attend.
    kv_blocks: likewise the kv of an attend; -1 for a transfer.
    via: lanes a transfer is spread over (routing), as an index into Plan.lanes; -1: sent directly.
    keep: 1 if the copy that a forward transfer makes stays on dst until the backward.
    collective: 1 if a transfer is part of a collective of all ranks of its group (an all-gather, a reduce-scatter),
        whose messages have all of a link's bandwidth where one between two ranks alone has a channel's.
    """

    kind: Ints
    tensor: Ints
    src: Ints
    dst: Ints
    head_lo: Ints
    head_hi: Ints
    blocks: Ints
    kv_blocks: Ints
    via: Ints
    keep: Ints
    collective: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: Ints | NDArray[np.bool_]) -> "Ops":
        return Ops(**{name: getattr(self, name)[index] for name in COLUMNS})

    @staticmethod
    def concatenate(parts: list["Ops"]) -> "Ops":
        if not parts:
            return Ops(**{name: np.zeros(0, np.int64) for name in COLUMNS})
        return Ops(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})

    @staticmethod
    def transfers(
        tensor: Ints | int,
        src: Ints,
        dst: Ints,
        heads: tuple[Ints | int, Ints | int],
        blocks: Ints,
        collective: bool = False,
    ) -> "Ops":
        """Direct transfers; scalars are broadcast to the length of src."""
        return _columns(len(src), TRANSFER, tensor, src, dst, heads, blocks, -1, collective)

    @staticmethod
    def attends(rank: Ints, heads: tuple[Ints | int, Ints | int], q_blocks: Ints, kv_blocks: Ints) -> "Ops":
        return _columns(len(rank), ATTEND, -1, rank, rank, heads, q_blocks, kv_blocks)


COLUMNS = tuple(Ops.__dataclass_fields__)


def _columns(
    n: int,
    kind: int,
    tensor: Ints | int,
    src: Ints,
    dst: Ints,
    heads: tuple[Ints | int, Ints | int],
    blocks: Ints,
    kv_blocks: Ints | int,
    collective: bool = False,
) -> Ops:
    def full(value: Ints | int) -> Ints:
        return np.full(n, value, np.int64) if np.ndim(value) == 0 else np.asarray(value, np.int64)

    return Ops(
        full(kind),
        full(tensor),
        full(src),
        full(dst),
        full(heads[0]),
        full(heads[1]),
        full(blocks),
        full(kv_blocks),
        full(-1),
        full(0),
        full(int(collective)),
    )
