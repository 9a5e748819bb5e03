"""Seconds that gathers of parameters and reductions of gradients keep ports busy, and the updates that follow them.

A port is a NIC or a GPU's port of a class of links inside nodes. Gains of norms are left out: whole at one home, they
are a few kilobytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.links import NIC
from zbench.simulator.steps.trains.collectives import Legs, legs_of
from zbench.step.passes.parameters.weights import WHOLE, weight_elements
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, ShardedParameters

LAYER, TABLE, HEAD = "layer", "table", "head"


@dataclass(frozen=True)
class PortSeconds:
    """The collectives of a group of parameters: of each tensor-parallel slice one, or several by degrees.

    ports: seconds that a slice's keep each port busy, float64 [slices, ports]. latency: seconds of each slice's, until
    the last piece of it is there, float64 [slices]. waited: what any GPU waits for of `ports`, at least: all of it, or
    where runs of GPUs have collectives of their own, the shortest of each level, float64 [slices, ports] or [slices,
    1].
    """

    ports: Floats
    latency: Floats
    waited: Floats

    def times(self, count: float) -> "PortSeconds":
        """Returns so many of them that follow one another, of which the last one's latency counts."""
        return PortSeconds(count * self.ports, self.latency, count * self.waited)

    def plus(self, other: "PortSeconds") -> "PortSeconds":
        """Returns these with others after them."""
        return PortSeconds(self.ports + other.ports, other.latency, self.waited + other.waited)

    @property
    def seconds(self) -> float:
        """The seconds that the first slice's take, which groups' first GPUs wait for."""
        return float(self.waited[0].max(initial=0.0) + self.latency[0])


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

    @property
    def _nested(self) -> bool:
        """Whether parameters are sharded by degrees."""
        return isinstance(self.of.stage, ShardDegrees)

    def gather(self, group: str) -> PortSeconds:
        """Returns the gathers of parameters for a step's first forward, nothing where every GPU has its own."""
        size = self.cost.model.element_bytes
        if not self._nested:
            return self._traffic(group, 0 if self.of.stage == "none" else size)
        degrees, levels = self.of.degrees, list[tuple[int, int, float]]()
        held = [degrees.optimizer, *self.of.passed_on, degrees.weights]
        for finer, other in pairwise(held):
            levels.append((finer, other, degrees.bits.value_bytes("updates", size)))
        levels.append((degrees.weights, 1, degrees.bits.value_bytes("weights", size)))
        return self._levels(group, levels)

    def gather_again(self, group: str) -> PortSeconds:
        """Returns the gathers of parameters for a backward, where they did not stay."""
        degrees = self.of.degrees
        if not self.of.gathered:
            return self.gather(group).times(0)
        if not self._nested:
            return self.gather(group)
        size = degrees.bits.value_bytes("secondary", self.cost.model.element_bytes)
        return self._levels(group, [(degrees.secondary, 1, size)])

    def reduce(self, group: str) -> PortSeconds:
        """Returns the reductions of gradients; where every GPU updates its own they are gathered again."""
        size = max(GRADIENT_BYTES, self.cost.model.element_bytes)
        if self._nested:
            degrees, few = self.of.degrees, self.of.degrees.bits.value_bytes("gradients", size)
            levels: list[tuple[int, int, float]] = [(outer, inner, few) for inner, outer in self.of.reduced_by(True)]
            levels += [(WORLD, degrees.optimizer, size)] if degrees.optimizer != WORLD else []
            return self._levels(group, levels)
        found = self._traffic(group, size)
        return found.times(2) if self.of.stage == "none" else found

    def _levels(self, group: str, levels: Sequence[tuple[int, int, float]]) -> PortSeconds:
        """Returns collectives between degrees, one level after another. levels: the finer degree, the other, and the
        bytes of a value."""
        found = self._traffic(group, 0)
        found = PortSeconds(found.ports, found.latency, found.waited[:, :1])
        for level_of in levels:
            if (group, *level_of) not in self._known:
                self._known[group, *level_of] = self._level(group, *level_of)
            level = self._known[group, *level_of]
            found = found.plus(level) if level.ports.any() else found
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, int, int, float], PortSeconds]:
        """The collectives between two degrees that were asked for so far."""
        return {}

    def _level(self, group: str, finer: int, other: int, value_bytes: float) -> PortSeconds:
        """Returns the collectives of every run of GPUs that have all by a degree, among those that have the same part
        by another one."""
        cluster, names, count = self.cost.cluster, self.weights(group), self.of.degree
        ports = np.zeros((count, cluster.num_nics + len(cluster.links) * cluster.num_ranks))
        least, latency = np.full((count, 1), np.inf), np.full(count, np.inf)
        outer, inner = ((self.of.every(names[0], one) if names else 1) for one in (finer, other))
        for part in range(inner if inner < outer else 0):
            elements, share = sum(self._elements(name, part, inner) for name in names), part % count
            for first in range(0, self.of.num_gpus if elements else 0, outer):
                legs = legs_of(np.arange(first + part, first + outer, inner), self.cost)
                # A message's bytes are whole numbers, of each parameter for itself.
                moved = np.maximum((legs.share * elements * value_bytes).astype(np.int64) - len(names), 0)
                seconds = self.cost.transfer_seconds(moved, legs.link)
                mine = np.zeros(ports.shape[1])
                np.add.at(mine, self._ports(legs), seconds)
                ports[share] += mine
                least[share] = min(float(least[share, 0]), float(mine.max()))
                latency[share] = min(latency[share], legs.latency)
        return PortSeconds(ports, np.where(np.isinf(latency), 0, latency), np.where(np.isinf(least), 0, least))

    def _elements(self, name: str, part: int, every: int) -> int:
        """Returns the elements of a parameter that GPU `part` of each run of `every` has."""
        sizes, count = self.of.shards[name][0], self.of.slices(name)[1]
        home = self.of.home(name).reshape(count, -1)[part % count]
        return int(sizes[home % every == part].sum() if every > count else sizes.sum())

    def _ports(self, legs: Legs) -> Ints:
        """Returns the port of every leg."""
        cluster = self.cost.cluster
        inside = cluster.num_nics + legs.link * cluster.num_ranks + legs.member
        return np.where(legs.link == NIC, cluster.nic_of[legs.member], inside)

    def _traffic(self, group: str, element_bytes: int) -> PortSeconds:
        cluster, latencies = self.cost.cluster, []
        ports = np.zeros((self.of.degree, cluster.num_nics + len(cluster.links) * cluster.num_ranks))
        size = element_bytes * sum(self._slice_elements[name] for name in self.weights(group))
        for share in range(self.of.degree):
            members = np.arange(share, self.of.num_gpus, self.of.degree)
            legs = legs_of(members, self.cost)
            seconds = self.cost.transfer_seconds((legs.share * size).astype(np.int64), legs.link)
            np.add.at(ports[share], self._ports(legs), seconds)
            latencies.append(legs.latency if size else 0.0)
        return PortSeconds(ports, np.array(latencies), ports)

    @cached_property
    def _slice_elements(self) -> dict[str, int]:
        """The elements of a slice of every parameter that is cut."""
        elements = weight_elements(self.cost.model)
        return {name: elements[name] // self.of.slices(name)[1] for name in self.of.shards}

    def update(self, group: str) -> Floats:
        """Returns the seconds in which every GPU updates what it has of parameters, float64 [GPUs]."""
        found, degree = np.zeros(self.of.num_gpus), self.of.degrees.optimizer
        if self.cost.model.layers_updated_on_hosts == self.cost.model.num_layers:  # beside what GPUs compute
            return found
        for name in self.weights(group):
            if degree == 1:
                found += self._slice_elements[name]
                continue
            sizes, count = self.of.shards[name][0], self.of.slices(name)[1]
            every, home = self.of.every(name, degree), self.of.home(name)
            for first in range(0, self.of.num_gpus, every):
                np.add.at(found, first + home % every, np.tile(sizes, count))
        return found * OPTIMIZER_BYTES / self.cost.cluster.device.copy_bandwidth

    def after(self, group: str, updates: Sequence[Floats]) -> Floats:
        """Returns the seconds of updates that follow a group's reduction in the queue of a GPU that has some of it, of
        the GPU of each slice with the most, float64 [slices]; where runs have reductions of their own, of that with the
        least. updates: of all groups that follow, its own among them, float64 [GPUs] each."""
        every, has = np.sum(updates, axis=0), self.update(group) > 0
        mine = np.where(has, every, np.inf if self._nested else 0.0).reshape(-1, self.of.degree)
        found = mine.min(axis=0) if self._nested else mine.max(axis=0)
        return np.where(np.isinf(found), 0.0, found)
