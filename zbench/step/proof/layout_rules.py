"""The rules of layouts: names are given once, numbers lead to what there is, micro-batches share the step's tensors.

Compiled loops follow lists, maps, relations and homes without looking whether these lead out of an array.
"""

from collections import Counter

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.index import Relation
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, MOST_LANES, PLACE
from zbench.step.template import Step
from zbench.step.tensor import FOLLOWING, LAYERS, LEADING, NATURES


def layout_fault(step: Step, layout: StepLayout) -> str:
    """Returns what is wrong with a layout, "" if nothing."""
    for what, names in (
        ("index", [one.name for one in layout.indices]),
        ("tensor", [one.name for one in layout.tensors]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            return f"there are two of {what} {twice[0]}"
    for index in layout.indices:
        if not len(index) or index.sizes.min() < 1:
            return (
                f"index {index.name} has no parts, or one of size {index.sizes.min(initial=0)}; parts have at least 1"
            )
    if word := _maps_fault(layout) or _tensors_fault(step, layout) or _lists_fault(step, layout):
        return word
    try:
        layout.bound, layout.contributions  # noqa: B018 - formulas are read here, and have to fit the tensors
    except ValueError as error:
        return str(error)
    for formula in layout.formulas:
        for one in (*formula.results, *formula.operands):
            if one.after and layout.tensors[layout.number[one.tensor]].layers != "border":
                return f"formula {formula} names {one}, and {one.tensor} is not of the borders between layers"
        refs = (*formula.results, *formula.operands)
        kinds = {layout.tensors[layout.number[one.tensor]].layers: one for one in refs}
        if LEADING in kinds and FOLLOWING in kinds:
            return f"formula {formula} names {kinds[LEADING]} of the first layers and {kinds[FOLLOWING]} of the others"
    return _shared_fault(step.layouts[0], layout)


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
        if not np.array_equal(np.unique(group), np.arange(int(group.max()) + 1)):
            return f"has groups of {index} that are not numbered from 0 on"
    rows = int(one.first_group.max()) + 1
    if len(one.offsets) != rows + 1 or one.offsets[0] != 0 or one.offsets[-1] != len(one.partners):
        return f"takes {rows} rows of partners"
    if (np.diff(one.offsets) < 0).any():
        return "has rows of partners with offsets that fall"
    row = np.repeat(np.arange(rows), np.diff(one.offsets))
    falls = (np.diff(one.partners) <= 0) & (row[1:] == row[:-1])
    if falls.any() or one.partners.min(initial=0) < 0 or one.partners.max(initial=0) > one.second_group.max():
        return "has partners that are not ascending, or no groups"
    return ""


def _tensors_fault(step: Step, layout: StepLayout) -> str:
    """Tells what is wrong with a tensor."""
    for tensor in layout.tensors:
        if len(tensor.axes) > 2 or any(axis not in layout.index for axis in tensor.axes):
            return f"tensor {tensor.name} is cut along {', '.join(tensor.axes)}; it takes two indices at most"
        if (
            tensor.nature not in NATURES
            or tensor.layers not in LAYERS
            or bool(tensor.merge) != (tensor.nature == "sum")
        ):
            return f"tensor {tensor.name} is a {tensor.nature} with merge {tensor.merge!r}; sums alone have one"
        if tensor.counted_by and (tensor.amounts is None or tensor.counted_by not in layout.number):
            return f"tensor {tensor.name} is counted by {tensor.counted_by}; it takes amounts, and a tensor there is"
        cells = int(np.prod(layout.shape(layout.number[tensor.name])))
        if len(tensor.home) != cells or tensor.home.min() < -1 or tensor.home.max() >= step.num_places:
            return f"tensor {tensor.name} has {len(tensor.home)} homes; it takes {cells} places below {step.num_places}"
    return ""


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
        sizes = all(np.array_equal(layout.index[axis].sizes, first.index[axis].sizes) for axis in tensor.axes)
        if not same or not sizes:
            return f"tensor {tensor.name} is of the step, and another one in the first micro-batch"
    return ""
