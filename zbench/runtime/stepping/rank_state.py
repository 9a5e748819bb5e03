"""The state of a rank between two steps, for checkpoints: parameters and optimizer state; in the midst of a round outer
parameters, their momentum and the average that is under way besides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.runtime.handlers.formats import WHOLE, Format, base_name
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.store import Held, Key, Slab, Store
from zbench.runtime.steps.instructions import Parts


@dataclass
class RankState:
    """The state of a rank between two steps. prepared: a step that begins with it, in a round what that ends with.
    updates: of the optimizer so far, in a round the worker's own."""

    rank: int
    prepared: PreparedStep
    store: Store
    updates: int = 0

    def state(self) -> dict[str, Tensor]:
        """Returns all of it by name, each rank's under names of its own; waits for the average under way."""
        found = {self._updates: torch.tensor([self.updates])}
        for name, key, of, first, second in self._items():
            there = key in self.store.held
            for field, (_, dtype) in enumerate(of.fields):
                found[f"{name}.{field}"] = (
                    self.store.read(key, of, first, second)[field].contiguous()
                    if there
                    else torch.zeros(of.shape(field, first, second), dtype=dtype, device=self.store.device)
                )
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Puts what `state` has in place of what is there."""
        self.updates = int(state[self._updates])
        for name, key, of, first, second in self._items():
            fields = tuple(state[f"{name}.{field}"].clone() for field in range(len(of.fields)))
            self.store.put(key, Slab.of(of, first, second, fields), over=True)

    def set_aside(self) -> Held:
        """Takes the average under way out of the store."""
        return self.store.set_aside([one.name for one in self.prepared.batches[0].layout.tensors if one.name[0] == "d"])

    @property
    def _updates(self) -> str:
        return f"rank {self.rank}.updates"

    def _items(self) -> Iterator[tuple[str, Key, Format, Parts, Parts]]:
        """Yields (name, key, format, cells) of what the rank has."""
        parts = self.prepared.batches[0]
        for number, (tensor, layer, _, first, second) in enumerate(items_of(self.prepared, self.prepared.step.begins)):
            one = parts.layout.tensors[tensor]
            if base_name(one.name) in WHOLE:
                name = f"rank {self.rank}.{one.name}.{layer}.{number}"
                yield name, parts.key(tensor, layer), parts.formats[tensor], first, second
