"""Experts by chunks of the tokens: while one chunk is with its experts, the next is on its way to them.

A chunk has a share of every GPU's own tokens. Chunk after chunk is sent to experts, computed there and sent home; all
are sent out before any comes home, as each that does waits for its matmuls (PipeMoE, INFOCOM 2023; Tutel, MLSys 2023,
arXiv 2206.03382). What tokens' homes compute of all of them stays whole. Experts' gradients are sums over chunks, in
the chunks' order.

Where rows go to a node once, relays copy and sum them, in the queue of matmuls. A relay sends a chunk on inside its
node before its experts compute the one before, so that it is on its way meanwhile, and sums what comes of a chunk after
they computed the next one, by when it is there.

Where a feed-forward is computed for some tokens at a time (zbench.step.passes.memory.chunks), that is the tokens that
are cut in chunks here, before the next ones are: no more of them are on their way or with experts.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from zbench.describe.arrays import Ints
from zbench.describe.expert_schedule import AFTER_CHUNKS, ExpertChunks
from zbench.step.formula import Formula
from zbench.step.layers import is_gradient_of_experts, of_experts, of_relay
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, QUEUES, Operations
from zbench.step.passes.overlap.token_slices import chunks_of_parts
from zbench.step.passes.router.seats import TOGETHER
from zbench.step.template import Step, Template

Row = list[int]  # an operation, as zbench.step.operations.Operations has its columns
_QUEUE = QUEUES.index("experts")


def with_expert_chunks(step: Step, chunks: ExpertChunks, at_a_time: Sequence[Ints]) -> Step:
    """Returns a step in which experts compute by chunks; where nothing goes to other GPUs' experts, the step itself.
    at_a_time: of each layout, in how many chunks of memory each GPU's tokens are, int64 [GPUs].

    Chunks end where parts of t do: a step that is built for them (zbench.step.passes.parts) has some that do.
    """
    if lcm(chunks.forward, chunks.backward) == 1:
        return step
    tables = [
        ListTable.of(layout.lists, {one.name: len(one) for one in layout.indices}, step.num_places)
        for layout in step.layouts
    ]
    templates = [
        _changed(one, _Cut(step.layouts[one.layout], tables[one.layout], chunks, at_a_time[one.layout]))
        for one in step.templates
    ]
    layouts = tuple(replace(layout, lists=table.lists()) for layout, table in zip(step.layouts, tables, strict=True))
    return replace(step, layouts=layouts, templates=tuple(templates))


@dataclass(frozen=True)
class _Cut:
    """The cut of a layout's tokens. lists: gets those of chunks. at_a_time: of the layout, as above."""

    layout: StepLayout
    lists: ListTable
    chunks: ExpertChunks
    at_a_time: Ints

    @cached_property
    def tokens(self) -> str:
        """The index that routed rows are cut along: t, or what a router's choices are of."""
        return TOGETHER if TOGETHER in self.layout.index else "t"

    def chunk_of(self, count: int) -> Ints:
        """Returns the chunk that every part of what routed rows are cut along is in, of so many for each of memory."""
        of_tokens = self.layout.number["x" if self.tokens == "t" else "ra"]
        home, sizes = self.layout.tensors[of_tokens].home, self.layout.index[self.tokens].sizes
        return chunks_of_parts(home, sizes, count * self.at_a_time)


def _changed(template: Template, cut: _Cut) -> Template:
    """Returns a template with its experts by chunks."""
    rows: list[Row] = template.operations.table.tolist()
    found, done = list[Row](), 0
    for first, last in _at_a_time(_ExpertSegment(cut, rows)):
        segment = _ExpertSegment(cut, rows[first:last])
        if segment.messages and segment.count > 1:
            found += [*rows[done:first], *segment.operations()]
            done = last
    return replace(template, operations=Operations.of([*found, *rows[done:]])) if done else template


