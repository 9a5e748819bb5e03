"""Segments of a template: the matmuls of a tensor-parallel group in a row, with the exchanges that come between them.

A segment ends where something else is computed: attention, or what each GPU does for its own tokens. What is made of
tokens in it (by_tokens) may be computed slice by slice, as each token is by itself; gradients of parameters sum over
tokens and come after all slices.

Where a feed-forward is computed for some tokens at a time (zbench.step.passes.memory.chunks), each chunk is a segment
of its own, cut in slices by itself, and its gradients of parameters come before the next chunk. What chunks read is
gathered before the first of them, as reductions would stand before it in their queue.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula
from zbench.step.layers import is_sliced
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, GATHER, QUEUES, REDUCE
from zbench.step.passes.overlap.token_slices import chunks_of_parts

Row = list[int]  # an operation, as zbench.step.operations.Operations has its columns
_QUEUE = QUEUES.index("tensor_parallel")
_ALL = -1  # in place of the number of a chunk: what is computed for all tokens at once


@dataclass(frozen=True)
class SegmentFormula:
    """A formula of a segment. rows: its operation on every GPU of the group. reads, adds: numbers of tensors that it
    reads, each with the offset of its layer, and that it adds to. tokens: the column of its list of tokens."""

    formula: Formula
    rows: dict[int, Row]
    reads: frozenset[tuple[int, int]]
    adds: frozenset[int]
    tokens: int

    @property
    def by_tokens(self) -> bool:
        """Whether each token, or query, is computed by itself; else it is a sum over tokens."""
        return self.formula.relation is not None or all("t" in result.slots for result in self.formula.results)


@dataclass(frozen=True)
class ExchangeSegment:
    """The operations of a group in a segment. members: the group's GPUs. slices: parts of t by member and slice.
    gathers, reduces: its collectives; matmuls: formulas in their order. later: segments of chunks that follow it at
    once, and whose gathers go before its matmuls."""

    members: tuple[int, ...]
    slices: Sequence[Sequence[Ints]]
    gathers: tuple[Row, ...]
    reduces: tuple[Row, ...]
    matmuls: tuple[SegmentFormula, ...]
    lists: ListTable
    later: tuple["ExchangeSegment", ...] = ()

    @cached_property
    def by_tokens(self) -> tuple[SegmentFormula, ...]:
        """The formulas of which each token is computed by itself."""
        return tuple(one for one in self.matmuls if one.by_tokens)

    @cached_property
    def over_tokens(self) -> tuple[SegmentFormula, ...]:
        """The formulas that sum over tokens: gradients of parameters."""
        return tuple(one for one in self.matmuls if not one.by_tokens)

    @cached_property
    def early(self) -> tuple[Row, ...]:
        """The gathers of what is computed token by token."""
        return tuple(one for one in self.gathers if any(self.reads(matmul, one) for matmul in self.by_tokens))

    @cached_property
    def late(self) -> tuple[Row, ...]:
        """The gathers of what sums over tokens alone read."""
        return tuple(one for one in self.gathers if one not in self.early)

    def reads(self, matmul: SegmentFormula, gather: Row) -> bool:
        """Returns whether a formula reads what a gather brings."""
        return (gather[1], gather[7]) in matmul.reads

    def adds(self, matmul: SegmentFormula) -> bool:
        """Returns whether a formula adds to what is reduced."""
        return any(one[1] in matmul.adds for one in self.reduces)

    def at(self, member: int, step: int) -> int:
        """Returns the number of the member that comes `step` after another one in the group."""
        return (member + step) % len(self.members)

    # -- operations ----------------------------------------------------------------------------------
    def compute(self, matmul: SegmentFormula, member: int, parts: Ints) -> list[Row]:
        """Returns a formula's operation on a member for some tokens, none where there are none."""
        row = list(matmul.rows.get(self.members[member], ()))
        mine = parts[np.isin(parts, self.lists.rows[row[matmul.tokens]])] if row else parts[:0]
        if not len(mine):
            return []
        row[matmul.tokens] = self.lists.number("t", mine)
        return [row]

    def whole(self, matmul: SegmentFormula, member: int) -> list[Row]:
        """Returns a formula's operation on a member for all tokens."""
        return [matmul.rows[self.members[member]]]

    def collective(self, row: Row, parts: Ints) -> list[Row]:
        """Returns a gather or a reduction of some tokens, none where there are none."""
        return [[*row[:4], self.lists.number("t", parts), *row[5:]]] if len(parts) else []

    def message(self, kind: int, row: Row, ends: tuple[int, int], parts: Ints) -> list[Row]:
        """Returns the transfer of some tokens of what a collective moves, between two members."""
        src, dst = (self.members[one] for one in ends)
        return [[kind, row[1], src, dst, self.lists.number("t", parts), *row[5:]]] if len(parts) else []


def groups_of(layout: StepLayout, rows: Iterable[Row]) -> dict[int, tuple[int, ...]]:
    """Returns the tensor-parallel group of every GPU that is in one, as collectives among operations tell."""
    found: dict[int, tuple[int, ...]] = {}
    for row in rows:
        if row[0] in (GATHER, REDUCE) and row[8] == _QUEUE:
            members = tuple(layout.lists[row[3]].tolist())
            found |= dict.fromkeys(members, members)
    return found


