"""The state of a rank between two steps, for checkpoints: parameters, optimizer state, and gradients that the next step
updates with; in the midst of a round outer parameters, their momentum and the average that is under way besides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.runtime.handlers.formats import WHOLE, Format, base_name
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.store import Held, Key, Slab, Store
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.training.checkpoint import load_checkpoint
from zbench.step.template import Items


@dataclass
class RankState:
    """The state of a rank between two steps. prepared: a step that begins with it, in a round what that ends with.
    stores: of the rank's places. updates: of the optimizer so far, in a round the worker's own. late: the ends of
    rounds whose averages are under way. to_fill: whether there is room to make for what the rank lacks, which a
    checkpoint that is loaded then fills; a checkpoint that is written lacks nothing."""

    rank: int
    prepared: PreparedStep
    stores: Mapping[int, Store]
    updates: int = 0
    late: Sequence[PreparedStep] = ()
    to_fill: bool = False

    def state(self) -> dict[str, Tensor]:
        """Returns all of it by name, each rank's under names of its own; waits for the average under way.

        Raises:
            zbench.runtime.handlers.store.Lacking: something is not there, and there is nothing to fill.
        """
        found = {self._updates: torch.tensor([self.updates])}
        for name, key, of, places, (first, second) in self._items():
            store = self.stores[places[0]]
            if key not in store.held and self.to_fill:
                shapes = [(of.shape(at, first, second), dtype) for at, (_, dtype) in enumerate(of.fields)]
                rooms = [torch.zeros(shape, dtype=dtype, device=store.device) for shape, dtype in shapes]
                found |= {f"{name}.{at}": one for at, one in enumerate(rooms)}
                continue
            for at, one in enumerate(store.read(key, of, first, second)):  # which says what is lacking
                found[f"{name}.{at}"] = one.contiguous()
        return found

    @staticmethod
    def loaded(
        path: str, rank: int, prepared: PreparedStep, device: torch.device, kind: type[Store] = Store
    ) -> "RankState":
        """Returns the state that a checkpoint has. kind: of stores. Collective."""
        found = RankState(rank, prepared, {place: kind(device) for place in prepared.places}, to_fill=True)
        load_checkpoint(path, found)
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Puts what `state` has in place of what is there."""
        self.updates = int(state[self._updates])
        for name, key, of, places, (first, second) in self._items():
            fields = tuple(state[f"{name}.{field}"].clone() for field in range(len(of.fields)))
            for place in places:
                self.stores[place].put(key, Slab.of(of, first, second, fields), over=True)

    @property
    def _updates(self) -> str:
        return f"rank {self.rank}.updates"

    def _items(self) -> Iterator[tuple[str, Key, Format, list[int], tuple[Parts, Parts]]]:
        """Yields (name, key, format, places, cells) of what the rank has."""
        for at, prepared in enumerate((self.prepared, *self.late)):
            parts = prepared.batches[0]
            for number, (tensor, layer, places, *cells) in enumerate(items_of(prepared, prepared.step.begins)):
                name, key = parts.layout.tensors[tensor].name, parts.key(tensor, layer)
                if base_name(name) in WHOLE and (not at or _is_average(name)):  # the first step has all else
                    called = f"rank {self.rank}.{name}.{key[1]}.{number}"
                    yield called, key, parts.formats[tensor], places, (cells[0], cells[1])


def without_gradients(stores: Mapping[int, Store]) -> dict[int, Held]:
    """Takes gradients that a step has left for the next one out of stores; returns them by place."""
    return {
        place: store.set_aside([key for key in store.held if _is_average(key[0]) and key[0][1:] in WHOLE])
        for place, store in stores.items()
    }


def averages(prepared: PreparedStep, items: Items) -> list[Key]:
    """Returns the keys of averages, which may be under way between two steps. items: what the end of a round begins or
    ends with."""
    parts, found = prepared.batches[0], dict[Key, None]()
    for tensor, layer, *_ in items_of(prepared, items):
        if _is_average(parts.layout.tensors[tensor].name):
            found[parts.key(tensor, layer)] = None
    return list(found)


def _is_average(tensor: str) -> bool:
    return tensor[0] == "d"
