"""The comparison of executed steps with a dense model: whole parameters of the cells that processes have, and how far
gradients are from where they have to be."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from zbench.runtime.handlers.machine import BatchParts, is_update
from zbench.runtime.handlers.parameters import ParameterSlices
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.runner import Lost
from zbench.runtime.handlers.store import Store
from zbench.runtime.steps.instructions import Cells, Compute, Parts
from zbench.runtime.steps.resting import items_on
from zbench.step.tensor import NONE

Piece = tuple[str, int, Parts, Parts, Tensor]  # a parameter's name and layer, its cells, and these on the CPU


def state_pieces(resting: Resting, stores: Mapping[int, Store]) -> list[Piece]:
    """Returns the cells of parameters in the wide dtype that a process updates, as they lie before a step."""
    parts, found = resting.parts, []
    for tensor, layer, places, first, second in items_on(resting.step, resting.items, stores):
        name = parts.layout.tensors[tensor].name
        if name[0] == "s":
            store, of = stores[places[0]], parts.formats[tensor]
            value = store.read(parts.key(tensor, layer), of, first, second)[0]
            found.append((name[1:], layer, first, second, value.cpu()))
    return found


def whole_weights(parts: BatchParts, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """Returns whole parameters of the pieces of all processes, float64, of all layers in one tensor, with zeros for
    those that have none. parts: of the layout that they are cells of."""
    by_name: dict[str, dict[int, list[tuple[Parts, Parts, Tensor]]]] = {}
    for name, layer, first, second, value in pieces:
        by_name.setdefault(name, {}).setdefault(layer, []).append((first, second, value.double()))
    found = {}
    of_step = {name for name in by_name if parts.layout.tensors[parts.layout.number[name]].layers == NONE}
    numbers = sorted({layer for name, layers in by_name.items() if name not in of_step for layer in layers})
    for name, layers in by_name.items():
        every = {layer: parts.slices.whole(name, layers[layer]) for layer in sorted(layers)}
        if name in of_step:
            found[name] = every[0]
            continue
        lacking = torch.zeros_like(next(iter(every.values())))
        found[name] = torch.stack([every.get(layer, lacking) for layer in numbers])
    return found


def gradient_differences(
    prepared: PreparedStep,
    given: Sequence[tuple[str, Tensor]],
    wanted: Mapping[str, Tensor],
    lost: Mapping[Lost, float] = MappingProxyType({}),
) -> Iterator[tuple[float, str]]:
    """Yields of every gradient that an update was given how far it is from the wanted one, over the largest element of
    the whole, and what it is called. given: by name, in the order of updates. wanted: whole, of all layers in one.
    lost: what all transfers of a cell together may have taken from a value of it; only what is beyond counts."""
    updates = [
        (program.layout, one, layer)
        for program, one, layer in prepared.schedule()
        if isinstance(one, Compute) and is_update(prepared.batches[program.layout], one)
    ]
    for (number, one, layer), (name, gradient) in zip(updates, given, strict=True):
        cells: Cells = one.writes[0]
        of_layer = prepared.batches[number].layout.tensors[cells.tensor].layers != NONE
        whole = wanted[name][layer + cells.layer] if of_layer else wanted[name]
        off = difference(prepared.batches[0].slices, name, gradient, whole, (cells.first, cells.second))
        if lost:
            at = layer + cells.layer if of_layer else 0
            most = max(lost.get((f"d{name}", at, cell), 0.0) for cell in cells.pairs())
            off = off if off != off else max(0.0, off - most / (float(whole.abs().max()) or 1.0))
        yield off, f"the gradient of {name}{f' in layer {layer + cells.layer}' if of_layer else ''}"


def difference(slices: ParameterSlices, name: str, found: Tensor, whole: Tensor, cells: tuple[Parts, Parts]) -> float:
    """Returns the largest difference of cells from those of a whole parameter, over the largest element of that."""
    part = slices.cells(name, whole.contiguous(), *cells)
    top = float(whole.abs().max())
    return float((found.cpu() - part).abs().max()) / (top or 1.0)
