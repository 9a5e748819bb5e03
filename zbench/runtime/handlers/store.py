"""The store of a place: cells of tensors, many of which lie in one piece of memory.

A slab is what an operation made or a message brought: the cells of two lists of parts in one piece. Whoever reads just
these cells reads the slab as it lies; other cells are put together. Values never change where they lie, as messages may
still be reading them; a sum that something is added to is another slab. What arrives, and what is added, is waited for
and joined when it is read. Where no more than half of a slab is left, as when heads or rows for other GPUs were sent,
or chunks of tokens are computed, this is put elsewhere, so that memory is what is there. Of a tensor with amounts,
cells without a row are not there, and nobody misses them.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import torch

from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.steps.instructions import Cell, Parts

Key = tuple[str, int, int]  # a tensor's name, the layer (0: of none), the micro-batch (-1: of none)
Merge = Callable[[Fields, Fields], Fields]


class Lacking(RuntimeError):
    """A place lacks a cell that an instruction uses, or has one already that it makes; a proven step has no such."""


class Slab:
    """Cells in one piece, which any thread may read. make: gives the fields when they are first read. there: the
    fields, None until then. coming: the message that brings them; encoded: whether it does so in fewer bits. carried:
    what they have arrived in then, so that it can be sent on as it is. gone: how many of the cells were let go, or are
    in another slab now."""

    __slots__ = (
        "_joins", "_lock", "_make", "_source", "carried", "coming", "encoded", "first", "format", "gone", "second",
        "there",
    )  # fmt: skip

    def __init__(
        self, of: Format, first: Parts, second: Parts, make: Callable[[], Fields], source: "Slab | None" = None
    ) -> None:
        self.format, self.first, self.second, self._make, self._source = of, first, second, make, source
        self._joins: list[tuple[Slab, Merge]] = []
        self.there: Fields | None = None
        self.carried: Any = None
        self.coming: Any = None
        self.encoded = False
        self.gone = 0
        self._lock = Lock()

    @staticmethod
    def of(given: Format, first: Parts, second: Parts, fields: Fields) -> "Slab":
        """Returns a slab of fields that are there."""
        found = Slab(given, first, second, lambda: fields)
        found.there = fields
        return found

    def join(self, other: "Slab", merge: Merge) -> None:
        """Joins contributions to a sum, of the same cells: when it is read, as one of them may be on its way here, or
        at once, so that those of many chunks of tokens are not there together."""
        mine = self.there
        if mine is not None:
            self._make = lambda: mine
        self._joins.append((other, merge))
        self.there = None
        if mine is not None and other.there is not None:
            _ = self.fields

    @property
    def fields(self) -> Fields:
        """The fields, complete."""
        if (there := self.there) is not None:
            return there
        with self._lock:
            if self.there is None:
                found = self._make()
                for other, merge in self._joins:
                    found = merge(found, other.fields)
                self._joins, self._source = [], None
                self._make = lambda: found
                self.there = found
            return self.there

    def arrivals(self) -> list[Any]:
        """Returns the messages that the fields wait for."""
        if self.there is not None:
            return []
        found = [] if self.coming is None or self.coming.is_here else [self.coming]
        if self._source is not None:
            found += self._source.arrivals()
        return found + [arrival for other, _ in self._joins for arrival in other.arrivals()]

    def pieces(self) -> dict[int, int]:
        """Returns the bytes of the pieces of memory that the cells lie in, by their address, and where they are not all
        there yet a number below 0 and what they will take."""
        if self.there is None:
            return {-id(self): self.format.num_bytes(self.first, self.second)}
        return {memory.data_ptr(): memory.nbytes() for memory in (one.untyped_storage() for one in self.there)}

    def every_piece(self) -> dict[int, int]:
        """Returns the pieces of memory as `pieces` does, and beside a sum those of what waits to be added to it."""
        if self.there is not None:
            return self.pieces()
        found = self.pieces() if self._source is None else self._source.every_piece()
        for other, _ in self._joins:
            found = found | other.every_piece()
        return found

    def has_just(self, first: Parts, second: Parts) -> bool:
        """Returns whether it has the cells of two lists, no others, and all of them are still in it."""
        return not self.gone and self.first == first and self.second == second

    def under_way(self, first: Parts, second: Parts) -> Any:
        """Returns the message that brings just these cells as they lie, if it was not waited for yet; else None."""
        is_all = self.there is None and not self._joins and not self.encoded and self.has_just(first, second)
        return self.coming if is_all else None

    def settle(self) -> None:
        """Waits for what is on its way here: a message whose memory is gone before it arrives is never received."""
        _ = self.fields

    def rows(self) -> dict[Cell, tuple[int, int]]:
        """Returns the first row of each cell and the one after its last, of a tensor with amounts."""
        assert self.format.amounts is not None, "other cells are told by their parts"
        found, at = {}, 0
        for cell in self.format.pairs(self.first, self.second):
            found[cell] = (at, at + int(self.format.amounts[cell]))
            at = found[cell][1]
        return found

    def part(self, cells: tuple[Parts, Parts]) -> Fields | None:
        """Returns the fields of some cells as views; None where they do not lie together."""
        views = self.fields
        if (self.first, self.second) == cells and self.format.amounts is None:
            return views
        if self.format.amounts is not None:
            pieces = _row_pieces([(self, cell) for cell in self.format.pairs(*cells)])
            return tuple(view[pieces[0][1] : pieces[0][2]] for view in views) if len(pieces) == 1 else None
        for which, (mine, wanted) in enumerate(zip((self.first, self.second), cells, strict=True)):
            if mine == wanted:
                continue
            at = mine.index(wanted[0])
            if mine[at : at + len(wanted)] != wanted:
                return None
            begin, length = self.format.length(which, mine[:at]), self.format.length(which, wanted)
            views = tuple(
                view.narrow(self.format.axis(field, which), begin, length) for field, view in enumerate(views)
            )
        return views


Held = dict[Key, dict[Cell, Slab]]  # cells of tensors, by their key


class Store:
    """The cells on a place. device: of its memory."""

    SHRINKS: ClassVar[bool] = True  # whether little that is left of a slab is put elsewhere

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.held: Held = {}
        self.device = device

    def room(self, key: Key, of: Format, first: Parts, second: Parts) -> torch.Tensor | None:
        """Returns the bytes in which a message with these cells is to arrive; None: in memory of its own."""
        return None

    def weigh(self, beside: int) -> None:
        """Notes how many bytes there are now, in a store that tells. beside: and so many that are no cells."""

    def slab(self, key: Key, cell: Cell) -> Slab:
        """Returns the piece that a cell is in."""
        found = self.held.get(key, {}).get(cell)
        if found is None:
            raise Lacking(f"{key[0]} {cell} of layer {key[1]} is not there")
        return found

    def just(self, key: Key, of: Format, first: Parts, second: Parts) -> Slab | None:
        """Returns the piece that has the cells of two lists and no others, None where there is none."""
        cell = of.first_pair(first, second)
        found = None if cell is None else self.held.get(key, {}).get(cell)
        return found if found is not None and found.has_just(first, second) else None

    def read(self, key: Key, of: Format, first: Parts, second: Parts) -> Fields:
        """Returns the fields of the cells of two lists, in one piece."""
        if (whole := self.just(key, of, first, second)) is not None:
            return whole.fields
        cells, held = of.pairs(first, second), self.held.get(key, {})
        return self._together(of, [held.get(cell) or self.slab(key, cell) for cell in cells], first, second)

    def _together(self, of: Format, slabs: Sequence[Slab], first: Parts, second: Parts) -> Fields:
        """Returns the fields of the cells of two lists, in one piece. slabs: in which each of them lies."""
        cells = of.pairs(first, second)
        if slabs and all(one is slabs[0] for one in slabs):
            found = slabs[0].part((first, second))
            if found is not None:
                return found
        if of.amounts is None:
            return self._assembled(of, slabs, first, second)
        pieces = _row_pieces(list(zip(slabs, cells, strict=True)))
        nothing = [
            torch.empty(of.shape(field, first, second), dtype=dtype, device=self.device)
            for field, (_, dtype) in enumerate(of.fields if not pieces else ())
        ]
        views = [tuple(view[begin:end] for view in slab.fields) for slab, begin, end in pieces]
        return tuple(nothing) or tuple(torch.cat(one) for one in zip(*views, strict=True))

    def _assembled(self, of: Format, slabs: Sequence[Slab], first: Parts, second: Parts) -> Fields:
        """Puts cells together: along the second axis, then along the first."""
        width, rows = len(second), []
        for row, a in enumerate(first):
            pieces, at = [], 0
            while at < width:  # what lies together in a slab is one piece
                slab, to = slabs[row * width + at], at + 1
                while to < width and slabs[row * width + to] is slab and slab.part(((a,), second[at : to + 1])):
                    to += 1
                found = slab.part(((a,), second[at:to]))
                assert found is not None, "a cell lies together"
                pieces.append(found)
                at = to
            rows.append([_joined(of, field, 1, [one[field] for one in pieces]) for field in range(len(of.fields))])
        return tuple(_joined(of, field, 0, [row[field] for row in rows]) for field in range(len(of.fields)))

    def put(self, key: Key, slab: Slab, over: bool = False) -> None:
        """Puts cells. over: whether they may be there already, as state is."""
        held = self.held.setdefault(key, {})
        for cell in slab.format.pairs(slab.first, slab.second):
            if cell in held:
                if not over:
                    raise Lacking(f"{key[0]} {cell} of layer {key[1]} is there already")
                held[cell].settle()
                held[cell].gone += 1
            held[cell] = slab

    def add(self, key: Key, slab: Slab, merge: Merge) -> None:
        """Adds contributions to the cells of a sum."""
        if (whole := self.just(key, slab.format, slab.first, slab.second)) is not None:
            whole.join(slab, merge)
            return
        cells, held = slab.format.pairs(slab.first, slab.second), self.held.get(key, {})
        before = [held[cell] for cell in cells if cell in held]
        if before and slab.there is not None and all(piece.there is not None for piece in before):
            self._add_at_once(key, slab, cells, merge)
        elif before:
            self._add_each(key, slab, cells, merge)
        else:
            self.put(key, slab)

    def _add_at_once(self, key: Key, slab: Slab, cells: Sequence[Cell], merge: Merge) -> None:
        """Adds contributions that are there to sums that are there, cells together where they are of two lists, so that
        neither stays beside what both come to."""
        held, of = self.held[key], slab.format
        there, cut = [cell for cell in cells if cell in held], {id(slab): slab}
        lists = _lists_of(there)
        for first, second in [lists] if of.pairs(*lists) == there else [((a,), (b,)) for a, b in there]:
            some = of.pairs(first, second)
            given = self._together(of, [slab] * len(some), first, second)
            found = Slab.of(of, first, second, merge(self.read(key, of, first, second), given))
            for cell in some:
                cut[id(held[cell])] = held[cell]
                held[cell].gone += 1
                held[cell] = found
        slab.gone += len(there)
        held.update((cell, slab) for cell in cells if cell not in held)
        for piece in cut.values() if self.SHRINKS else ():
            self._shrink(key, piece)

    def _add_each(self, key: Key, slab: Slab, cells: Sequence[Cell], merge: Merge) -> None:
        """Adds contributions cell by cell, when they are read: some are on their way here."""
        held = self.held[key]
        for a, b in cells:
            mine = Slab(slab.format, (a,), (b,), partial(_of, slab, a, b), slab)
            before = held.get((a, b))
            if before is None:
                held[a, b] = mine
                continue
            before.gone += 1
            own = _alone(before, a, b)
            own.join(mine, merge)
            held[a, b] = own

    def leaving(
        self, key: Key, of: Format, first: Parts, second: Parts, takes: bool
    ) -> tuple[list[Any], Callable[[], Fields]] | None:
        """Returns the messages that the fields of some cells wait for, and what gives the fields then, in any thread;
        None where they wait for none. takes: whether they leave the place, which then has them no more."""
        cells = of.pairs(first, second)
        slabs = [self.slab(key, cell) for cell in cells]
        needs = [arrival for slab in {id(one): one for one in slabs}.values() for arrival in slab.arrivals()]
        if not needs:
            return None
        whole = self.just(key, of, first, second)
        if takes:
            self.forget(key, cells, settles=False)
        return needs, (lambda: whole.fields) if whole else partial(self._together, of, slabs, first, second)

    def take(self, key: Key, of: Format, first: Parts, second: Parts) -> Fields:
        """Returns the fields of cells that leave the place."""
        found = self.read(key, of, first, second)
        self.forget(key, of.pairs(first, second))
        return found

    def forget(self, key: Key, cells: Sequence[Cell], settles: bool = True) -> None:
        """Lets cells go. settles: when what is on its way to them has come, for which else somebody else waits."""
        held, cut = self.held.get(key, {}), dict[int, Slab]()
        for cell in cells:
            slab = held.get(cell) or self.slab(key, cell)
            if settles:
                slab.settle()
            del held[cell]
            slab.gone += 1
            cut[id(slab)] = slab
        for slab in cut.values() if self.SHRINKS else ():
            self._shrink(key, slab)
        if cells and not held:
            del self.held[key]

    def _shrink(self, key: Key, slab: Slab) -> None:
        """Puts what is left of a slab in one of its own, if it is no more than half and of two lists."""
        held, of = self.held[key], slab.format
        every = len(slab.first) * len(slab.second)
        if not held or (of.amounts is None and 2 * slab.gone < every):  # cells without amounts are much alike
            return
        left = [cell for cell in of.pairs(slab.first, slab.second) if held.get(cell) is slab]
        first, second = _lists_of(left)
        if not left or of.pairs(first, second) != left:
            return
        if 2 * of.num_bytes(first, second) > of.num_bytes(slab.first, slab.second):
            return
        if slab.there is not None:
            fields = tuple(one.clone() for one in self.read(key, of, first, second))
            self.put(key, Slab.of(of, first, second, fields), over=True)
            return
        apart = Slab(of, first, second, partial(self._copied, slab, (first, second)), slab)
        slab.gone += len(left)
        held.update((cell, apart) for cell in left)

    def _copied(self, slab: Slab, lists: tuple[Parts, Parts]) -> Fields:
        """Returns a copy of the fields of some cells of a slab."""
        of = slab.format
        found = self._together(of, [slab] * len(of.pairs(*lists)), *lists)
        return tuple(one.clone() for one in found)

    def set_aside(self, keys: Collection[Key]) -> Held:
        """Takes whole tensors out of the store as they are, without waiting for what is on its way to them."""
        return {key: self.held.pop(key) for key in keys if key in self.held}

    def put_back(self, aside: Held) -> None:
        """Puts back what was set aside."""
        self.held |= aside

    def settle(self) -> None:
        """Waits for all that is on its way here."""
        for held in self.held.values():
            for slab in held.values():
                slab.settle()


def _lists_of(cells: Sequence[Cell]) -> tuple[Parts, Parts]:
    """Returns the parts along both axes of some cells, each once."""
    return tuple(dict.fromkeys(a for a, _ in cells)), tuple(dict.fromkeys(b for _, b in cells))


def _of(slab: Slab, a: int, b: int) -> Fields:
    found = slab.part(((a,), (b,)))
    assert found is not None, "a cell lies together"
    return found


def _alone(slab: Slab, a: int, b: int) -> Slab:
    """Returns a cell of a slab as a slab of its own, which does not keep what is there of the others."""
    of, lists = slab.format, ((a,), (b,))
    if slab.there is None:
        return Slab(of, *lists, lambda: _of(slab, a, b), slab)
    fields, is_all = _of(slab, a, b), len(slab.first) * len(slab.second) == 1
    return Slab.of(of, *lists, fields if is_all else tuple(one.clone() for one in fields))


def _row_pieces(cells: Sequence[tuple[Slab, Cell]]) -> list[tuple[Slab, int, int]]:
    """Lists (slab, first row, the one after the last) of cells one after another; neighbours in a slab are one."""
    found: list[tuple[Slab, int, int]] = []
    rows = {id(slab): slab.rows() for slab, _ in cells}
    for slab, cell in cells:
        begin, end = rows[id(slab)][cell]
        if found and found[-1][0] is slab and found[-1][2] == begin:
            found[-1] = (slab, found[-1][1], end)
        else:
            found.append((slab, begin, end))
    return found


def _joined(of: Format, field: int, which: int, pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, of.axis(field, which))
