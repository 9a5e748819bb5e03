"""The items that a step begins or ends with, on the places that they are on. Pure."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from zbench.describe.arrays import Ints
from zbench.runtime.steps.compiler import blocks
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.steps.presence import pairs_of
from zbench.step.template import ACROSS, AT_HOME, Items, Step
from zbench.step.tensor import NONE


def items_on(step: Step, items: Items, places: Collection[int]) -> Iterator[tuple[int, int, list[int], Parts, Parts]]:
    """Yields (tensor, layer, places, parts of both axes) of what a step's begins or ends name on some places; those of
    a layer are counted from the stage of their pipeline that has it."""
    layout = step.layouts[0]
    for row, first, last in step.resting(items):
        one = layout.tensors[row[0]]
        if one.layers == NONE:
            yield from ((row[0], 0, *named) for named in _named(step, row, np.arange(step.num_places), places))
            continue
        known: dict[tuple[int, ...], list[tuple[list[int], Parts, Parts]]] = {}  # by the stages that have a layer
        for layer in range(first, last + 1):
            stages = tuple(step.shifts[:, layer].tolist())
            if stages not in known:
                known[stages] = list(_named(step, row, step.where(ACROSS, layer), places))
            yield from ((row[0], layer, *named) for named in known[stages])


def _named(
    step: Step, row: Sequence[int], where: Ints, wanted: Collection[int]
) -> Iterator[tuple[list[int], Parts, Parts]]:
    """Yields (places, parts of both axes) of an entry of items, of the wanted places alone. where: the place that each
    one is that it names."""
    layout, (tensor, _, places, list0, list1, *_) = step.layouts[0], row
    numbers, width = pairs_of(layout, tensor, (list0, list1)), layout.shape(tensor)[1]
    if places != AT_HOME:
        there = [place for place in where[layout.lists[places]].tolist() if place in wanted]
        for first, second in _blocks(numbers, width) if there else ():
            yield there, first, second
        return
    home = where[layout.tensors[tensor].home[numbers]]
    for place in sorted(set(home.tolist()).intersection(wanted)):
        for first, second in _blocks(numbers[home == place], width):
            yield [place], first, second


def _blocks(numbers: Ints, width: int) -> list[tuple[Parts, Parts]]:
    """Returns cells, by their numbers, as few pairs of lists. width: the parts of the second axis."""
    return blocks([(int(cell) // width, int(cell) % width) for cell in numbers])
