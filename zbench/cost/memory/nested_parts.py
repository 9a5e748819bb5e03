"""Parts of parameters and gradients that lie in one another, on the ranks of a job's stage that has nested degrees.

A layer's parameters lie flat, in as many equal pieces as a stage has ranks, and of a degree d rank r has the pieces r,
r + d, r + 2 d and so on (zbench.step.passes.parameters.zero). Table and head are one such row of pieces, though each is
on another stage, so few ranks have a part of either where a degree is all ranks, and all have one where it is small;
those of tied embeddings are a row each.
What a rank has of the layer that is at work lies in some of its parameters: the fullest rank's where their gradients
are still to come. So bytes are of every rank, and the most of them count.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.degrees import BY_STRATEGY, WORLD, degrees_of
from zbench.describe.model import Model


def has_parts_in_parts(cost: Cost) -> bool:
    """Returns whether parts are counted here: those of nested degrees in stages, of layers without experts, which are
    cut by themselves."""
    degrees = degrees_of(cost.model.sharding)
    return cost.pp > 1 and cost.model.num_experts == 1 and degrees not in BY_STRATEGY.values()


@dataclass(frozen=True)
class NestedParts:
    """The parts that ranks of a stage have of one layer, of the table and of the head. ranks: of the stage."""

    model: Model
    ranks: int

    @staticmethod
    def of(cost: Cost) -> "NestedParts":
        """Returns those of a job's stages."""
        return _known(cost.model, cost.cluster.num_ranks)

    def part(self, begin: float, end: float, total: float, degree: int) -> Floats:
        """Returns the parameters that every rank has by a degree, of those from `begin` to `end` of `total` that lie in
        a row, [ranks]."""
        if degree == 1:
            return np.full(self.ranks, end - begin)
        piece, number = total / self.ranks, np.arange(self.ranks)
        here = np.clip(np.minimum(end, (number + 1) * piece) - np.maximum(begin, number * piece), 0, None)
        every = degree or self.ranks
        return np.asarray(np.bincount(number % every, here, every)[number % every])

    @cached_property
    def _layer(self) -> tuple[float, ...]:
        """Where projections, the output projection, and the feed-forward's way up and way down end in a layer."""
        model = self.model
        attention, layer = model.attention_params, model.layer_params
        out = attention * model.num_heads / (2 * (model.num_heads + model.num_kv_heads))
        return attention - out, attention, layer - (layer - attention) / 3, layer

    def weights(self, begin: float, end: float) -> Floats:
        """Returns the bytes of parameters of a layer, from one to another, that a gather brings, [ranks]."""
        part = self.part(begin, end, self._layer[-1], degrees_of(self.model.sharding).secondary)
        return (end - begin - part) * (self._is_gathered * self.model.element_bytes)

    def gradients(self, begin: float, end: float) -> Floats:
        """Returns the bytes of a layer's gradients, from one parameter to another, before they are reduced, without
        what a rank keeps of their sums, [ranks]."""
        degree = degrees_of(self.model.sharding).gradients
        return (end - begin - self.part(begin, end, self._layer[-1], degree)) * GRADIENT_BYTES

    @property
    def _is_gathered(self) -> bool:
        return degrees_of(self.model.sharding).weights != 1

    def outer(self, is_head: bool, degree: int) -> Floats:
        """Returns the parameters that ranks have of the table, or of the head, by a degree, [ranks]."""
        table, head = self.model.table_params, self.model.head_params
        if self.model.tied_embeddings:
            return self.part(0, table, table, degree)
        return self.part(table * is_head, table + head * is_head, table + head, degree)

    def at_work(self, ahead: float) -> dict[str, float]:
        """Returns the most bytes at the moments of a layer's backward, as zbench.cost.memory.state.WholeBytes has them.
        ahead: how many layers are gathered ahead."""
        projections, attention, up, layer = self._layer
        following, made = ahead * self.weights(0, layer), self.gradients(attention, layer)
        found = {
            "feed_forward": following + self.weights(0, up) + self.gradients(up, layer),
            "norm": following + self.weights(0, attention) + made,
            "chunks": following + self.weights(0, layer) + made,
            "attention": following + self.weights(0, projections) + self.gradients(projections, attention) + made,
            "inputs": following + self.gradients(0, layer),
            "rows": following + self.weights(0, layer),
            "ahead": self.weights(0, layer),
        }
        return {name: float(size.max()) for name, size in found.items()}

    def at_ends(self, at_loss: float, at_table: float, moment_bytes: int) -> dict[str, float]:
        """Returns the most bytes of the table and the head when they are whole, with so many layers gathered ahead, as
        `at_work`: with what a rank has of them all the time, and without the most that one has. moment_bytes: as of
        `outer_state`."""
        one, degrees = self.weights(0, self._layer[-1]), degrees_of(self.model.sharding)
        table, head = (float(size) for size in (self.model.table_params, self.model.head_params))
        each = self._is_gathered * self.model.element_bytes
        rest_of_table = table - self.outer(False, degrees.weights)
        rest_of_head = head - self.outer(True, degrees.weights)
        gradient = head - self.outer(True, degrees.gradients)
        first, last = (self._outer_state(is_head, moment_bytes) for is_head in (False, True))
        found = {
            "loss": (at_loss * one + each * rest_of_head + GRADIENT_BYTES * gradient, last),
            "embedding": (each * rest_of_table + at_table * one, first),
            "table": (GRADIENT_BYTES * (table - self.outer(False, degrees.gradients)), first),
        }
        return {name: float((size + state).max() - state.max()) for name, (size, state) in found.items()}

    def outer_state(self, is_first: bool, is_last: bool, moment_bytes: int) -> float:
        """Returns the bytes of the table, the head or neither, of their gradients and of their optimizer state on the
        rank that has most: parameters as a step holds them, which keeps no more of these for a backward. moment_bytes:
        of a parameter's optimizer state."""
        return float(self._outer_state(is_last, moment_bytes).max()) if is_first or is_last else 0.0

    def _outer_state(self, is_head: bool, moment_bytes: int) -> Floats:
        degrees, found = degrees_of(self.model.sharding), np.zeros(self.ranks)
        for size, degree in (
            (self.model.element_bytes, degrees.weights),
            (GRADIENT_BYTES, degrees.gradients),
            (moment_bytes, degrees.optimizer),
        ):
            found += size * self.outer(is_head, degree)
        return found

    def even_state(self, params: int, moment_bytes: int) -> float:
        """Returns the same bytes of so many parameters if every rank had as much, and kept what layers keep."""
        degrees = degrees_of(self.model.sharding)
        sizes = self.model.element_bytes, GRADIENT_BYTES, moment_bytes
        cut = degrees.secondary, degrees.gradients, degrees.optimizer
        every = (self.ranks if degree == WORLD else degree for degree in cut)
        return params * sum(size / degree for size, degree in zip(sizes, every, strict=True))


@lru_cache(maxsize=16)
def _known(model: Model, ranks: int) -> NestedParts:
    return NestedParts(model, ranks)
