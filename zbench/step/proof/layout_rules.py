"""The rules of layouts: names are given once, numbers lead to what there is, micro-batches share the step's tensors.

Compiled loops follow lists, maps, relations and homes without looking whether these lead out of an array.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.step.index import Index, Relation
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, MOST_LANES, PLACE
from zbench.step.template import Step

_NOT_NUMBERED, _ROWS, _FALLING, _PARTNERS = range(1, 5)  # what is wrong with a relation


def layout_fault(step: Step, layout: StepLayout) -> str:
    """Returns what is wrong with a layout, "" if nothing."""
    if word := layout.form.names_fault:
        return word
    for index in layout.indices:
        if not len(index) or index.sizes.min() < 1:
            return (
                f"index {index.name} has no parts, or one of size {index.sizes.min(initial=0)}; parts have at least 1"
            )
    if word := _maps_fault(layout) or layout.form.tensors_fault or _homes_fault(step, layout):
        return word
    if word := _lists_fault(step, layout) or layout.form.formulas_fault:
        return word
    return "" if layout is step.layouts[0] else _shared_fault(step.layouts[0], layout)


def _maps_fault(layout: StepLayout) -> str:
    """Tells of a map or a relation that leads out of its index."""
    for one in layout.maps:
        if one.coarse not in layout.index or one.fine not in layout.index:
            return f"a map {one.coarse}({one.fine}) is of an index that there is not"
        size = len(layout.index[one.coarse])
        if len(one.part) != len(layout.index[one.fine]) or one.part.min() < 0 or one.part.max() >= size:
            return f"map {one.coarse}({one.fine}) takes a part below {size} for each part of {one.fine}"
    for relation in layout.relations:
        if word := _relation_fault(layout, relation):
            return f"relation {relation.name} {word}"
    return ""


def _relation_fault(layout: StepLayout, one: Relation) -> str:
    """Tells what is wrong with the numbers of a relation."""
    for index, group in ((one.first, one.first_group), (one.second, one.second_group)):
        if index not in layout.index or len(group) != len(layout.index[index]):
            return f"takes a group for each part of {index}"
    code, side = _wrong_relation(one.first_group, one.second_group, one.offsets, one.partners)
    if code == _NOT_NUMBERED:
        return f"has groups of {one.second if side else one.first} that are not numbered from 0 on"
    if code == _ROWS:
        return f"takes {one.first_group.max() + 1} rows of partners"
    if code == _FALLING:
        return "has rows of partners with offsets that fall"
    return "has partners that are not ascending, or no groups" if code == _PARTNERS else ""


@nb.njit(**ENTERED)
def _wrong_relation(first, second, offsets, partners):  # type: ignore[no-untyped-def]
    """Returns (what is wrong with a relation's groups and rows of partners, 0 if nothing; of which side)."""
    for side in range(2):
        groups = second if side else first
        met = np.zeros(len(groups), np.bool_)
        for group in groups:
            if group < 0 or group >= len(groups):
                return _NOT_NUMBERED, side
            met[group] = True
        if not met[: groups.max() + 1].all():
            return _NOT_NUMBERED, side
    rows, most = first.max() + 1, second.max()
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(partners):
        return _ROWS, 0
    for row in range(rows):
        if offsets[row + 1] < offsets[row]:
            return _FALLING, 0
    for row in range(rows):
        for at in range(offsets[row], offsets[row + 1]):
            falls = at > offsets[row] and partners[at] <= partners[at - 1]
            if falls or partners[at] < 0 or partners[at] > most:
                return _PARTNERS, 0
    return 0, 0


def _homes_fault(step: Step, layout: StepLayout) -> str:
    """Tells what is wrong with the homes of a tensor's cells."""
    cells = np.diff(layout.first_cells)
    wrong = np.array([len(one.home) for one in layout.tensors], np.int64) != cells
    if not wrong.any():
        outside = (layout.homes < -1) | (layout.homes >= step.num_places)
        if outside.any():
            wrong[np.searchsorted(layout.first_cells, np.argmax(outside), side="right") - 1] = True
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    name, homes = layout.tensors[at].name, len(layout.tensors[at].home)
    return f"tensor {name} has {homes} homes; it takes {cells[at]} places below {step.num_places}"


def _lists_fault(step: Step, layout: StepLayout) -> str:
    """Returns what is wrong with the lists of a layout: each belongs to an index and has parts of it, each once."""
    lists = layout.lists
    if unknown := [name for name in lists.indices if name not in layout.index and name not in (PLACE, LANE)]:
        return f"lists are of index {unknown[0]}, which there is not"
    sizes = np.array([_parts(step, layout, name) for name in lists.indices], np.int64)
    if len(lists.offsets) != len(lists) + 1 or lists.offsets[0] != 0 or lists.offsets[-1] != len(lists.parts):
        return "the offsets of lists do not go from 0 to the number of parts"
    if (np.diff(lists.offsets) < 0).any() or (len(lists) and not 0 <= lists.of.min() <= lists.of.max() < len(sizes)):
        return "the offsets of lists fall, or a list is of no index"
    row: Ints = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
    outside = (lists.parts < 0) | (lists.parts >= sizes[lists.of[row]])
    if outside.any():
        at = int(np.argmax(outside))
        name = lists.index_of(int(row[at]))
        return f"list {row[at]} names part {lists.parts[at]} of index {name}, which has {_parts(step, layout, name)}"
    again = (np.diff(lists.parts) <= 0) & (row[1:] == row[:-1])
    if again.any():
        at = int(np.argmax(again))
        return f"list {row[at]} has part {lists.parts[at + 1]} twice or not in ascending order"
    return ""


def _parts(step: Step, layout: StepLayout, index: str) -> int:
    """Returns how many parts an index has; lanes are below MOST_LANES."""
    if index == PLACE:
        return step.num_places
    return MOST_LANES if index == LANE else len(layout.index[index])


def _shared_fault(first: StepLayout, layout: StepLayout) -> str:
    """Tells of a tensor of the step that two layouts have differently; where collectives find its cells is each one's
    own matter."""
    cut_alike = {
        one.name for one in layout.indices if one.name in first.index and _same_sizes(one, first.index[one.name])
    }
    for number, tensor in enumerate(layout.tensors):
        if layout.of_batch(number):
            continue
        if tensor.name not in first.number or first.of_batch(first.number[tensor.name]):
            return f"tensor {tensor.name} is of the step, and the first micro-batch has none"
        other = first.tensors[first.number[tensor.name]]
        same = (tensor.axes, tensor.nature, tensor.merge, tensor.layers, tensor.unit, tensor.hops) == (
            other.axes,
            other.nature,
            other.merge,
            other.layers,
            other.unit,
            other.hops,
        )
        if not same or not cut_alike.issuperset(tensor.axes):
            return f"tensor {tensor.name} is of the step, and another one in the first micro-batch"
    return ""


def _same_sizes(one: Index, other: Index) -> bool:
    return one is other or np.array_equal(one.sizes, other.sizes)
