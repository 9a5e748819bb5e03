"""The tokens of a micro-batch by the parts of a step's index t, and which of them an attend's kernel is given. Pure.

A step says how many tokens a part has; which they are is data, as their words are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.mask import Mask
from zbench.plans.columns import Blocks, Lists, Ops
from zbench.plans.cut_blocks import cut_blocks
from zbench.plans.plan import Plan
from zbench.plans.segments import Segments, segments
from zbench.runtime.steps.instructions import Parts
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import Routing


@dataclass(frozen=True)
class TokenParts:
    """The tokens of a micro-batch's parts of t.

    seq, start, stop, part: int64 [pieces], tokens [start, stop) of sequence seq are of the part; sorted by (seq,
    start). lengths: int64 [sequences]; numbers: int64 [sequences], which of the batch's sequences they are. sizes:
    int64 [parts], the tokens of each part. chosen: int64 [tokens, experts a token], the experts of every token in the
    order of `rows`, None where none are drawn. padding: as of zbench.step.passes.routing.Routing.
    """

    seq: Ints
    start: Ints
    stop: Ints
    part: Ints
    lengths: Ints
    numbers: Ints
    sizes: Ints
    mask: Mask
    chosen: Ints | None = None
    padding: Ints | None = None

    @staticmethod
    def of(parts: PlanParts) -> "TokenParts":
        """Returns the tokens of a plan's parts: of each block its parts have its tokens in order.

        Raises:
            ValueError: sequences are padded.
        """
        plan = parts.plan
        if plan.padding is not None:
            raise ValueError("plan.padding is given; steps that are executed have no words for padding, and take none")
        one, routing = cut_blocks(plan.blocks, parts.block, parts.sizes), parts.routing
        drawn = (routing.chosen, routing.padding) if isinstance(routing, Routing) else (None, None)
        where = (one.seq, one.start, one.stop, one.block)
        return TokenParts(*where, plan.lengths, plan.sequences, parts.sizes, plan.mask, *drawn)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.seq, self.start, self.stop, self.part, np.zeros(len(self.sizes), np.int64))

    def rows(self, parts: Parts) -> tuple[Ints, Ints]:
        """Returns (number of the sequence in the batch, position in it) of the tokens of parts, part after part."""
        none = [np.zeros(0, np.int64)]
        pieces = [int(piece) for part in parts for piece in self._blocks.pieces[part]]
        sequence = [np.full(self.stop[at] - self.start[at], self.numbers[self.seq[at]]) for at in pieces]
        position = [np.arange(self.start[at], self.stop[at]) for at in pieces]
        return np.concatenate(none + sequence), np.concatenate(none + position)

    def segments(self, pairs: Sequence[tuple[Parts, Parts]]) -> list[Segments]:
        """Returns the segments that kernels compute for pairs of a list of queries and a list of keys."""
        lists = Lists.of([list(one) for pair in pairs for one in pair])
        none = Ops.concatenate([])
        plan = Plan(
            self.lengths, self.numbers, 1, 1, self._blocks, lists, none, none, Lists.of([]), self.mask
        )  # as far as segments look at one
        at = np.arange(len(pairs), dtype=np.int64)
        return segments(plan, 2 * at, 2 * at + 1)


_NONE = np.zeros(0, np.int64)
NO_TOKENS = TokenParts(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, Mask())


def tokens_of(parts: Sequence[PlanParts]) -> tuple[TokenParts, ...]:
    """Returns the tokens of every micro-batch's parts, with the experts that a step's passes draw for them."""
    return tuple(map(TokenParts.of, parts))


def routes_of(tokens: Sequence[TokenParts]) -> dict[int, Ints]:
    """Returns the experts of every token of every sequence, by its number in the batch; nothing of a model without
    experts."""
    found: dict[int, Ints] = {}
    for one in tokens:
        if one.chosen is not None:
            sequence, position = one.rows(tuple(range(len(one.sizes))))
            for number in one.numbers.tolist():
                mine = sequence == number
                found[number] = one.chosen[mine][np.argsort(position[mine])]
    return found
