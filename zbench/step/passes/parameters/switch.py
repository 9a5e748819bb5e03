"""The change of strategy between two steps as a step of its own: parameters and optimizer state go from where one has
left them to where the next wants them.

What a GPU has already stays, what it lacks comes from a GPU that has it, in a message for each pair, tensor and layer:
of several that have it GPU p asks number p, counted round, in the order of GPUs. Tensor follows tensor, in one order
everywhere. It is what executor=torch_whole_step does between two steps.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.elements import ElementHolders, ElementMoves, element_moves
from zbench.step.index import Index
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.template import Instance, Items, Step, Template
from zbench.step.tensor import Tensor


def switch_step(before: ElementHolders, after: ElementHolders) -> Step | None:
    """Returns the step that moves what is held before to where it is held after; None where everything is there.

    Raises:
        ValueError: no GPU has what one lacks.
    """
    every = sorted(element_moves(before, after), key=lambda one: one.tensor)
    return moving_step("switch", every, after.num_gpus) if every else None


def moving_step(name: str, every: Sequence[ElementMoves], gpus: int, unit: int = 1, letter: str = "e") -> Step:
    """Returns the step that moves pieces of tensors from GPUs that have them to those that lack them. name: of its
    template. unit: bytes of what sizes count. letter: that the indices of pieces begin with.

    Raises:
        ValueError: no GPU has what one lacks.
    """
    indices = [Index(f"{letter}{number}", one.sizes) for number, one in enumerate(every)]
    lists = ListTable({**{one.name: len(one) for one in indices}, PLACE: gpus})
    tensors: list[Tensor] = []
    operations: list[list[int]] = []
    begins: list[list[int]] = []
    ends: list[list[int]] = []
    for one, index in zip(every, indices, strict=True):
        sends = _sends(one)
        for layer in one.layers:
            what = len(tensors)
            home = np.full(len(index), -1, np.int64)
            tensors.append(Tensor(f"{one.tensor}_{layer}", (index.name,), "copy", "", "none", unit, home))
            operations += [
                operation_row(SEND, what, ends_of, [lists.number(index.name, pieces)], "parameters")
                for ends_of, pieces in sends
            ]
            for rows, flags in ((begins, one.has), (ends, one.has | one.lacks)):
                rows += flagged_items(lists, index.name, what, flags)
    layout = StepLayout(tuple(indices), (), (), (), tuple(tensors), (), lists.lists())
    needs, leaves = Items.of(begins), Items.of(ends)
    template = Template(name, 0, Operations.of(operations), (), needs, leaves)
    return Step(gpus, 0, 0, (), (layout,), (template,), (Instance(0, 0),), needs, leaves)


def _sends(change: ElementMoves) -> list[tuple[tuple[int, int], Ints]]:
    """Lists ((from, to), pieces) of the messages of a tensor, by pairs."""
    number = np.cumsum(change.has, axis=0) - 1  # of a GPU among those that have a piece
    copies = change.has.sum(axis=0)
    found = []
    for gpu in np.flatnonzero(change.lacks.any(axis=1)).tolist():
        pieces = np.flatnonzero(change.lacks[gpu])
        if not copies[pieces].all():
            raise ValueError(f"no GPU has all of {change.tensor} that GPU {gpu} lacks")
        asked = change.has[:, pieces] & (number[:, pieces] == gpu % copies[pieces])
        source = asked.argmax(axis=0)
        found += [((src, gpu), pieces[source == src]) for src in np.unique(source).tolist()]
    gpus = len(change.has)
    return sorted(found, key=lambda one: ((one[0][1] - one[0][0]) % gpus, one[0][0]))


def flagged_items(lists: ListTable, index: str, what: int, flags: np.ndarray) -> list[list[int]]:
    """Lists the entries of items that say who has which pieces of a tensor, one for all GPUs that have the same."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    for gpu in np.flatnonzero(flags.any(axis=1)).tolist():
        alike[flags[gpu].tobytes()].append(gpu)
    return [
        [what, 0, lists.number(PLACE, gpus), lists.number(index, np.flatnonzero(flags[gpus[0]])), -1, 0, 0, 0]
        for gpus in alike.values()
    ]
