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
Held = dict[tuple[str, int], dict[int, list[Ints]]]  # by tensor and layer, by GPU: the runs of cells


def switch_bytes(before: Step, after: Step) -> list[tuple[int, int]]:
    """Returns the bytes (sent, received) of every GPU. before: the step whose ends are there; after: whose begins have
    to be.

    Raises:
        ValueError: something rests in host memory, which nothing here counts.
    """
    found = np.zeros((after.num_gpus, 2), np.int64)
    there, wanted = _held(before, before.ends), _held(after, after.begins)
    layout = after.layouts[0]
    for (name, layer), needs in wanted.items():
        has = there[name, layer]
        every = [runs.reshape(-1) for cells in (*has.values(), *needs.values()) for runs in cells]
        edges = np.unique(np.concatenate(every))
        unit = layout.tensors[layout.number[name]].unit
        have, lack = (_flags(one, after.num_gpus, edges) for one in (has, needs))
        _count(found, unit * np.diff(edges), have, lack & ~have)
    return [(int(sent), int(received)) for sent, received in found]


def _count(found: Ints, sizes: Ints, has: Flags, lacks: Flags) -> None:
    """Adds the bytes of a tensor's pieces. sizes: bytes of each; has, lacks: bool [GPUs, pieces]."""
    copies = has.sum(axis=0)
    assert copies[lacks.any(axis=0)].all(), "what a GPU lacks is on another one"
    number = np.cumsum(has, axis=0) - 1  # of a GPU among those that have a piece
    for gpu in np.flatnonzero(lacks.any(axis=1)).tolist():
        asked = has & (number == gpu % np.maximum(copies, 1)) & lacks[gpu]
        found[:, 0] += asked @ sizes
        found[gpu, 1] += lacks[gpu] @ sizes


def _flags(cells: dict[int, list[Ints]], gpus: int, edges: Ints) -> Flags:
    """Returns which of the pieces between edges each GPU has, bool [GPUs, pieces]."""
    found = np.zeros((gpus, len(edges) - 1), bool)
    for gpu, runs in cells.items():
        for begin, end in np.searchsorted(edges, np.concatenate(runs)).tolist():
            found[gpu, begin:end] = True
    return found


def _held(step: Step, items: Items) -> Held:
    """Returns the runs of parameters' elements, and of their state's, that items name on every GPU."""
    found: Held = defaultdict(lambda: defaultdict(list))
    layout = step.layouts[0]
    for tensor, _, places, list0, list1, *_ in items.rows():
        one = layout.tensors[tensor]
        if one.name == "loss":
            continue
        cells = list(_cells(layout, tensor, (list0, list1)))
        for layer in range(step.num_layers) if one.layers == "layer" else (0,):
            where = step.where(ACROSS, layer) if one.layers == "layer" else np.arange(step.num_places)
            for number, runs in cells:
                at = [int(one.home[number])] if places == AT_HOME else layout.lists[places].tolist()
                for gpu in (int(where[place]) for place in at):
                    if gpu >= step.num_gpus:
                        raise ValueError(f"{one.name} rests in {step.place(gpu)}; the law counts GPUs alone")
                    found[one.name, layer][gpu].append(runs)
    return found


def _cells(layout: StepLayout, tensor: int, lists: tuple[int, int]) -> Iterator[tuple[int, Ints]]:
    """Yields (its number, the runs of elements of the whole parameter, flat: int64 [runs, 2], begin and end) of every
    cell that two lists have."""
    one = layout.tensors[tensor]
    if not one.axes:
        yield 0, np.array([[0, 1]])
        return
    slices, shards = (layout.index[axis].sizes for axis in one.axes)
    ends, rows = np.cumsum(shards), np.arange(PIECES.get(one.name.removeprefix("s"), 1))
    together = int(ends[-1]) // len(rows)  # elements of a slice that lie together in the whole
    for share in layout.lists[lists[0]].tolist():
        first = (rows * len(slices) + share) * together
        for shard in layout.lists[lists[1]].tolist():
            cell = np.array([ends[shard] - shards[shard], ends[shard]])
            runs = first[:, None] + np.clip(cell - rows[:, None] * together, 0, together)
            yield share * len(shards) + shard, runs[runs[:, 0] < runs[:, 1]]
