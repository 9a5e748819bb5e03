"""Counts of lossy hops of parameters and gradients, by GPU and cell, where transfers have fewer bits.

What GPUs hold follows from degrees: of a degree every run of GPUs has all cells, each on the GPU that is at the place
of its run at which the cell's home is in its own. Who gets a cell by a gather has one hop more than who it comes from,
who has it already none; a sum has as many as the contribution with the most. These are rules of degrees, which the
proof holds against the operations (zbench.step.proof).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.degrees import WORLD
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, ShardedParameters
from zbench.step.template import Encoding
from zbench.step.tensor import Tensor


def encodings_of(parameters: ShardedParameters) -> dict[str, Encoding]:
    """Returns the encodings of transfers that have fewer bits, by kind, each its own: what has come by one and goes on
    by another is encoded anew."""
    bits, size, found = parameters.degrees.bits, parameters.model.element_bytes, dict[str, Encoding]()
    for kind, each, of in (
        ("weights", bits.weights, size),
        ("secondary", bits.secondary, size),
        ("updates", bits.updates, size),
        ("gradients", bits.gradients, max(GRADIENT_BYTES, size)),
    ):
        if each is not None:
            found[kind] = Encoding(f"{kind}_int{each}", each, True, of, bits.block)
    return found


class LossyHops:
    """The lossy hops of a step's parameters and gradients, int64 [GPUs, cells] each."""

    def __init__(self, of: ShardedParameters) -> None:
        self.of, self.encodings = of, encodings_of(of)
        self.numbers = {kind: number for number, kind in enumerate(self.encodings)}
        self.held = cache(self._held)
        self.forward = cache(self._forward)
        self.backward = cache(self._backward)

    def _table(self, weight: str) -> tuple[Ints, Ints]:
        """Returns the numbers of GPUs, one a row, and the homes of cells."""
        return np.arange(self.of.num_gpus)[:, None], self.of.home(weight)

    def holds(self, weight: str, degree: int) -> Flags:
        """Returns which GPUs have which cells where a parameter is cut by a degree."""
        gpus, home = self._table(weight)
        every = self.of.every(weight, degree)
        return np.asarray(gpus % every == home % every)

    def _source(self, weight: str, degree: int) -> Ints:
        """Returns which GPU of everyone's run has each cell."""
        gpus, home = self._table(weight)
        every = self.of.every(weight, degree)
        return np.asarray(gpus // every * every + home % every)

    def _gathered(self, weight: str, hops: Ints, degree: int, lossy: int | Ints) -> Ints:
        """Returns the hops after a gather from those that hold cells by a degree."""
        come = np.take_along_axis(hops + lossy, self._source(weight, degree), axis=0)
        return np.where(self.holds(weight, degree), hops, come)

    def _held(self, weight: str) -> Ints:
        """Returns the hops where parameters are held in a step: updated ones are sent on as they have arrived."""
        of, none = self.of, np.zeros((self.of.num_gpus, len(self.of.home(weight))), np.int64)
        if "updates" not in self.encodings or of.degrees.optimizer == of.degrees.weights:
            return none
        return np.where(self.holds(weight, of.degrees.optimizer), none, 1)

    def _forward(self, weight: str) -> Ints:
        """Returns the hops where a forward has gathered parameters."""
        lossy = int("weights" in self.encodings)
        return self._gathered(weight, self.held(weight), self.of.degrees.weights, lossy)

    def _backward(self, weight: str) -> Ints:
        """Returns the hops where a backward has gathered parameters."""
        lossy = int("secondary" in self.encodings)
        return self._gathered(weight, self.forward(weight), self.of.degrees.secondary, lossy)

    def reduced(self, weight: str, takes_part: Flags, last: bool) -> Ints:
        """Returns the hops of sums of a gradient after it was reduced. takes_part: which GPUs have contributed to it so
        far. last: after the last micro-batch."""
        of, home = self.of, self.of.home(weight)
        hops = np.zeros((of.num_gpus, len(home)), np.int64)
        if "gradients" not in self.encodings:
            return hops
        count = of.slices(weight)[1]
        there = np.repeat(takes_part[:, None], len(home), axis=1)
        there &= np.arange(of.num_gpus)[:, None] % count == np.repeat(np.arange(count), len(home) // count)
        columns = np.arange(len(home))
        for inner, outer in of.reduced_by(last):
            source, has = self._source(weight, outer), self.holds(weight, inner) & there
            sent = np.where(has, hops + (source != np.arange(of.num_gpus)[:, None]), 0)
            arrived, reached = np.zeros_like(hops), np.zeros_like(there)
            np.maximum.at(arrived, (source, columns), sent)
            np.logical_or.at(reached, (source, columns), has)
            hops, there = np.where(self.holds(weight, outer), arrived, hops), reached
        if last and of.degrees.optimizer != WORLD:
            hops = np.take_along_axis(hops, self._source(weight, WORLD), axis=0)
        return hops

    def most(self, weight: str, counts: Ints) -> tuple[int, int]:
        """Returns the hops of a parameter and of its gradient where they are read, at most. counts: contributions of
        every GPU to the gradient, -1 where it had no part."""
        count, cells = self.of.slices(weight)[1], len(self.of.home(weight))
        mine = np.arange(self.of.num_gpus)[:, None] % count == np.repeat(np.arange(count), cells // count)
        mine &= counts[:, None] > 0
        used = self.forward(weight)
        if weight in self.of.of_layers:
            used = np.maximum(used, self.backward(weight))
        summed = self.reduced(weight, counts >= 0, True)
        updated = self.holds(weight, self.of.degrees.optimizer)
        return int(used[mine].max(initial=0)), int(summed[updated].max(initial=0))


def with_lossy_hops(
    tensors: Sequence[Tensor], parameters: ShardedParameters, gradients: Mapping[str, Ints]
) -> tuple[Tensor, ...]:
    """Returns tensors of a step that say how often their values were encoded with loss. gradients: contributions of
    every GPU to each parameter's."""
    hops = LossyHops(parameters)
    if not hops.encodings:
        return tuple(tensors)
    most: dict[str, int] = {}
    for weight, counts in gradients.items():
        most[weight], most[f"d{weight}"] = hops.most(weight, counts)
    return tuple(replace(one, hops=most.get(one.name, 0)) for one in tensors)
