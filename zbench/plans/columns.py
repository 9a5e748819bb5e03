"""A plan's columns: its blocks, lists of them, and its operations.

A ring over 4,096 ranks is 84 million operations: too many for an object each, and for eight bytes a column.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeGuard

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED

Column = NDArray[np.signedinteger[Any]]
TRANSFER, ATTEND = 0, 1
CHUNK = 1 << 20  # operations that are looked at together where arrays over all of them would be large


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
        """The number of items of every list."""
        return np.diff(self.offsets)

    @staticmethod
    def of(rows: list[Ints] | list[list[int]]) -> "Lists":
        """Makes lists of rows."""
        sizes = np.array([len(row) for row in rows], np.int64)
        items = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.zeros(0, np.int64)
        return Lists(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), items.astype(np.int64))

    @staticmethod
    def singletons(count: int) -> "Lists":
        """Makes `count` lists, of which list i holds just i."""
        return Lists(np.arange(count + 1, dtype=np.int64), np.arange(count, dtype=np.int64))


def in_order(seq: Ints, start: Ints) -> bool:
    """Returns whether pieces are sorted by (sequence, start)."""
    ahead = seq[1:] > seq[:-1]
    ahead |= (seq[1:] == seq[:-1]) & (start[1:] >= start[:-1])
    return bool(ahead.all())


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
        """The tokens of each block, int64 [num_blocks]."""
        return np.bincount(self.block, weights=self.stop - self.start, minlength=len(self)).astype(np.int64)

    @cached_property
    def pieces(self) -> Lists:
        """The indices of every block's pieces, in (seq, start) order."""
        return Lists(*_rows(self.block, len(self)))


@nb.njit(**ENTERED)
def _rows(row, count):  # type: ignore[no-untyped-def]
    """Sorts by counting: returns (offsets, indices) of what is in each row, in order."""
    offsets = np.zeros(count + 1, np.int64)
    for at in range(len(row)):
        offsets[row[at] + 1] += 1
    offsets = np.cumsum(offsets)
    fill, items = offsets[:-1].copy(), np.empty(len(row), np.int64)
    for at in range(len(row)):
        items[fill[row[at]]] = at
        fill[row[at]] += 1
    return offsets, items


@dataclass(frozen=True)
class Ops:
    """The operations of a list in order, as columns [num_ops] of the types in TYPES; wider integers that fit are
    converted, and columns with others are left as they are, which zbench.proof.verify refuses.

    Numbers made of several columns (a list's times a rank's) may need more bits than a column has: convert first.

    kind: TRANSFER or ATTEND.
    tensor: what a transfer carries (zbench.describe.model.Q ... DKV); -1 for an attend.
    src, dst: a transfer's ranks; both the rank of an attend.
    head_lo, head_hi: query heads [lo, hi).
    blocks: list of blocks, as an index into Plan.lists: what a transfer carries, the q of an attend.
    kv_blocks: likewise the kv of an attend; -1 for a transfer.
    via: lanes a transfer is spread over (routing), as an index into Plan.lanes; -1: sent directly.
    keep: 1 if the copy that a forward transfer makes stays on dst until the backward.
    collective: 1 if a transfer is part of a collective of all ranks of its group (an all-gather, a reduce-scatter),
        whose messages have all of a link's bandwidth where one between two ranks alone has a channel's.
    """

    kind: Column
    tensor: Column
    src: Column
    dst: Column
    head_lo: Column
    head_hi: Column
    blocks: Column
    kv_blocks: Column
    via: Column
    keep: Column
    collective: Column

    def __post_init__(self) -> None:
        for name, wanted in TYPES.items():
            object.__setattr__(self, name, _narrow(getattr(self, name), wanted))

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, index: Ints | slice | Flags) -> "Ops":
        """Returns the operations at `index` alone."""
        return Ops(**{name: getattr(self, name)[index] for name in COLUMNS})

    def chunks(self) -> Iterator[tuple[int, "Ops"]]:
        """Yields views of CHUNK operations at a time, each with the index of its first one."""
        for begin in range(0, len(self), CHUNK):
            yield begin, self.take(slice(begin, begin + CHUNK))

    @staticmethod
    def concatenate(parts: list["Ops"]) -> "Ops":
        """Returns the operations of all `parts`, one after another."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Ops(**{name: np.zeros(0, wanted) for name, wanted in TYPES.items()})
        return Ops(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})

    @staticmethod
    def transfers(
        tensor: Column | int,
        src: Column,
        dst: Column,
        heads: tuple[Column | int, Column | int],
        blocks: Column,
        collective: bool = False,
    ) -> "Ops":
        """Makes direct transfers; scalars are broadcast to the length of src."""
        return _columns(len(src), TRANSFER, tensor, (src, dst), heads, blocks, -1, collective)

    @staticmethod
    def attends(rank: Column, heads: tuple[Column | int, Column | int], q_blocks: Column, kv_blocks: Column) -> "Ops":
        """Makes attends, one a rank of `rank`; heads are broadcast to their number."""
        return _columns(len(rank), ATTEND, -1, (rank, rank), heads, q_blocks, kv_blocks)


TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "kind": np.dtype(np.int8),
        "tensor": np.dtype(np.int8),
        "src": np.dtype(np.int32),
        "dst": np.dtype(np.int32),
        "head_lo": np.dtype(np.int16),
        "head_hi": np.dtype(np.int16),
        "blocks": np.dtype(np.int32),
        "kv_blocks": np.dtype(np.int32),
        "via": np.dtype(np.int16),
        "keep": np.dtype(np.int8),
        "collective": np.dtype(np.int8),
    }
)
COLUMNS = tuple(TYPES)


def is_array(value: object) -> TypeGuard[NDArray[Any]]:
    """Returns whether a value is an array that compiled loops read as it is; masked arrays and matrices are not."""
    return type(value) in (np.ndarray, np.memmap)


def _narrow(column: Column, wanted: Any) -> Column:
    """Returns the column in the type wanted, side by side in memory, if its values fit; else as it is, for verify to
    tell."""
    if not is_array(column) or column.ndim != 1 or column.dtype.kind != "i":
        return column
    narrow = np.ascontiguousarray(column, wanted)
    return narrow if column.dtype == wanted or (narrow == column).all() else column


def _full(n: int, value: Any, wanted: Any) -> Column:
    """Returns a column of one value, in the type wanted if it fits; else as wide as it has to be, for verify to
    tell."""
    limits = np.iinfo(wanted)
    fits = isinstance(value, int | np.integer) and limits.min <= value <= limits.max
    return np.full(n, value, wanted if fits else None)


def _columns(
    n: int,
    kind: int,
    tensor: Column | int,
    ends: tuple[Column, Column],
    heads: tuple[Column | int, Column | int],
    blocks: Column,
    kv_blocks: Column | int,
    collective: bool = False,
) -> Ops:
    """`n` operations. ends: the ranks they go from and to."""
    given = (kind, tensor, *ends, *heads, blocks, kv_blocks, -1, 0, int(collective))
    full = {
        name: _full(n, value, wanted) if np.ndim(value) == 0 else np.asanyarray(value)
        for (name, wanted), value in zip(TYPES.items(), given, strict=True)
    }
    return Ops(**full)
