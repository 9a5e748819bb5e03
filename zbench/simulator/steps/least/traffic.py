"""Seconds that gathers of parameters and reductions of gradients keep ports busy, and the updates that follow them.

A port is a NIC or a GPU's port of a class of links inside nodes. Gains of norms are left out: whole at one home, they
are a few kilobytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.arrays import Floats
from zbench.describe.links import NIC
from zbench.simulator.steps.collectives import legs_of
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, WHOLE, ShardedParameters, weight_elements

LAYER, TABLE, HEAD = "layer", "table", "head"


@dataclass(frozen=True)
class PortSeconds:
    """The collectives of a group of parameters: of each tensor-parallel slice one.

    ports: seconds that a slice's keeps each port busy, float64 [slices, ports]. latency: seconds of each slice's, until
    the last piece of it is there, float64 [slices].
    """

    ports: Floats
    latency: Floats

    def times(self, count: float) -> "PortSeconds":
        """Returns so many of them that follow one another, of which the last one's latency counts."""
        return PortSeconds(count * self.ports, self.latency)

    def plus(self, other: "PortSeconds") -> "PortSeconds":
        """Returns these with others after them."""
        return PortSeconds(self.ports + other.ports, other.latency)

    @property
    def seconds(self) -> float:
        """The seconds that the first slice's take, which groups' first GPUs wait for."""
        return float(self.ports[0].max(initial=0.0) + self.latency[0])


@dataclass(frozen=True)
class StepTraffic:
    """The gathers, reductions and updates of a step's parameters. cost: of GPUs. of: the parameters of a stage."""

    cost: Cost
    of: ShardedParameters

    def weights(self, group: str) -> tuple[str, ...]:
        """Returns the parameters of a layer, the embedding table, or the head's matrix where it has one."""
        if group == LAYER:
            return tuple(name for name in self.of.of_layers if name not in WHOLE)
        return tuple(name for name in self.of.outside if name not in WHOLE and (name == "we") == (group == TABLE))

    def gather(self, group: str) -> PortSeconds:
        """Returns the gathers of parameters, nothing where every GPU has its own."""
        return self._traffic(group, 0 if self.of.stage == "none" else self.cost.model.element_bytes)

    def reduce(self, group: str) -> PortSeconds:
        """Returns the reductions of gradients; where every GPU updates its own they are gathered again."""
        found = self._traffic(group, max(GRADIENT_BYTES, self.cost.model.element_bytes))
        return found.times(2) if self.of.stage == "none" else found

    def _traffic(self, group: str, element_bytes: int) -> PortSeconds:
        cluster, latencies = self.cost.cluster, []
        ports = np.zeros((self.of.degree, cluster.num_nics + len(cluster.links) * cluster.num_ranks))
        size = element_bytes * sum(self._slice_elements[name] for name in self.weights(group))
        for share in range(self.of.degree):
            members = np.arange(share, self.of.num_gpus, self.of.degree)
            legs = legs_of(members, self.cost)
            seconds = self.cost.transfer_seconds((legs.share * size).astype(np.int64), legs.link)
            inside = cluster.num_nics + legs.link * cluster.num_ranks + legs.member
            np.add.at(ports[share], np.where(legs.link == NIC, cluster.nic_of[legs.member], inside), seconds)
            latencies.append(legs.latency if size else 0.0)
        return PortSeconds(ports, np.array(latencies))

    @cached_property
    def _slice_elements(self) -> dict[str, int]:
        """The elements of a slice of every parameter that is cut."""
        elements = weight_elements(self.cost.model)
        return {name: elements[name] // self.of.slices(name)[1] for name in self.of.shards}

    def update(self, group: str) -> Floats:
        """Returns the seconds in which every GPU updates what it has of parameters, float64 [GPUs]."""
        found = np.zeros(self.of.num_gpus)
        for name in self.weights(group):
            if self.of.stage == "none":
                found += self._slice_elements[name]
                continue
            sizes, count = self.of.shards[name][0], self.of.slices(name)[1]
            np.add.at(found, self.of.home(name), np.tile(sizes, count))
        return found * OPTIMIZER_BYTES / self.cost.cluster.device.copy_bandwidth

    def after(self, group: str, updates: Sequence[Floats]) -> Floats:
        """Returns the seconds of updates that follow a group's reduction in the queue of a GPU that has some of it, of
        the GPU of each slice with the most, float64 [slices]. updates: of all groups that follow, its own among them,
        float64 [GPUs] each."""
        every = np.sum(updates, axis=0)
        mine = np.where(self.update(group) > 0, every, 0.0)
        return np.asarray(mine.reshape(-1, self.of.degree).max(axis=0))
