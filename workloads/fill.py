"""Fills a batch of exactly the asked number of tokens with documents of given lengths. Pure.

What all workloads share: draw documents until the batch is full, cut the last one, and let
nothing over the context limit through (cut to the limit, or dropped). A workload only says
how one document is drawn.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import choice, whole

_FIRST_DRAW = 1024
_LARGEST_DRAW = 1 << 20
# After this many documents in a row that are all over the limit, the next one will be too.
_PATIENCE = 1 << 16


class Lengths(Protocol):
    """A distribution of document lengths, before any context limit."""

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws the lengths of `num` documents."""

    def cdf(self, length: Ints) -> Floats:
        """Returns the share of documents no longer than `length`."""


class Drawn(Lengths, Protocol):
    """A workload whose batches are independent draws of lengths."""

    @property
    def seed(self) -> int:
        """The seed of the draws."""

    @property
    def tokens(self) -> int:
        """The tokens of a batch."""

    @property
    def context_limit(self) -> int:
        """The most tokens of a sequence."""

    @property
    def over_limit(self) -> str:
        """The treatment of a document over the limit: "cut" or "drop"."""


def check_batch(seed: int, tokens: int, context_limit: int, over_limit: str) -> None:
    """Checks the four fields that every workload has."""
    whole("seed", seed, 0, math.inf)  # the run's, not one of the workload
    whole("workload.tokens", tokens, 1)
    whole("workload.context_limit", context_limit, 1)
    choice("workload.over_limit", over_limit, ("cut", "drop"))


def generator(seed: int, step: int) -> np.random.Generator:
    """Returns the only source of randomness: a function of (seed, step)."""
    whole("step", step, 0)
    return np.random.default_rng(np.random.SeedSequence([seed, step]))


def drawn_batch(workload: Drawn, step: int) -> Batch:
    """Returns the batch of `step` of a workload that draws lengths."""
    rng = generator(workload.seed, step)
    lengths, _ = fill(lambda num: workload.draw(rng, num), workload.tokens, workload.context_limit, workload.over_limit)
    return Batch(lengths=lengths, seed=workload.seed, step=step)


def fill(
    draw: Callable[[int], Ints], tokens: int, context_limit: int, over_limit: str, sizes: Ints | None = None
) -> tuple[Ints, Ints]:
    """Draws documents until they hold exactly `tokens` tokens; returns (lengths, documents), in the order they were
    drawn.

    draw(num) gives the next documents: their numbers if `sizes` (the length of every document of
    a corpus) is given, else their lengths; documents then just repeats the uncut lengths.
    """
    parts: list[tuple[Ints, Ints]] = []
    filled = num_drawn = 0
    num = min(_FIRST_DRAW, tokens)
    while filled < tokens:
        documents = draw(num)
        lengths = documents if sizes is None else sizes[documents]
        if over_limit == "drop":
            within = lengths <= context_limit
            lengths, documents = lengths[within], documents[within]
        lengths = np.minimum(lengths, context_limit)
        parts.append((lengths, documents))
        filled += int(lengths.sum())
        num_drawn += num
        if filled == 0 and num_drawn >= _PATIENCE:
            raise ValueError(
                f"workload.context_limit is {context_limit}; with workload.over_limit=drop all of the first "
                f"{num_drawn} documents are longer and dropped, so it must be larger"
            )
        num = _next_draw(tokens - filled, filled, num_drawn)
    return _cut_last(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), tokens)


def _next_draw(missing: int, filled: int, num_drawn: int) -> int:
    """Returns how many documents to draw next: a tenth more than the mean so far asks for, so few rounds are needed."""
    if filled == 0:
        return min(2 * num_drawn, _LARGEST_DRAW)
    return min(int(1.1 * missing * num_drawn / filled) + 16, _LARGEST_DRAW)


def _cut_last(lengths: Ints, documents: Ints, tokens: int) -> tuple[Ints, Ints]:
    """Returns the first documents that together hold `tokens`, the last one cut to fit."""
    ends = np.cumsum(lengths)
    last = int(np.searchsorted(ends, tokens))
    kept = lengths[: last + 1].copy()
    kept[-1] -= int(ends[last]) - tokens
    return kept, documents[: last + 1].copy()
