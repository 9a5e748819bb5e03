"""Chunks of tokens: formulas in which no token needs another one are computed for some tokens at a time.

Formula after formula, a GPU makes what all of its tokens need before the next one reads it. Chunk after chunk, it takes
a chunk through all formulas in a row before the next chunk begins, so that what they make of a chunk is gone by then
(Mini-Sequence Transformer, arXiv 2407.15892; ALST, arXiv 2506.13996). What sums over tokens, gradients of parameters,
is added to chunk by chunk. Exchanges of a tensor-parallel group stay whole, so that what they bring and take is there
for all tokens.

In a layer with experts a chunk is chosen for, sent to its experts, computed there and sent home before the next one is
chosen for: where experts are on other GPUs, chunk i of all tokens that go to them is there at once, and no other one.
Chunks of zbench.step.passes.overlap.expert_chunks are all sent before any comes home, to be beside each other; these
are after one another, and each may be sent in some of those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula, Reference
from zbench.step.layers import is_gradient_of_experts, of_experts
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.router.seats import TOGETHER

Tensor = tuple[int, int]  # its number, and the offset of its layer

# What a feed-forward makes on its way: a dense layer's, that of one before layers with experts, shared experts, and
# routers, rows and seats of experts.
FEED_FORWARD = (
    *("m", "z", "u", "b", "mf", "zf", "uf", "bf", "zs", "us", "bs"),
    *("r", "rh", "p", "i", "v", "ni", "nv", "ra", "to", "ct", "cn", "pa", "pn"),
)
# Slots of what is wide: rows in which nothing is are not worth a chunk's kernels.
_WIDE = ("f", "v", "w", "e")
_OF_EXPERTS = QUEUES.index("experts")


def by_chunks(tables: Sequence[Ints], section: str, before: bool, of: "TokenChunks") -> list[Ints]:
    """Returns the operations of a section by chunks of tokens: of a layer's templates the feed-forward's, of the head
    all. before: whether what is made again is made of all tokens before any gradient."""

    def is_chunked(formula: Formula) -> bool:
        made_again = formula.results[0].tensor.endswith("~")
        return section == "head" or (_of_feed_forward(formula) and not (before and made_again))

    return _Ordering(of, is_chunked).ordered(tables)


def _of_feed_forward(one: Formula) -> bool:
    """Returns whether a formula makes or reads what a feed-forward makes on its way, or gradients of that."""
    refs = (*one.results, *one.operands)
    return any(ref.tensor.rstrip("~").removeprefix("d") in FEED_FORWARD for ref in refs)


@dataclass(frozen=True)
class TokenChunks:
    """The chunks of a micro-batch. number: of each part of t, and of what routed rows are cut along where that is
    another index, int64 [parts]."""

    layout: StepLayout
    lists: ListTable
    number: Mapping[str, Ints]
    cut: dict[tuple[str, int, int], int] = field(default_factory=dict)

    @cached_property
    def count(self) -> int:
        """The most chunks of any GPU."""
        return int(self.number["t"].max(initial=0)) + 1

    def list_in(self, index: str, number: int, chunk: int) -> int:
        """Returns the list of those parts of an index's list that are in a chunk, -1 if there is none."""
        if (index, number, chunk) not in self.cut:
            parts = self.lists.rows[number]
            mine = parts[self.number[index][parts] == chunk]
            self.cut[index, number, chunk] = self.lists.number(index, mine) if len(mine) else -1
        return self.cut[index, number, chunk]

    def last_of(self, index: str, number: int) -> int:
        """Returns the last chunk that has parts of an index's list."""
        return int(self.number[index][self.lists.rows[number]].max())


