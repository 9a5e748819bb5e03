"""Parameters and optimizer state rest on places between two steps: as the one before has left them, and as the next one
wants them.

Steps differ where the strategy does, as with pipelines that are others for the next batch. Then what rests has other
places and is cut otherwise; elements of whole parameters, flat, are what both have in common.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from zbench.describe.arrays import Ints
from zbench.runtime.handlers.formats import WHOLE, Format, base_name
from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.store import Key
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.steps.resting import items_on
from zbench.step.template import Items, Step

Span = tuple[int, int]  # elements of a whole parameter, flat: the first and the one after the last
Piece = tuple[int, Parts, Parts]  # a place, and the cells there of two lists of parts


@dataclass(frozen=True)
class Resting:
    """The items that rest on all places before or after a step. parts: of its first layout; items: its begins or
    ends."""

    step: Step
    holder: tuple[int, ...]
    parts: BatchParts
    items: Items

    @staticmethod
    def before(prepared: PreparedStep) -> "Resting":
        """Returns what a step begins with."""
        return Resting(prepared.step, prepared.holder, prepared.batches[0], prepared.step.begins)

    @staticmethod
    def after(prepared: PreparedStep) -> "Resting":
        """Returns what a step ends with."""
        return Resting(prepared.step, prepared.holder, prepared.batches[0], prepared.step.ends)

    @cached_property
    def pieces(self) -> Mapping[Key, list[Piece]]:
        """The pieces of every parameter and its optimizer state, by their key in stores."""
        found: dict[Key, list[Piece]] = defaultdict(list)
        every = range(self.step.num_places)
        for tensor, layer, places, first, second in items_on(self.step, self.items, every):
            if base_name(self.parts.layout.tensors[tensor].name) in WHOLE:
                found[self.parts.key(tensor, layer)] += [(place, first, second) for place in places]
        return {key: sorted(pieces) for key, pieces in found.items()}

    def format(self, name: str) -> Format:
        """Returns the format of a tensor."""
        return self.parts.formats[self.parts.layout.number[name]]

    def spans(self, name: str, piece: Piece) -> list[Span]:
        """Lists the elements that a piece of a tensor has, as they lie there."""
        return self.parts.slices.spans(base_name(name), *piece[1:])

    def parts_of(self, name: str, piece: Piece) -> list[tuple[int, list[Span]]]:
        """Lists (place, elements) of a piece of a tensor as it lies there, what is in host memory at the parts of GPUs,
        whose places follow GPUs': a node's host memory has parts of all its GPUs, by the homes of cells."""
        step, (place, first, second) = self.step, piece
        if place < step.num_gpus or step.num_hosts == step.num_gpus:
            return [(place, self.spans(name, piece))]
        layout, each = self.parts.layout, step.num_gpus // step.num_hosts
        tensor = layout.number[name]
        home, width, found = layout.tensors[tensor].home, layout.shape(tensor)[1], list[tuple[int, list[Span]]]()
        lead = (place - step.num_gpus) * each
        for one, two in product(first, second):
            at = int(home[one * width + two])
            part = step.num_gpus + (at if lead <= at < lead + each else lead)
            found.append((part, self.spans(name, (place, (one,), (two,)))))
        return found

    def process(self, place: int) -> int:
        """Returns the process that holds a GPU, or a GPU's part of host memory."""
        if place < self.step.num_gpus:
            return place
        gpu = place - self.step.num_gpus
        return self.holder[self.step.num_gpus + gpu * self.step.num_hosts // self.step.num_gpus]

    def cut(self, name: str) -> list[list[int]]:
        """Returns the sizes of the parts that a tensor is cut in, along each of its axes."""
        tensor = self.parts.layout.tensors[self.parts.layout.number[name]]
        sizes: list[Ints] = [self.parts.layout.index[axis].sizes for axis in tensor.axes]
        return [one.tolist() for one in sizes]
