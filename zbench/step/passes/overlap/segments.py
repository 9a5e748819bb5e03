"""Segments of a template: the matmuls of a tensor-parallel group in a row, with the exchanges that come between them.

A segment ends where something else is computed: attention, or what each GPU does for its own tokens. What is made of
tokens in it (by_tokens) may be computed slice by slice, as each token is by itself; gradients of parameters sum over
tokens and come after all slices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula
from zbench.step.layers import is_sliced
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, GATHER, QUEUES, REDUCE
from zbench.step.passes.overlap.token_slices import tokens_in_slices

Row = list[int]  # an operation, as zbench.step.operations.Operations has its columns
_QUEUE = QUEUES.index("tensor_parallel")


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
    gathers, reduces: its collectives; matmuls: formulas in their order."""

    members: tuple[int, ...]
    slices: Sequence[Sequence[Ints]]
    gathers: tuple[Row, ...]
    reduces: tuple[Row, ...]
    matmuls: tuple[SegmentFormula, ...]
    lists: ListTable

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
    """The segments of a template. groups: of every GPU; slices: in which a GPU's own tokens are cut."""

    layout: StepLayout
    lists: ListTable
    groups: dict[int, tuple[int, ...]]
    slices: int

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
            gathers, reduces = (tuple(row for row in mine if row[0] == kind) for kind in (GATHER, REDUCE))
            matmuls = tuple(self._matmuls([row for row in mine if row[0] == COMPUTE]))
            if not (gathers or reduces) or not any(one.by_tokens for one in matmuls):
                return None
            slices = self._slices(members, (gathers or reduces)[0])
            found.append(ExchangeSegment(members, slices, gathers, reduces, matmuls, self.lists))
        return found

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

    def _slices(self, members: Sequence[int], exchange: Row) -> list[list[Ints]]:
        """Returns the parts of t that a collective moves, by home and slice of its tokens."""
        parts, tensor = self.lists.rows[exchange[4]], self.layout.tensors[exchange[1]]
        sizes, found = self.layout.index["t"].sizes, []
        for member in members:
            own = parts[tensor.home[parts] == member]
            first = np.argmax(tokens_in_slices(0 * own, sizes[own], self.slices) > 0, axis=1)
            found.append([own[first == at] for at in range(self.slices)])
        return found
