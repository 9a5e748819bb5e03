"""Chunks of tokens: formulas in which no token needs another one are computed for some tokens at a time.

Formula after formula, a GPU makes what all of its tokens need before the next one reads it. Chunk after chunk, it takes
a chunk through all formulas in a row before the next chunk begins, so that what they make of a chunk is gone by then
(Mini-Sequence Transformer, arXiv 2407.15892; ALST, arXiv 2506.13996). What sums over tokens, gradients of parameters,
is added to chunk by chunk. Exchanges of a tensor-parallel group stay whole, so that what they bring and take is there
for all tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.formula import Formula
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE

FEED_FORWARD = ("m", "z", "u", "b")  # what a dense layer's feed-forward makes on its way
_WIDE = ("f", "v")  # slots of what is wide: rows in which nothing is are not worth a chunk's kernels


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
    """The chunks of a micro-batch. number: of each part of t, int64 [parts]."""

    layout: StepLayout
    lists: ListTable
    number: Ints
    cut: dict[tuple[int, int], int] = field(default_factory=dict)

    def list_in(self, number: int, chunk: int) -> int:
        """Returns the list of those parts of a list that are in a chunk, -1 if there is none."""
        if (number, chunk) not in self.cut:
            parts = self.lists.rows[number]
            mine = parts[self.number[parts] == chunk]
            self.cut[number, chunk] = self.lists.number("t", mine) if len(mine) else -1
        return self.cut[number, chunk]


@dataclass(frozen=True)
class _Ordering:
    """Orders operations by chunks. is_chunked: which formulas are computed by chunks."""

    chunks: TokenChunks
    is_chunked: Callable[[Formula], bool]

    def ordered(self, tables: Sequence[Ints]) -> list[Ints]:
        """Returns the operations of a section, whose tables are of a formula or an exchange each, by chunks.

        An exchange that stands between formulas in a row and moves nothing that these make goes before them.
        """
        found: list[Ints] = []
        run: list[Ints] = []
        for table in (one for one in tables if len(one)):
            if table[0, 0] == COMPUTE:
                if self.is_chunked(self.chunks.layout.formulas[table[0, 1]]):
                    run.append(table)
                    continue
            elif run and int(table[0, 1]) not in self._made(run):
                found.append(table)
                continue
            found += [*self._by_chunks(run), table]
            run = []
        return found + self._by_chunks(run)

    def _made(self, run: Sequence[Ints]) -> set[int]:
        """Returns the numbers of the tensors that formulas in a row make."""
        layout = self.chunks.layout
        return {layout.number[ref.tensor] for one in run for ref in layout.formulas[one[0, 1]].results}

    def _by_chunks(self, run: list[Ints]) -> list[Ints]:
        """Returns the operations of formulas in a row, chunk after chunk."""
        slots = [self.chunks.layout.formulas[table[0, 1]].slots for table in run]
        if not any(slot in _WIDE for one in slots for slot in one):
            return run
        found = []
        for chunk in range(int(self.chunks.number.max()) + 1):
            for table, of in zip(run, slots, strict=True):
                column = 4 + of.index("t")
                lists = np.array([self.chunks.list_in(one, chunk) for one in table[:, column].tolist()], np.int64)
                mine = table.copy()
                mine[:, column] = lists
                found.append(mine[lists >= 0])
        return [one for one in found if len(one)]
