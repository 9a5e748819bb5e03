"""The byte law of a change of strategy: what every GPU sends and receives where a step begins with parameters and
optimizer state in other places than the step before has left them, counted from both steps' columns alone.

It shares no code with what moves them. An element of a parameter that a GPU lacks comes from one that has it: of
several, in the order of GPUs, GPU p asks number p, counted round.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import StepLayout
from zbench.step.template import ACROSS, AT_HOME, Items, Step

# Of a parameter whose slices do not lie together in the whole: in how many pieces each lies, gate and up of columns.
PIECES = {"wz": 2}
ELEMENTS = 1 << 20  # that are looked at together
Held = dict[tuple[str, int], dict[int, list[Ints]]]  # by tensor and layer, by GPU: the elements of cells


def switch_bytes(before: Step, after: Step) -> list[tuple[int, int]]:
    """Returns the bytes (sent, received) of every GPU. before: the step whose ends are there; after: whose begins have
    to be.

    Raises:
        ValueError: something rests in host memory, which nothing here counts.
    """
    found = np.zeros((after.num_gpus, 2), np.int64)
    there, wanted = _held(before, before.ends), _held(after, after.begins)
    for (name, layer), needs in wanted.items():
        has = there[name, layer]
        size = 1 + max(int(one.max(initial=-1)) for cells in needs.values() for one in cells)
        one = after.layouts[0].tensors[after.layouts[0].number[name]].unit
        for begin in range(0, size, ELEMENTS):
            span = begin, min(begin + ELEMENTS, size)
            _count(found, one, _flags(has, after.num_gpus, span), _flags(needs, after.num_gpus, span))
    return [(int(sent), int(received)) for sent, received in found]


def _count(found: Ints, unit: int, has: Flags, needs: Flags) -> None:
    """Adds the bytes of some elements. unit: bytes of one; has, needs: bool [GPUs, elements]."""
    number = np.cumsum(has, axis=0) - 1  # of a GPU among those that have an element
    for gpu in np.flatnonzero((needs & ~has).any(axis=1)).tolist():
        lacks = needs[gpu] & ~has[gpu]
        asks = has & (number == gpu % np.maximum(has.sum(axis=0), 1)) & lacks
        found[:, 0] += unit * asks.sum(axis=1)
        found[gpu, 1] += unit * int(lacks.sum())


def _flags(cells: dict[int, list[Ints]], gpus: int, span: tuple[int, int]) -> Flags:
    """Returns which of some elements each GPU has, bool [GPUs, elements]."""
    found = np.zeros((gpus, span[1] - span[0]), bool)
    for gpu, elements in cells.items():
        for one in elements:
            found[gpu, one[(one >= span[0]) & (one < span[1])] - span[0]] = True
    return found


def _held(step: Step, items: Items) -> Held:
    """Returns the elements of parameters and their state that items name on every GPU."""
    found: Held = defaultdict(lambda: defaultdict(list))
    layout = step.layouts[0]
    for tensor, _, places, list0, list1, *_ in items.rows():
        one = layout.tensors[tensor]
        if one.name == "loss":
            continue
        cells = _cells(layout, tensor, (list0, list1))
        for layer in range(step.num_layers) if one.layers == "layer" else (0,):
            where = step.where(ACROSS, layer) if one.layers == "layer" else np.arange(step.num_places)
            for number, elements in cells:
                at = [int(one.home[number])] if places == AT_HOME else layout.lists[places].tolist()
                for gpu in (int(where[place]) for place in at):
                    if gpu >= step.num_gpus:
                        raise ValueError(f"{one.name} rests in {step.place(gpu)}; the law counts GPUs alone")
                    found[one.name, layer][gpu].append(elements)
    return found


def _cells(layout: StepLayout, tensor: int, lists: tuple[int, int]) -> list[tuple[int, Ints]]:
    """Returns (its number, the elements of the whole parameter, flat) of every cell that two lists have."""
    one = layout.tensors[tensor]
    if not one.axes:
        return [(0, np.arange(1))]
    slices, shards = (layout.index[axis].sizes for axis in one.axes)
    ends, base = np.cumsum(shards), one.name.removeprefix("s")
    whole = np.arange(len(slices) * int(ends[-1])).reshape(PIECES.get(base, 1), len(slices), -1)
    return [
        (share * len(shards) + shard, whole[:, share].reshape(-1)[ends[shard] - shards[shard] : ends[shard]])
        for share, shard in _pairs(layout, lists)
    ]


def _pairs(layout: StepLayout, lists: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for share in layout.lists[lists[0]].tolist():
        yield from ((share, shard) for shard in layout.lists[lists[1]].tolist())