@dataclass(frozen=True)
class _Ordering:
    """Orders operations by chunks. is_chunked: which formulas are computed by chunks."""

    chunks: TokenChunks
    is_chunked: Callable[[Formula], bool]

    def ordered(self, tables: Sequence[Ints]) -> list[Ints]:
        """Returns the operations of a section, whose tables are of a formula or an exchange each, by chunks.

        Messages to experts and from them are by chunks as what is computed. Another exchange that stands between
        formulas in a row and moves nothing that these make goes before them. One that does goes behind those that it
        needs; others that something waits for are computed with that, so that it is all of a chunk that is there.
        """
        found: list[Ints] = []
        run: list[Ints] = []
        every = [one for one in tables if len(one)]
        for at, table in enumerate(every):
            if self._in_chunks(table):
                run.append(table)
                continue
            now = run if table[0, 0] == COMPUTE else self._needed(run, table, every[at + 1 :])
            run = [one for one in run if not any(one is other for other in now)]
            found += [*self._by_chunks(now), table]
        return found + self._by_chunks(run)

    def _in_chunks(self, table: Ints) -> bool:
        """Returns whether an operation is by chunks."""
        if table[0, 0] == COMPUTE:
            return self.is_chunked(self._formula(table))
        return bool(table[0, 8] == _OF_EXPERTS)

    def _needed(self, run: list[Ints], exchange: Ints, later: Sequence[Ints]) -> list[Ints]:
        """Returns those operations in a row that go before an exchange: what it needs, and what nothing by chunks waits
        for, as gradients of parameters; none where it needs none."""
        needed, awaited = self._makes(exchange), set[Tensor]()
        if not any(self._makes(one) & needed for one in run):
            return []
        for one in later:
            awaited |= self._reads(one) if self._in_chunks(one) else set()
        found = list[Ints]()
        for one in reversed(run):
            made = self._makes(one)
            if made & needed or not made & awaited:
                needed |= self._reads(one)
                found.append(one)
            else:
                awaited |= self._reads(one)
        return found[::-1]

    def _formula(self, table: Ints) -> Formula:
        return self.chunks.layout.formulas[int(table[0, 1])]

    def _makes(self, table: Ints) -> set[Tensor]:
        """Returns the tensors that operations make, add to or move."""
        return self._tensors(table, self._formula(table).results if table[0, 0] == COMPUTE else ())

    def _reads(self, table: Ints) -> set[Tensor]:
        """Returns the tensors that operations read or move."""
        return self._tensors(table, self._formula(table).operands if table[0, 0] == COMPUTE else ())

    def _tensors(self, table: Ints, refs: Sequence[Reference]) -> set[Tensor]:
        """Returns the tensors of some references of a formula, or those that messages or a collective move."""
        if table[0, 0] != COMPUTE:
            return {(what, layer) for what, layer in table[:, [1, 7]].tolist()}
        return {(self.chunks.layout.number[one.tensor], int(table[0, 7]) + one.after) for one in refs}

    def _by_chunks(self, run: list[Ints]) -> list[Ints]:
        """Returns the operations of formulas in a row, and of messages between them, chunk after chunk."""
        computed = [self._formula(table) for table in run if table[0, 0] == COMPUTE]
        if not any(slot in _WIDE for one in computed for slot in one.slots):
            return run
        has_tokens = {
            gpu
            for table in run
            if table[0, 0] == COMPUTE and of_experts(one := self._formula(table)) and not is_gradient_of_experts(one)
            for gpu in table[:, 2].tolist()
        }
        found = []
        for chunk in range(self.chunks.count):
            for table in run:
                index, column = self._tokens_of(table)
                mine = table.copy()
                of_experts_alone = table[0, 0] == COMPUTE and is_gradient_of_experts(self._formula(table))
                mine[:, column] = [
                    self._zeros_in(index, row[column], chunk)
                    if of_experts_alone and row[2] not in has_tokens
                    else self.chunks.list_in(index, row[column], chunk)
                    for row in table.tolist()
                ]
                found.append(mine[mine[:, column] >= 0])
        return [one for one in found if len(one)]

    def _tokens_of(self, table: Ints) -> tuple[str, int]:
        """Returns the index that operations' tokens are of, and the column of their list."""
        layout = self.chunks.layout
        if table[0, 0] != COMPUTE:
            return layout.tensors[table[0, 1]].axes[0], 4
        slots = self._formula(table).slots
        index = "t" if "t" in slots else TOGETHER
        return index, 4 + slots.index(index)

    def _zeros_in(self, index: str, number: int, chunk: int) -> int:
        """Returns the list of tokens by which gradients of experts without a token are zeros, which are written once,
        with the last chunk of their GPU's group; -1 with others."""
        return number if chunk == self.chunks.last_of(index, number) else -1
