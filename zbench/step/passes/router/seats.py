"""Seats that experts have for the tokens of every GPU, whatever a router chooses while the step runs.

All tokens of a GPU are one part of an index `a`. An expert has as many seats for each part of it as its capacity says
(zbench.step.passes.routing.ExpertParallel), and a seat is a row that is sent, multiplied and sent home, with a token in
it or zeros. So a step, its lists, bytes and proof are the same for every choice; which token is in which seat is a
tensor of the step, made of the logits at home (zbench.step.layers).

Where seats are counted, those with a token alone are sent, and the step says how many there may be at most: of a
dropless expert as many as a GPU has tokens. What is drawn for a clock is then a number below it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.index import Index, PartMap, Relation

TOGETHER = "a"  # the index of all tokens of a GPU
SEATS = "to"  # the tensor that says which token is in which seat
SEAT_BYTES = 8  # of the number of the token in a seat, as indices of torch are


@dataclass(frozen=True)
class RouterSeats:
    """The seats of a micro-batch. part_home, sizes: int64 [parts of t], the GPU that each is on, and its tokens.
    capacity: seats of an expert over the tokens that it would have if all experts had as many, None: one for every
    token; per_token: experts of a token. slices: of experts, one a GPU of a group. counted: whether seats with a token
    alone are sent."""

    part_home: Ints
    sizes: Ints
    capacity: float | None
    per_token: int
    num_experts: int
    slices: int
    counted: bool = False

    index = TOGETHER  # what routed rows are cut along

    @cached_property
    def home(self) -> Ints:
        """The GPUs that have tokens, ascending, int64 [parts of a]."""
        return np.unique(self.part_home)

    @cached_property
    def tokens(self) -> Ints:
        """The tokens of every GPU that has some, int64 [parts of a]."""
        return np.bincount(np.searchsorted(self.home, self.part_home), weights=self.sizes).astype(np.int64)

    @cached_property
    def to_experts(self) -> Ints:
        """The seats that every expert has for each part of a, int64 [parts of a, experts]."""
        even = self.tokens * self.per_token / self.num_experts
        room = self.tokens if self.capacity is None else np.ceil(self.capacity * even).astype(np.int64)
        room = np.minimum(room, self.tokens) if self.counted else room
        return np.repeat(room[:, None], self.num_experts, axis=1)

    @cached_property
    def to_slices(self) -> Ints:
        """The seats that every slice of the experts has for each part of a, int64 [parts of a, slices]."""
        return np.asarray(self.to_experts.reshape(len(self.home), self.slices, -1).sum(axis=2))

    def indices(self) -> tuple[Index, ...]:
        """Returns the indices e, experts, k, slices of them, and a."""
        counts = {"e": self.num_experts, "k": self.slices}
        found = tuple(Index(name, np.ones(count, np.int64)) for name, count in counts.items())
        return (*found, Index(self.index, self.tokens, of_batch=True))

    def maps(self) -> tuple[PartMap, ...]:
        """Returns the maps k(e) and a(t)."""
        slices = np.arange(self.num_experts) // (self.num_experts // self.slices)
        return PartMap("k", "e", slices), PartMap(self.index, "t", np.searchsorted(self.home, self.part_home))

    def relations(self) -> tuple[Relation, ...]:
        """Returns route(a, e), in which every GPU's tokens meet every expert: they have seats there."""
        every, parts = np.arange(self.num_experts), np.arange(len(self.home))
        offsets = self.num_experts * np.arange(len(parts) + 1)
        return (Relation("route", self.index, "e", parts, every, offsets, np.tile(every, len(parts))),)
