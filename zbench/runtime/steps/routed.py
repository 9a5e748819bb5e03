"""The experts that tokens chose, and which rows of routed tokens the cells of an operation have. Pure.

Of a tensor with amounts, as i[t,k] or z[t,e], a cell has the rows of those tokens of its part that go there, in the
tokens' order. Cells lie one after another, those of a slice or of an expert together, so that an expert's rows are one
piece. A step says how many tokens go where; which ones is data, as their words are.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.runtime.steps.instructions import Parts


@dataclass(frozen=True)
class RoutedTokens:
    """The experts of the tokens of a micro-batch.

    chosen: int64 [tokens, experts a token], of a token none twice; tokens in the order of parts of t. sizes: int64
    [parts], the tokens of each. slices: int64 [experts], the slice (a part of k) that each expert lies in.
    """

    chosen: Ints
    sizes: Ints
    slices: Ints

    @cached_property
    def _begin(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def amounts(self, index: str) -> Ints:
        """Returns the tokens of every part that go to every expert (index e) or slice (k), int64 [parts, those]."""
        if index == "e":
            goes = [(self.chosen == expert).any(axis=1) for expert in range(len(self.slices))]
        else:
            goes = [self._to_slice(self.chosen, part).any(axis=1) for part in range(int(self.slices.max()) + 1)]
        counted = np.concatenate([np.zeros((1, len(goes)), np.int64), np.cumsum(np.stack(goes, axis=1), axis=0)])
        return np.asarray(np.diff(counted[self._begin], axis=0), np.int64)

    def _to_slice(self, chosen: Ints, part: int) -> Flags:
        """Returns which choices are experts of a slice."""
        return np.asarray(self.slices[chosen] == part)

    def of(self, parts: Parts) -> Ints:
        """Returns the experts of the tokens of parts, part after part, int64 [tokens, experts a token]."""
        rows = [np.arange(self._begin[part], self._begin[part + 1]) for part in parts]
        return np.asarray(self.chosen[np.concatenate([np.zeros(0, np.int64), *rows])], np.int64)

    def to_slice(self, parts: Parts, part: int) -> tuple[Ints, Flags]:
        """Returns the tokens of parts that go to a slice, by their number among these, and which of their choices are
        of the slice, bool [tokens that go there, experts a token]."""
        inside = self._to_slice(self.of(parts), part)
        tokens = np.flatnonzero(inside.any(axis=1))
        return tokens, inside[tokens]

    def to_experts(self, parts: Parts, experts: Parts) -> list[tuple[Ints, Ints]]:
        """Returns for each expert the rows of what its slice was sent of parts, i[t,k(e)], that go to it, and as which
        of their tokens' choices. The slices of all experts named follow one another in these rows."""
        chosen, begin, sent = self.of(parts), 0, {}
        for part in np.unique(self.slices[list(experts)]).tolist():
            tokens = np.flatnonzero(self._to_slice(chosen, part).any(axis=1))
            sent[part] = (begin, tokens)
            begin += len(tokens)
        found = []
        for expert in experts:
            first, tokens = sent[int(self.slices[expert])]
            rows, choice = np.nonzero(chosen[tokens] == expert)
            found.append((first + rows, choice))
        return found