def _at_a_time(every: "_ExpertSegment") -> list[tuple[int, int]]:
    """Returns where operations on experts' GPUs, and their messages, begin and end of each chunk of memory. every: all
    of a template's operations.

    What is of tokens of several chunks, as zeros for gradients of experts without a token, begins and ends none, nor
    what is made again of all tokens before the first chunk."""
    number, found = every.cut.chunk_of(1), list[list[int]]()
    for at, row in reversed(list(enumerate(every.rows))):
        column = every.column(row)
        of = number[every.lists.rows[row[column]]] if column is not None else number[:0]
        if len(of) and (of == of[0]).all():
            if not found or of[0] < found[-1][0]:
                found.append([int(of[0]), at, at + 1])
            elif of[0] == found[-1][0]:
                found[-1][1] = at
    return [(first, last) for _, first, last in reversed(found)]


@dataclass(frozen=True)
class _ExpertSegment:
    """What operations in a row compute on experts' GPUs, and the messages between these and tokens' homes."""

    cut: _Cut
    rows: Sequence[Row]

    @property
    def layout(self) -> StepLayout:
        return self.cut.layout

    @property
    def lists(self) -> ListTable:
        return self.cut.lists

    @property
    def chunks(self) -> ExpertChunks:
        return self.cut.chunks

    @property
    def tokens(self) -> str:
        return self.cut.tokens

    def column(self, row: Row) -> int | None:
        """Returns the column of an operation's list of tokens, None where it is neither on experts' GPUs, nor a relay's
        or a message between these and homes."""
        if row[0] != COMPUTE:
            return 4 if row[8] == _QUEUE else None
        formula = self._formula(row)
        return 4 + formula.slots.index(self.tokens) if of_experts(formula) or of_relay(formula) else None

    @cached_property
    def messages(self) -> list[Row]:
        """The sends between homes and experts."""
        return [row for row in self.rows if row[0] != COMPUTE and row[8] == _QUEUE]

    @cached_property
    def computes(self) -> dict[int, list[Row]]:
        """The computes on experts' GPUs, by the number of their formula, in the formulas' order."""
        found: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row[0] == COMPUTE and of_experts(self._formula(row)):
                found[row[1]].append(row)
        return found

    @cached_property
    def relays(self) -> list[Row]:
        """The computes of relays."""
        return [row for row in self.rows if row[0] == COMPUTE and of_relay(self._formula(row))]

    @cached_property
    def made(self) -> set[tuple[int, int]]:
        """The tensors that experts' GPUs make, and relays of these, each with the offset of its layer."""
        every = [row for rows in self.computes.values() for row in rows[:1]]
        found = {one for row in every for one in self._tensors(row, results=True)}
        for row in self.relays:
            found |= self._tensors(row, results=True) if self._tensors(row, results=False) & found else set()
        return found

    @cached_property
    def passed_on(self) -> set[tuple[int, int]]:
        """The tensors that relays make, each with the offset of its layer."""
        return {one for row in self.relays for one in self._tensors(row, results=True)}

    @cached_property
    def count(self) -> int:
        """The number of chunks: a backward has gradients of experts among what it computes."""
        back = any(is_gradient_of_experts(self.layout.formulas[number]) for number in self.computes)
        return self.chunks.backward if back else self.chunks.forward

    @cached_property
    def chunk_of(self) -> Ints:
        """The chunk that every part of what routed rows are cut along is in, of those of its chunk of memory."""
        return self.cut.chunk_of(self.count) % self.count

    def _formula(self, row: Row) -> Formula:
        return self.layout.formulas[row[1]]

    def _tensors(self, row: Row, results: bool) -> set[tuple[int, int]]:
        """Returns the tensors that an operation makes or adds to (results), or those that it reads or moves, each with
        the offset of its layer."""
        if row[0] != COMPUTE:
            return set() if results else {(row[1], row[7])}
        formula = self._formula(row)
        refs = formula.results if results else formula.operands
        return {(self.layout.number[one.tensor], row[7] + one.after) for one in refs}

    def operations(self) -> list[Row]:
        """Returns all of the operations: what goes to experts, and beside that what is between and waits for
        none of them, as shared experts; experts by chunks; what needs them."""
        of_them = {*self.computes, *(row[1] for row in self.relays)}
        mine = [row[8] == _QUEUE or (row[0] == COMPUTE and row[1] in of_them) for row in self.rows]
        first, last = mine.index(True), len(mine) - mine[::-1].index(True)
        beside, after, theirs = list[Row](), list[Row](), set(self.made)
        for row in (row for row, one in zip(self.rows[first:last], mine[first:last], strict=True) if not one):
            waits = self._tensors(row, results=False) & theirs
            theirs |= self._tensors(row, results=True) if waits else set()
            (after if waits else beside).append(row)
        sent, beside = self._sent_of(beside)
        before = [*self.rows[:first], *sent]
        return before + list(self._out()) + beside + list(self._by_chunks()) + after + list(self.rows[last:])

    def _sent_of(self, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Returns those of operations that make what is sent to experts, and the others."""
        needed = {(row[1], row[7]) for row in self.messages} - self.made
        found, others = list[Row](), list[Row]()
        for row in reversed(rows):
            # A collective, or a message, is of what it moves.
            makes = self._tensors(row, results=row[0] == COMPUTE)
            needed |= self._tensors(row, results=False) if makes & needed else set()
            (found if makes & needed else others).append(row)
        return found[::-1], others[::-1]

    def _sent(self, to_experts: bool, by_relays: bool) -> list[Row]:
        """Returns the messages on their way to experts, or from them, that relays pass on, or others."""
        return [
            row
            for row in self.messages
            if ((row[1], row[7]) not in self.made) == to_experts and ((row[1], row[7]) in self.passed_on) == by_relays
        ]

    def _out(self) -> Iterable[Row]:
        for chunk in range(self.count):
            yield from self._parts_of(self._sent(True, False), chunk)

    def _by_chunks(self) -> Iterable[Row]:
        home = self._sent(False, False)
        each = {number: rows for number, rows in self.computes.items() if not self._is_late(number)}
        yield from self._relayed(0, True)
        for chunk in range(self.count):
            yield from self._relayed(chunk + 1, True)
            for number, rows in each.items():
                yield from self._computed(number, rows, chunk)
            yield from self._parts_of(home, chunk)
            yield from self._relayed(chunk - 1, False)
        yield from self._relayed(self.count - 1, False)
        yield from (row for number, rows in self.computes.items() if number not in each for row in rows)

    def _relayed(self, chunk: int, to_experts: bool) -> Iterable[Row]:
        """Yields what relays do for a chunk, on its way to experts or from them, and send then; nothing where there is
        no such chunk."""
        for row in self.relays:
            if bool(self._tensors(row, results=True) & self.made) != to_experts:
                yield from self._parts_of([row], chunk, 4 + self._formula(row).slots.index(self.tokens))
        yield from self._parts_of(self._sent(to_experts, True), chunk)

    def _is_late(self, number: int) -> bool:
        """Returns whether a formula is computed whole after all chunks."""
        return self.chunks.weights == AFTER_CHUNKS and is_gradient_of_experts(self.layout.formulas[number])

    def _computed(self, number: int, rows: Sequence[Row], chunk: int) -> Iterable[Row]:
        """Yields a formula's operations for a chunk. Zeros for gradients of experts without a token come with
        the last one."""
        formula = self.layout.formulas[number]
        column = 4 + formula.slots.index(self.tokens)
        yield from self._parts_of([row for row in rows if row[2] in self.with_tokens], chunk, column)
        if chunk == self.count - 1:
            yield from (row for row in rows if row[2] not in self.with_tokens)

    @cached_property
    def with_tokens(self) -> set[int]:
        """The GPUs whose experts have tokens."""
        every = [rows for number, rows in self.computes.items() if not self._sums_over_tokens(number)]
        return {row[2] for rows in every for row in rows}

    def _sums_over_tokens(self, number: int) -> bool:
        return is_gradient_of_experts(self.layout.formulas[number])

    def _parts_of(self, rows: Iterable[Row], chunk: int, column: int = 4) -> Iterable[Row]:
        """Yields operations for the tokens of a chunk, none where there are none. column: of their list of tokens."""
        for row in rows:
            parts = self.lists.rows[row[column]]
            some = parts[self.chunk_of[parts] == chunk]
            if len(some):
                yield [*row[:column], self.lists.number(self.tokens, some), *row[column + 1 :]]