@dataclass(frozen=True)
class SegmentFinder:
    """The segments of a template. groups: of every GPU; slices: in which a GPU's own tokens are cut, of each chunk of
    memory; chunks: of memory, in how many each GPU's tokens are, int64 [GPUs]."""

    layout: StepLayout
    lists: ListTable
    groups: dict[int, tuple[int, ...]]
    slices: int
    chunks: Ints

    def is_part(self, row: Row) -> bool:
        """Returns whether an operation may be in a segment: a matmul of a group, or an exchange between them."""
        if row[0] == COMPUTE:
            formula = self.layout.formulas[row[1]]
            return formula.relation is None and is_sliced(formula) and row[2] in self.groups
        tensor = self.layout.tensors[row[1]]
        return row[0] in (GATHER, REDUCE) and row[8] == _QUEUE and tensor.axes == ("t",) and tensor.layers != "none"

    def of_run(self, run: Sequence[Row]) -> list[ExchangeSegment] | None:
        """Returns the segments of operations in a row, one a group; None where nothing of tokens is exchanged."""
        found = []
        for members in dict.fromkeys(self._group(row) for row in run):
            mine = [row for row in run if self._group(row) == members]
            gathers, reduces, computes = ([row for row in mine if row[0] == kind] for kind in (GATHER, REDUCE, COMPUTE))
            if not (gathers or reduces) or not any(one.by_tokens for one in self._matmuls(computes)):
                return None
            found.append(self._segment(members, gathers, reduces, computes))
        return found

    def _segment(
        self, members: tuple[int, ...], gathers: Sequence[Row], reduces: Sequence[Row], computes: Sequence[Row]
    ) -> ExchangeSegment:
        """Returns the segment of a group: of all tokens at once, or of those formulas that are, and of each chunk.

        What is computed for all tokens at once stands before the first chunk, and so does what it reads.
        """
        times = Counter((row[1], row[2]) for row in computes)
        by_chunks = {formula for (formula, _), count in times.items() if count > 1}
        rows: dict[int, list[Row]] = {}
        for row in computes:
            rows.setdefault(self._chunk_of(row) if row[1] in by_chunks else _ALL, []).append(row)
        exchange, found, left = (*gathers, *reduces)[0], list[ExchangeSegment](), list(gathers)
        in_chunks = tuple(self._matmuls([row for row in computes if row[1] in by_chunks]))
        summed = [row for row in reduces if any(row[1] in one.adds for one in in_chunks)]
        for chunk in sorted(rows):
            matmuls, slices = tuple(self._matmuls(rows[chunk])), self._slices(members, exchange, chunk)
            read = {tensor for one in matmuls for tensor in one.reads}
            before = chunk == _ALL and len(in_chunks) > 0
            here = [row for row in left if not before or (row[1], row[7]) in read]
            sums = summed if chunk != _ALL else [row for row in reduces if row not in summed]
            if chunk == _ALL:
                left = [row for row in left if row not in here]
            else:
                parts = self.lists.number("t", np.concatenate([one for own in slices for one in own]))
                here, sums = ([[*row[:4], parts, *row[5:]] for row in every] for every in (here, sums))
            found.append(ExchangeSegment(members, slices, tuple(here), tuple(sums), matmuls, self.lists))
        return replace(found[0], later=tuple(found[1:]))

    @cached_property
    def _chunks(self) -> Ints:
        """The chunk of memory that each part of t is in."""
        home = self.layout.tensors[self.layout.number["x"]].home
        return chunks_of_parts(home, self.layout.index["t"].sizes, self.chunks)

    def _chunk_of(self, row: Row) -> int:
        """Returns the chunk of memory that a formula is computed for."""
        tokens = 4 + self.layout.formulas[row[1]].slots.index("t")
        return int(self._chunks[self.lists.rows[row[tokens]][0]])

    def _group(self, row: Row) -> tuple[int, ...]:
        return self.groups[row[2] if row[0] == COMPUTE else int(self.lists.rows[row[3]][0])]

    def _matmuls(self, rows: Sequence[Row]) -> Iterable[SegmentFormula]:
        for number in dict.fromkeys(row[1] for row in rows):
            formula = self.layout.formulas[number]
            on = {row[2]: row for row in rows if row[1] == number}
            layer = next(iter(on.values()))[7]
            reads = frozenset((self.layout.number[one.tensor], layer + one.after) for one in formula.operands)
            adds = formula.results if formula.action == "+=" else ()
            names = frozenset(self.layout.number[one.tensor] for one in adds)
            yield SegmentFormula(formula, on, reads, names, 4 + formula.slots.index("t"))

    def _slices(self, members: Sequence[int], exchange: Row, chunk: int) -> list[list[Ints]]:
        """Returns the parts of t that a collective moves, of a chunk, by home and slice of its tokens."""
        parts, tensor = self.lists.rows[exchange[4]], self.layout.tensors[exchange[1]]
        sizes, found = self.layout.index["t"].sizes, []
        for member in members:
            own = parts[tensor.home[parts] == member]
            first, count = (0, 1) if chunk == _ALL else (chunk * self.slices, int(self.chunks[member]))
            slices = chunks_of_parts(0 * own, sizes[own], self.slices * count)
            found.append([own[slices == first + at] for at in range(self.slices)])
        return found
