"""Batches of prompts and responses: filled to exactly the asked number of tokens, as drawn or in tail batches. Pure.

Tail batching: most steps (short rounds) begin more sequences than they train on and keep those that end first; the
others are given up, and begin anew in a step of their own (a long round). Here all begin at once, so the shortest
responses end first. Which sequences a batch has is then another matter, so this is the workload's and no schedule of a
job: two systems are compared on the same batches. Source: RollPacker (arXiv 2509.21009); its queue goes on for all of
training, and here it is empty after every long round, so that a batch is a function of (seed, step).
"""

from typing import Protocol

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch, Rollouts
from zbench.workloads.check import whole
from zbench.workloads.fill import generator

_FIRST_DRAW, _LARGEST_DRAW = 64, 1 << 18


class PairSource(Protocol):
    """A workload that draws prompts and responses."""

    @property
    def seed(self) -> int:
        """The seed of the draws."""

    @property
    def tokens(self) -> int:
        """The tokens of a batch."""

    @property
    def short_rounds(self) -> int:
        """The short rounds before each long one; 0: batches are as drawn."""

    def draw_pairs(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws at least `num` sequences, int64 [2, sequences]: tokens of their prompts and responses, each at least
        1."""


def pair_batch(source: PairSource, step: int) -> Batch:
    """Returns the batch of `step`."""
    whole("step", step, 0)
    rounds = source.short_rounds
    if not rounds:
        pairs, given_up = _filled(source, step, source.tokens), np.zeros((2, 0), np.int64)
    elif step % (rounds + 1) < rounds:
        pairs, _, given_up = _short_round(source, step)
    else:
        pairs = np.concatenate([_short_round(source, step - rounds + at)[1] for at in range(rounds)], axis=1)
        given_up = np.zeros((2, 0), np.int64)
    rollouts = Rollouts(np.ascontiguousarray(pairs[0]), given_up)
    return Batch(lengths=pairs.sum(axis=0), seed=source.seed, step=step, rollouts=rollouts)


def _short_round(source: PairSource, step: int) -> tuple[Ints, Ints, Ints]:
    """Returns the sequences that a short round trains on, those that it leaves to the long one, and these as they were
    when they were given up."""
    rounds, tokens = source.short_rounds, source.tokens
    number = step % (rounds + 1)
    more = tokens * (number + 1) // rounds - tokens * number // rounds
    begun = _filled(source, step, tokens + more)
    order = np.argsort(begun[1], kind="stable")
    ends = np.cumsum(begun[:, order].sum(axis=0))
    last = int(np.searchsorted(ends, tokens))
    kept, left = begun[:, np.sort(order[: last + 1])], begun[:, np.sort(order[last + 1 :])]
    if over := int(ends[last]) - tokens:  # the sequence at the border is cut, and its rest is one of the long round's
        at = int(np.flatnonzero(np.sort(order[: last + 1]) == order[last])[0])
        border = kept[:, at].copy()
        kept[:, at] = _cut(border, int(border.sum()) - over)
        left = np.concatenate([left, _cut(border - kept[:, at], over)[:, None]], axis=1)
    longest = int(kept[1].max())
    return kept, left, np.stack([left[0], np.minimum(left[1], longest)])


def _filled(source: PairSource, step: int, tokens: int) -> Ints:
    """Draws sequences until they hold exactly `tokens` tokens; the last one is cut."""
    rng, parts, filled, num = generator(source.seed, step), list[Ints](), 0, _FIRST_DRAW
    while filled < tokens:
        parts.append(source.draw_pairs(rng, num))
        filled += int(parts[-1].sum())
        num = min(2 * num, _LARGEST_DRAW)
    pairs = np.concatenate(parts, axis=1)
    ends = np.cumsum(pairs.sum(axis=0))
    last = int(np.searchsorted(ends, tokens))
    kept = pairs[:, : last + 1].copy()
    kept[:, last] = _cut(kept[:, last], int(kept[:, last].sum()) - int(ends[last]) + tokens)
    return kept


def _cut(pair: Ints, tokens: int) -> Ints:
    """Returns the first `tokens` of a sequence; the last one counts as its response's."""
    prompt = min(int(pair[0]), tokens - 1)
    return np.array([prompt, tokens - prompt], np.int64)
