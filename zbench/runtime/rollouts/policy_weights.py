"""The weights of a policy that is trained by steps and generated with by slices, on one GPU.

Between a step and generation the training shard moves into the memory of what the GPU generates with, wherever it is
part of it, and the store of steps has a view of it there: one copy for both. After generation it has memory of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from zbench.rollouts.gathers import ReshardedWeights, WeightParts
from zbench.rollouts.sharded import ShardedWeights
from zbench.runtime.handlers.formats import WHOLE, Format
from zbench.runtime.handlers.messages import bytes_by_queue
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Key, Slab, Store
from zbench.runtime.rollouts.memory import WeightStore
from zbench.runtime.stepping.weights import OUTSIDE
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.steps.resting import items_on
from zbench.runtime.transport.transport import Traffic


@dataclass(frozen=True)
class _Rest:
    """A weight where training's steps have it. key, format, first, second: its cells in a place's store."""

    store: Store
    key: Key
    format: Format
    first: Parts
    second: Parts

    def put(self, flat: Tensor) -> None:
        """Puts values in the place of those that are there."""
        shaped = flat.view(self.format.shape(0, self.first, self.second))
        self.store.put(self.key, Slab.of(self.format, self.first, self.second, (shaped,)), over=True)


@dataclass
class PolicyWeights:
    """The weights of a policy on one GPU. made: their change from training to generation, with `slices` slices. runner:
    of that change, with messages of all GPUs."""

    made: ReshardedWeights
    slices: int
    gpu: int
    runner: StepRunner
    store: WeightStore = field(init=False)
    prepared: PreparedStep = field(init=False)
    resting: Resting | None = None

    def __post_init__(self) -> None:
        self.prepared = PreparedStep.of(self.made.step, self.gpu, self.runner.machine, (), ())
        self.store = WeightStore(self.runner.machine.device)
        self.runner.stores = dict.fromkeys(self.prepared.places, self.store)
        parts = self.prepared.batches[0]
        self._mine: dict[str, tuple[WeightParts, Key, Format]] = {
            one.weight.name: (one, parts.key(tensor, 0), parts.formats[tensor])
            for tensor, (one, number) in enumerate(self.made.tensors)
            if self.made.members[number][self.gpu] and one.there[self.gpu].any()
        }

    @property
    def part(self) -> int:
        """The number of the slice that the GPU generates with."""
        shards = self.made.change.generate
        return int(shards.begins[self.gpu]) * self.slices // shards.parts

    def to_generation(self, resting: Resting, stores: Mapping[int, Store]) -> tuple[int, int]:
        """Brings weights to where they are generated with; returns the bytes that this GPU sent and received.
        Collective. resting, stores: what a step has left, and where."""
        self.resting = resting
        rests = dict(self._rests(resting, stores))
        for name, (one, key, of) in self._mine.items():
            trained = one.trained[self.gpu]
            parts = tuple(np.flatnonzero(trained).tolist())
            if parts:
                rest = rests[name]
                self._check(one, rest, parts)
                (value,) = rest.store.read(rest.key, rest.format, rest.first, rest.second)
                self.store.put(key, Slab.of(of, parts, (0,), (value.reshape(-1),)))
            self.store.make_room(key, of, (trained, one.generated[self.gpu], one.there[self.gpu]))
            if parts:
                rest.put(self.store.read(key, of, parts, (0,))[0])
        ends = self.runner.machine.messages.ends
        for end in ends:
            end.traffic = Traffic()
        self.runner.run(self.prepared)
        for _, key, _ in self._mine.values():
            self.store.drop_passing(key)
        return bytes_by_queue(ends).get("parameters", (0, 0))

    def to_training(self, stores: Mapping[int, Store]) -> None:
        """Leaves of weights what training has of them."""
        assert self.resting is not None, "weights were brought to generation"
        rests = dict(self._rests(self.resting, stores))
        for name, (one, key, of) in self._mine.items():
            trained = one.trained[self.gpu]
            self.store.end_generation(key, of, trained)
            parts = tuple(np.flatnonzero(trained).tolist())
            if parts:
                rests[name].put(self.store.take(key, of, parts, (0,))[0])

    def is_shared(self, stores: Mapping[int, Store]) -> list[bool]:
        """Tells of each weight that is trained here whether steps have it in the memory of what is generated with."""
        assert self.resting is not None, "weights were brought to generation"
        return [
            self.store.is_inside(
                self._mine[name][1], rest.store.read(rest.key, rest.format, rest.first, rest.second)[0]
            )
            for name, rest in self._rests(self.resting, stores)
        ]

    def weight(self, name: str, layer: int) -> Tensor:
        """Returns the slice of a weight that the GPU generates with; parts of it that lie apart are joined for as long
        as it is used. layer: 0 of one that is of no layer."""
        assert self.resting is not None, "weights were brought to generation"
        one, key, _ = self._mine[name if name in self._mine else f"{name}.{layer}"]
        slices = self.resting.parts.slices
        whole = tuple(slices.dims[letter] for letter in WHOLE[name])
        if not one.weight.is_cut:
            return self.store.generated[key].memory.view(whole)
        axis = slices.axis(name)[0]
        if isinstance(self.made, ShardedWeights):  # all of it is there
            size = whole[axis] // self.slices
            return self.store.generated[key].memory.view(whole).narrow(axis, self.part * size, size)
        shape = list(whole)
        shape[axis] //= len(one.sizes)
        pieces = self.store.generated[key].memory.view(-1, *shape).unbind()
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)

    def copied(self) -> Callable[[str, int], Tensor]:
        """Returns a copy of all that the GPU generates with, as `weight` gives it."""
        names = [one.rpartition(".") for one in self._mine]
        asked = [(name, int(layer)) if name else (layer, 0) for name, _, layer in names]
        held = {one: self.weight(*one).clone() for one in asked}
        return lambda name, layer: held[name, 0 if name in OUTSIDE else layer]

    def _rests(self, resting: Resting, stores: Mapping[int, Store]) -> Iterator[tuple[str, _Rest]]:
        """Yields the weights that steps have on this GPU, by name."""
        parts = resting.parts
        for tensor, layer, places, first, second in items_on(resting.step, resting.items, stores):
            one = parts.layout.tensors[tensor]
            if one.name in WHOLE:
                name = f"{one.name}.{layer}" if one.layers == "layer" else one.name
                yield name, _Rest(stores[places[0]], parts.key(tensor, layer), parts.formats[tensor], first, second)

    def _check(self, one: WeightParts, rest: _Rest, parts: Parts) -> None:
        """Asserts that a step has a weight's parts where its layout says so."""
        if one.weight.is_cut and not isinstance(self.made, ShardedWeights):
            assert parts == rest.first, "slices are where degrees say"
        size = int(one.sizes[list(parts)].sum())
        assert size == np.prod(rest.format.shape(0, rest.first, rest.second)), "shards are as large as degrees say"
