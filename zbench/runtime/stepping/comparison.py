"""The comparison of executed steps with a dense model: whole parameters of the cells that processes have, and how far
gradients are from where they have to be."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.optimizer import Parameter, Update
from zbench.runtime.handlers.parameters import ParameterSlices
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.resting import Resting
from zbench.runtime.handlers.runner import Lost
from zbench.runtime.handlers.store import Store
from zbench.runtime.steps.instructions import Cells, Compute, Parts
from zbench.runtime.steps.resting import items_on
from zbench.step.tensor import NONE

Piece = tuple[str, int, Parts, Parts, Tensor]  # a parameter's name and layer, its cells, and these on the CPU


def state_pieces(resting: Resting, stores: Mapping[int, Store], left: Update | None = None) -> list[Piece]:
    """Returns the cells of parameters in the wide dtype that a process updates, as a step computes with them. left: the
    update that the step before has left, of those whose gradients rest beside them."""
    parts, found = resting.parts, []
    for tensor, layer, places, first, second in items_on(resting.step, resting.items, stores):
        name = parts.layout.tensors[tensor].name
        if name[0] == "s":
            store, of, gradient = stores[places[0]], parts.formats[tensor], parts.layout.number[f"d{name[1:]}"]
            fields, key = store.read(parts.key(tensor, layer), of, first, second), parts.key(gradient, layer)
            if left is not None and key in store.held:
                fields = left((name[1:], key[1]), fields, store.read(key, parts.formats[gradient], first, second)[0])
            found.append((name[1:], layer, first, second, fields[0].cpu()))
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
    begun: Collection[Parameter] = (),
) -> Iterator[tuple[float, str]]:
    """Yields of every gradient that an update was given how far it is from the wanted one, over the largest element of
    the whole, and what it is called. given: by name, in the order of updates. wanted: whole, of all layers in one.
    lost: what all transfers of a cell together may have taken from a value of it; only what is beyond counts. begun:
    parameters that were updated with gradients of the step before, which are not among those given."""
    updates = [
        (program.layout, one, layer)
        for program, one, layer in prepared.schedule()
        if isinstance(one, Compute)
        and (parts := prepared.batches[program.layout]).is_update(one)
        and parts.key(one.writes[0].tensor, layer + one.writes[0].layer)[:2] not in begun
    ]
    for (number, one, layer), (name, gradient) in zip(updates, given, strict=True):
        cells: Cells = one.writes[0]
        of_layer = prepared.batches[number].layout.tensors[cells.tensor].layers != NONE
        at = layer + cells.layer if of_layer else None
        yield _off(prepared.batches[0], (name, at), gradient, wanted, (cells.first, cells.second), lost)


def left_differences(
    prepared: PreparedStep,
    stores: Mapping[int, Store],
    wanted: Mapping[str, Tensor],
    lost: Mapping[Lost, float] = MappingProxyType({}),
) -> Iterator[tuple[float, str]]:
    """Yields the same of the gradients that a step leaves for the next one to update with, where this process has
    them. stores: by place."""
    parts = prepared.batches[0]
    for tensor, layer, places, first, second in items_of(prepared, prepared.step.ends):
        one = parts.layout.tensors[tensor]
        if one.name[0] == "d":
            found = stores[places[0]].read(parts.key(tensor, layer), parts.formats[tensor], first, second)[0]
            at = layer if one.layers != NONE else None
            yield _off(parts, (one.name[1:], at), found, wanted, (first, second), lost)


def _off(
    parts: BatchParts,
    of: tuple[str, int | None],
    gradient: Tensor,
    wanted: Mapping[str, Tensor],
    cells: tuple[Parts, Parts],
    lost: Mapping[Lost, float],
) -> tuple[float, str]:
    """Returns how far cells of a gradient are from the wanted ones, and what it is called. of: its parameter and the
    layer, None of one that is of no layer."""
    name, layer = of
    whole = wanted[name] if layer is None else wanted[name][layer]
    off = difference(parts.slices, name, gradient, whole, cells)
    if lost:
        most = max(lost.get((f"d{name}", layer or 0, (a, b)), 0.0) for a in cells[0] for b in cells[1])
        off = off if off != off else max(0.0, off - most / (float(whole.abs().max()) or 1.0))
    return off, f"the gradient of {name}{'' if layer is None else f' in layer {layer}'}"


def difference(slices: ParameterSlices, name: str, found: Tensor, whole: Tensor, cells: tuple[Parts, Parts]) -> float:
    """Returns the largest difference of cells from those of a whole parameter, over the largest element of that."""
    part = slices.cells(name, whole.contiguous(), *cells)
    top = float(whole.abs().max())
    return float((found.cpu() - part).abs().max()) / (top or 1.0)


def lost_together(mine: dict[Lost, float] | None, group: dist.ProcessGroup) -> dict[Lost, float]:
    """Returns what values of every cell may have lost in the transfers of all ranks together. mine: of this one, None
    where transfers are not encoded. Collective where they are."""
    found: dict[Lost, float] = {}
    if mine is not None:
        every: list[dict[Lost, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, mine, group)
        for key, most in (pair for one in every for pair in one.items()):
            found[key] = found.get(key, 0.0) + most
    return found
