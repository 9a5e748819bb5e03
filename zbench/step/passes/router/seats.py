"""Seats that experts have for the tokens of every GPU, whatever a router chooses while the step runs.

All tokens of a GPU are one part of an index `a`, or those of each chunk in which they go to experts. An expert has as
many seats for each part of it as its capacity says (zbench.step.passes.routing.ExpertParallel), and a seat is a row
that is sent, multiplied and sent home, with a token in it or zeros. So a step, its lists, bytes and proof are the same
for every choice; which token is in which seat is a tensor of the step, made of the logits at home (zbench.step.layers).

Where seats are counted, those with a token alone are sent, and the step says how many there may be at most: of a
dropless expert as many as a GPU has tokens. What is drawn for a clock is then a number below it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.routing.room import expert_room
from zbench.step.expert_cut import ExpertCut
from zbench.step.index import Index, PartMap, Relation

TOGETHER = "a"  # the index of all tokens of a GPU
SEATS = "to"  # the tensor that says which token is in which seat


@dataclass(frozen=True)
class RouterSeats:
    """The seats of a micro-batch. part_home, sizes: int64 [parts of t], the GPU that each is on, and its tokens.
    capacity: seats of an expert over the tokens that it would have if all experts had as many, None: one for every
    token; per_token: experts of a token. cut: of the experts. counted: whether seats with a token alone are sent.
    chunk: int64 [parts of t], which of its GPU's chunks each is in; a chunk's tokens are a part of a."""

    part_home: Ints
    sizes: Ints
    capacity: float | None
    per_token: int
    cut: ExpertCut
    counted: bool
    chunk: Ints

    index = TOGETHER  # what routed rows are cut along

    @cached_property
    def _chunks(self) -> tuple[Ints, Ints]:
        """The GPUs of chunks that have tokens, ascending, int64 [parts of a]; and the part of a that each of t is in,
        int64 [parts of t]."""
        each = int(self.chunk.max(initial=0)) + 1
        found, of_part = np.unique(self.part_home * each + self.chunk, return_inverse=True)
        return found // each, of_part.astype(np.int64)

    @property
    def home(self) -> Ints:
        """The GPU of every part of a, int64 [parts of a]."""
        return self._chunks[0]

    @property
    def of_part(self) -> Ints:
        """The part of a that each of t is in, int64 [parts of t]."""
        return self._chunks[1]

    @cached_property
    def tokens(self) -> Ints:
        """The tokens of every part of a, int64 [parts of a]."""
        return np.bincount(self.of_part, weights=self.sizes).astype(np.int64)

    @cached_property
    def to_experts(self) -> Ints:
        """The seats that every part of an expert has for each part of a, int64 [parts of a, parts of e]."""
        room = expert_room(self.tokens, self.per_token, self.cut.num_experts, self.capacity, self.counted)
        return np.repeat(room[:, None], self.cut.parts, axis=1)

    @cached_property
    def to_slices(self) -> Ints:
        """The seats that every slice of the experts has for each part of a, int64 [parts of a, slices]."""
        return np.asarray(self.to_experts.reshape(len(self.home), self.cut.slices, -1).sum(axis=2))

    @property
    def to_nodes(self) -> Ints:
        """The seats that every group of GPUs with the same experts has for each part of a, int64 [parts of a,
        groups]."""
        return self.to_slices[:, :: self.cut.tensor_parallel]

    def indices(self) -> tuple[Index, ...]:
        """Returns the indices e, experts or parts of these, k, slices of them, n, groups of GPUs with the same experts,
        where they are cut, and a."""
        groups = {"n": self.cut.runs} if self.cut.tensor_parallel > 1 else {}
        counts = {"e": self.cut.parts, "k": self.cut.slices, **groups}
        found = tuple(Index(name, np.ones(count, np.int64)) for name, count in counts.items())
        return (*found, Index(self.index, self.tokens, of_batch=True))

    def maps(self) -> tuple[PartMap, ...]:
        """Returns the maps k(e), n(k) where experts are cut, and a(t)."""
        cut, found = self.cut, [PartMap("k", "e", self.cut.slice_of)]
        found += [PartMap("n", "k", np.arange(cut.slices) // cut.tensor_parallel)] if cut.tensor_parallel > 1 else []
        return (*found, PartMap(self.index, "t", self.of_part))

    def relations(self) -> tuple[Relation, ...]:
        """Returns route(a, e), in which every GPU's tokens meet every expert: they have seats there."""
        every, parts = np.arange(self.cut.parts), np.arange(len(self.home))
        offsets = self.cut.parts * np.arange(len(parts) + 1)
        return (Relation("route", self.index, "e", parts, every, offsets, np.tile(every, len(parts))),)
