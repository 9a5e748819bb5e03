"""A change from training to generation as a step: gathers, weight by weight, from where training has left weights to
where generation wants them.

A weight is a tensor of its own in every group that gathers it. What training has stays: generation is followed by it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.rollouts.engines import NOWHERE, Resharding
from zbench.rollouts.weights import Weight
from zbench.step.index import Index
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import GATHER, Operations, operation_row
from zbench.step.passes.parameters.switch import flagged_items
from zbench.step.template import Instance, Items, Step, Template
from zbench.step.tensor import Tensor


@dataclass(frozen=True)
class WeightParts:
    """A weight in parts. sizes: elements of each. trained, generated, there: bool [GPUs, parts], what GPUs have in
    training, generate with, and have while they generate."""

    weight: Weight
    sizes: Ints
    trained: Flags
    generated: Flags
    there: Flags


@dataclass(frozen=True)
class ReshardedBytes:
    """The bytes of weights of every GPU, int64 [GPUs]. received: from others. peak: there at once. redundant: of its
    training shard, no part of what it generates with; 0 of a GPU that does not generate."""

    received: Ints
    peak: Ints
    redundant: Ints


@dataclass(frozen=True)
class ReshardedWeights:
    """A change from training to generation of the weights of a model. unit: bytes of an element."""

    weights: Sequence[Weight]
    num_layers: int
    unit: int
    change: Resharding

    @cached_property
    def parts(self) -> list[WeightParts]:
        """Every weight in its parts.

        Raises:
            ValueError: there are more parts than elements.
        """
        return [self._in_parts(weight) for weight in self.weights]

    @property
    def bytes(self) -> ReshardedBytes:
        """The bytes that GPUs receive and have, counted from who has which parts."""
        found = np.zeros((3, len(self.change.train.stages)), np.int64)
        generates = self.change.generate.stages[:, None] != NOWHERE
        for one in self.parts:
            flags = one.there & ~one.trained, one.there, one.trained & ~one.generated & generates
            found += self.unit * np.stack([flag @ one.sizes for flag in flags])
        return ReshardedBytes(*found)

    @cached_property
    def members(self) -> list[Flags]:
        """The GPUs of every group, bool [GPUs] each."""
        every = np.arange(len(self.change.train.stages))
        return [np.isin(every, group) for group in self.change.groups]

    @cached_property
    def tensors(self) -> list[tuple[WeightParts, int]]:
        """The tensors of the step in their order: of which weight each is, and of which group."""
        pairs = [(one, number) for one in self.parts for number in range(len(self.members))]
        return [(one, number) for one, number in pairs if one.there[self.members[number]].any()]

    @cached_property
    def step(self) -> Step:
        """The change as a step of gathers."""
        gpus = len(self.change.train.stages)
        sizes = {one.sizes.tobytes(): one.sizes for one in self.parts}
        indices = {key: Index(f"z{number}", size) for number, (key, size) in enumerate(sizes.items())}
        lists = ListTable({**{one.name: len(one) for one in indices.values()}, PLACE: gpus})
        tensors: list[Tensor] = []
        operations: list[list[int]] = []
        begins: list[list[int]] = []
        ends: list[list[int]] = []
        for what, (one, number) in enumerate(self.tensors):
            index = indices[one.sizes.tobytes()].name
            trained, there = (flags & self.members[number][:, None] for flags in (one.trained, one.there))
            home = np.where(trained.any(axis=0), trained.argmax(axis=0), -1)
            name = f"{one.weight.name}_{number}"
            tensors.append(Tensor(name, (index,), "copy", "", "none", self.unit, home))
            for members, cells in _gathers(trained, there):
                ends_of = -1, lists.number(PLACE, members)
                operations.append(operation_row(GATHER, what, ends_of, [lists.number(index, cells)], "parameters"))
            begins += flagged_items(lists, index, what, trained)
            ends += flagged_items(lists, index, what, there)
        layout = StepLayout(tuple(indices.values()), (), (), (), tuple(tensors), (), lists.lists())
        needs, leaves = Items.of(begins), Items.of(ends)
        template = Template("reshard", 0, Operations.of(operations), (), needs, leaves)
        return Step(gpus, 0, 0, (), (layout,), (template,), (Instance(0, 0),), needs, leaves)

    def _in_parts(self, weight: Weight) -> WeightParts:
        change = self.change
        parts = change.train.parts
        if weight.elements < parts:
            raise ValueError(f"{weight.name} has {weight.elements} elements, too few for {parts} GPUs that share it")
        sizes = np.diff(np.arange(parts + 1) * weight.elements // parts)
        trained, generated = (one.holds(weight, self.num_layers) for one in (change.train, change.generate))
        there = np.ones_like(trained) if change.gathers_all else trained | generated
        return WeightParts(weight, sizes, trained, generated, there)


def _gathers(trained: Flags, there: Flags) -> Iterator[tuple[Ints, Ints]]:
    """Yields (members, parts) of the gathers of a weight: of each part those who lack it, and the first who has it."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    among = there & ~trained
    wanted = np.flatnonzero(among.any(axis=0))
    among[trained.argmax(axis=0)[wanted], wanted] = True
    for part in wanted.tolist():
        alike[among[:, part].tobytes()].append(part)
    for parts in alike.values():
        yield np.flatnonzero(among[:, parts[0]]), np.array(parts, np.int64)
