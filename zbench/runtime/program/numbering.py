"""Rows of blocks, one block after another, as arrays or, where they follow one another, as slices. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.plans.plan import Ints
from zbench.runtime.program.program import Rows


@dataclass(frozen=True)
class Numbering:
    """A numbering of the rows of blocks. tokens: int64 [num_blocks]. make_index: what an array of rows becomes for the
    runtime."""

    tokens: Ints
    make_index: Callable[[Ints], Any]

    def firsts(self, blocks: Ints) -> tuple[Ints, int]:
        """Returns (first row of every block in list order, rows in all)."""
        ends = np.cumsum(self.tokens[blocks])
        return ends - self.tokens[blocks], int(ends[-1])

    def of(self, blocks: Ints, first: Ints) -> Ints:
        """Returns the rows of `blocks`, which begin at `first`, one block after another."""
        counts = self.tokens[blocks]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return np.asarray(np.arange(total) + np.repeat(first - (ends - counts), counts), np.int64)

    def both(self, blocks: Ints, there: Ints, here: Ints) -> tuple[Rows, Rows]:
        """Returns the rows of blocks at two places, as indices."""
        return self.index(self.of(blocks, there)), self.index(self.of(blocks, here))

    def index(self, rows: Ints) -> Rows:
        """Makes rows a slice where they follow one another, which needs no copy."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return self.make_index(rows)


def is_all(rows: Ints, count: int) -> bool:
    """Returns whether these are all of `count` rows, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())
