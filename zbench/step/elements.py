"""The elements of whole parameters that GPUs hold before or after a step, and of optimizer state likewise.

Steps differ where the strategy does, as with pipelines that are others for the next batch. Then what rests between them
has other places and is cut otherwise; elements of whole parameters, flat, are what both have in common. What rests in
host memory is told of the part of it that belongs to a GPU, whether a step has parts or nodes: the GPU over whose link
it comes and goes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import StepLayout
from zbench.step.template import ACROSS, AT_HOME, Items, Step
from zbench.step.tensor import NONE

# Of a parameter whose slices do not lie together in the whole: in how many pieces each lies, gate and up of columns.
PIECES = {"wz": 2}
# By GPU, and by the number of GPUs and a GPU for its part of host memory: the elements there, flat, runs of them, int64
# [runs, begin and end].
Holders = Mapping[int, Ints]


@dataclass(frozen=True)
class ElementHolders:
    """Elements that GPUs hold between two steps. units: by tensor, bytes of an element; holders: by tensor and layer
    (0 of what is of no layer), one object where layers are on the same GPUs."""

    num_gpus: int
    units: Mapping[str, int]
    holders: Mapping[tuple[str, int], Holders]


@dataclass(frozen=True)
class HostPieces:
    """The parts of host memory that have pieces of one tensor before and after. has, wants: bool [GPUs, pieces], of
    each GPU's part."""

    has: Flags
    wants: Flags


@dataclass(frozen=True)
class ElementMoves:
    """The holders of one tensor before and after, in pieces cut wherever either is cut. layers: those that it is the
    same for; sizes: bytes of each piece, or whatever a step counts in, int64 [pieces]; has, lacks: bool [GPUs, pieces],
    who has it before, and who wants it after and has not. hosts: where host memory has it, too, or alone; None where it
    does not."""

    tensor: str
    layers: tuple[int, ...]
    sizes: Ints
    has: Flags
    lacks: Flags
    hosts: HostPieces | None = None


def elements_held(step: Step, items: Items) -> ElementHolders:
    """Returns what items (begins or ends of a step) name of parameters, their state, and gradients that wait on hosts
    for the next step."""
    layout = step.layouts[0]
    rows: dict[tuple[str, int, int], list[Sequence[int]]] = defaultdict(list)  # with the layers that they are of
    for row, first, last in step.resting(items):
        if (name := layout.tensors[row[0]].name) != "loss":
            rows[name, first, last].append(row)
    holders: dict[tuple[str, int], Holders] = {}
    known: dict[tuple[str, int, bytes], Holders] = {}
    for (name, first, last), entries in rows.items():
        tensor = layout.tensors[layout.number[name]]
        for layer in range(first, last + 1):
            where = np.arange(step.num_places) if tensor.layers == NONE else step.where(ACROSS, layer)
            key = name, first, where.tobytes()
            if key not in known:
                known[key] = _holders(step, entries, where)
            holders[name, layer] = known[key]
    units = {name: layout.tensors[layout.number[name]].unit for name, _, _ in rows}
    return ElementHolders(step.num_gpus, units, holders)


def table_before(name: str) -> str:
    """Returns the name of what has the numbers of a table, or of its state, that was not there before: with tied
    embeddings the last stage of a pipeline has one, which is the embedding's."""
    return name.replace("wh", "we")


def element_moves(before: ElementHolders, after: ElementHolders, stays: bool = False) -> Iterator[ElementMoves]:
    """Yields what has to move for what is held after, tensor by tensor; of several layers with the same holders,
    once. stays: and what is in host memory and has not to."""
    alike: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    held = before.holders
    for (name, layer), needs in after.holders.items():
        of = name if (name, layer) in held else table_before(name)
        alike[name, id(held[of, layer]), id(needs)].append(layer)
    for (name, *_), layers in alike.items():
        source = name if (name, layers[0]) in held else table_before(name)
        has, needs = held[source, layers[0]], after.holders[name, layers[0]]
        edges = np.unique(np.concatenate([*has.values(), *needs.values()]))
        gpus = after.num_gpus
        there, wanted = (_flags(one, 2 * gpus, edges) for one in (has, needs))
        lacks = wanted & ~there
        hosts = HostPieces(there[gpus:], wanted[gpus:]) if wanted[gpus:].any() else None
        if lacks.any() or (stays and hosts is not None):
            sizes = after.units[name] * np.diff(edges)
            yield ElementMoves(name, tuple(layers), sizes, there[:gpus], lacks[:gpus], hosts)


def _flags(holders: Holders, places: int, edges: Ints) -> Flags:
    """Returns which of the pieces between edges each place has, bool [places, pieces]."""
    found = np.zeros((places, len(edges) - 1), bool)
    for place, runs in holders.items():
        for begin, end in np.searchsorted(edges, runs).tolist():
            found[place, begin:end] = True
    return found


def _holders(step: Step, rows: Sequence[Sequence[int]], where: Ints) -> Holders:
    """Returns who holds what entries of items name of a tensor. where: the place that each one is that they name."""
    layout, found = step.layouts[0], defaultdict(list)
    for tensor, _, places, list0, list1, *_ in rows:
        one = layout.tensors[tensor]
        for number, runs in _cells(layout, tensor, (list0, list1)):
            at = [int(one.home[number])] if places == AT_HOME else layout.lists[places].tolist()
            for place in (int(where[place]) for place in at):
                found[_part(step, place, int(one.home[number]))].append(runs)
    return {place: np.concatenate(runs) for place, runs in found.items()}


def _part(step: Step, place: int, home: int) -> int:
    """Returns a place; in host memory, of the part of the GPU whose link it goes over: where a node has one for all of
    its GPUs, of the one that is the cell's home, or of its first. home: -1 where a layout does not tell it."""
    if place < step.num_gpus:
        return place
    each = step.num_gpus // step.num_hosts
    first = (place - step.num_gpus) * each
    return step.num_gpus + (home if first <= home < first + each else first)


def _cells(layout: StepLayout, tensor: int, lists: tuple[int, int]) -> Iterator[tuple[int, Ints]]:
    """Yields (its number, the runs of elements of the whole parameter, flat) of every cell that two lists have."""
    one = layout.tensors[tensor]
    if not one.axes:
        yield 0, np.array([[0, 1]])
        return
    slices, shards = (layout.index[axis].sizes for axis in one.axes)
    ends, rows = np.cumsum(shards), np.arange(PIECES.get(one.name.removeprefix("s").removeprefix("d"), 1))
    together = int(ends[-1]) // len(rows)  # elements of a slice that lie together in the whole
    for share in layout.lists[lists[0]].tolist():
        first = (rows * len(slices) + share) * together
        for shard in layout.lists[lists[1]].tolist():
            cell = np.array([ends[shard] - shards[shard], ends[shard]])
            runs = first[:, None] + np.clip(cell - rows[:, None] * together, 0, together)
            yield share * len(shards) + shard, runs[runs[:, 0] < runs[:, 1]]
