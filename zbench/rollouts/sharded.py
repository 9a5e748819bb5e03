"""A change to generation from a step whose parameters lie in shards, by an engine that gathers all of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.rollouts.gathers import ReshardedWeights, WeightParts
from zbench.rollouts.weights import Weight
from zbench.step.elements import ElementHolders


@dataclass(frozen=True)
class ShardedWeights(ReshardedWeights):
    """A change of weights from where a step has their elements to everywhere: GPUs have all, and read their slices of
    it. held: the elements of whole parameters, as they lie."""

    held: ElementHolders

    @cached_property
    def parts(self) -> list[WeightParts]:
        """Every weight in its parts, cut wherever a shard ends."""
        return [self._from_shards(weight) for weight in self.weights]

    def _from_shards(self, weight: Weight) -> WeightParts:
        name, _, layer = weight.name.partition(".")
        holders = self.held.holders[name, int(layer or 0)]
        if not weight.is_cut:  # whole wherever it is, and told as one element
            holders = {gpu: runs * weight.elements for gpu, runs in holders.items()}
        edges = np.unique(np.concatenate([[0, weight.elements], *(runs.reshape(-1) for runs in holders.values())]))
        trained = np.zeros((self.held.num_gpus, len(edges) - 1), bool)
        for gpu, runs in holders.items():
            for begin, end in runs.tolist():
                trained[gpu, (edges[:-1] >= begin) & (edges[1:] <= end)] = True
        every = np.ones_like(trained)
        return WeightParts(weight, np.diff(edges), trained, every, every)
