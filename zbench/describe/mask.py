"""A mask says what a query sees of its sequence: `causal`, `full` or `window:N`.

A query at position i sees the keys j of its sequence with

    causal      j <= i
    full        any j
    window:N    i - N < j <= i: N tokens, itself among them

N is Mistral's and Hugging Face's `sliding_window` and, less one, FlashAttention's `window_size=(N - 1, 0)`, which
counts the keys to the left of a query and not the query. A mask is of a model (Model.mask), and every plan has one
(Plan.mask): what follows from it is asked there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.checks import is_whole

LONGEST = 2**40  # tokens: more than any sequence has, and far from what int64 squares hold
TAKES = (
    f"causal, full, or window:N with N tokens, at least 1 and at most {LONGEST:,}, that a query sees up to and with "
    "itself"
)


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a model or a plan. causal: a query sees no key after itself. window: keys that it sees at most,
    itself among them; 0: no limit."""

    causal: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool) or not is_whole(self.window) or not 0 <= self.window <= LONGEST:
            raise ValueError(f"a mask of causal={self.causal!r}, window={self.window!r}; it takes {TAKES}")
        if self.window and not self.causal:
            raise ValueError("a mask with a window that is not causal; a window is of keys up to the query")

    @staticmethod
    def of(words: Any) -> "Mask":
        """Returns the mask that a user names.

        Raises:
            ValueError: it is none.
        """
        if words in ("causal", "full"):
            return Mask(causal=words == "causal")
        kind, _, count = str(words).partition(":")
        if kind != "window" or not (count.isascii() and count.isdigit()) or not 1 <= int(count[:20]) <= LONGEST:
            raise ValueError(f"mask is {words!r}; it takes {TAKES}")
        return Mask(window=int(count))

    def __str__(self) -> str:
        if self.window:
            return f"window:{self.window}"
        return "causal" if self.causal else "full"

    def for_lengths(self, lengths: Ints) -> "Mask":
        """Returns the mask itself, or the causal one where its window is as long as the longest sequence: they are the
        same."""
        return Mask() if self.window and self.window >= lengths.max(initial=0) else self

    def between(self, q_start: Ints, q_stop: Ints, k_start: Ints, k_stop: Ints) -> Ints:
        """Counts the visible pairs of queries [q_start, q_stop) and keys [k_start, k_stop) of one sequence, int64 [n]
        each.

        Of queries below q and keys below k there are T(q) - T(q - k) with j <= i, where T(x) = x (x + 1) / 2 for x > 0:
        a triangle, less that of the queries past the last key. Those with j <= i - N are as many as of q - N queries.
        """
        if not self.causal:
            return np.asarray((q_stop - q_start) * (k_stop - k_start), np.int64)
        corners = ((q_stop, k_stop, 1), (q_start, k_stop, -1), (q_stop, k_start, -1), (q_start, k_start, 1))
        total = np.zeros(np.shape(q_stop), np.int64)
        for q, k, sign in corners:
            total += sign * (_below(q, k) - (_below(q - self.window, k) if self.window else 0))
        return total

    def pairs(self, lengths: Ints) -> int:
        """Counts the visible (query, key) pairs of whole sequences of these lengths, int64 [n]."""
        if self == CAUSAL:  # asked for of every plan
            return int(_triangle(lengths).sum())
        return int(self.between(0 * lengths, lengths, 0 * lengths, lengths).sum())

    def sees(self, queries: Ints, keys: Ints) -> Flags:
        """Tells which keys queries see, by their positions in one sequence, of any shapes that go together."""
        back = queries - keys
        causal = (back >= 0) | (not self.causal)
        return np.asarray(causal & (back < self.window) if self.window else causal, bool)

    def reach(self, start: Ints) -> Ints:
        """Returns how many keys before position `start` the query there sees, where the mask is causal."""
        return np.minimum(start, self.window - 1) if self.window else start


def _below(q: Ints, k: Ints) -> Ints:
    """Counts the pairs with j <= i of queries i < q and keys j < k."""
    return _triangle(q) - _triangle(q - k)


def _triangle(side: Ints) -> Ints:
    side = np.maximum(side, 0)
    return np.asarray(side * (side + 1) // 2, np.int64)


CAUSAL, FULL = Mask(), Mask(causal=False)
