"""The rules of numbers: operations and contracts name places, lists, tensors and formulas that there are.

Compiled loops follow lists and numbers without looking whether these lead out of an array: hence these rules are first.
"""

import numpy as np

from zbench.describe.arrays import Flags
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE, PartLists
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND, Operations
from zbench.step.proof.sentences import Sentence
from zbench.step.template import AT_HOME, COMPLETE, Items, Step, Template

MOST_OFFSET = 16  # layers that an operation may look ahead or back
MOST_HOPS = 1000  # lossy encodings, one after another


def numbers_fault(step: Step, template: Template) -> str:
    """Returns the first operation of a template that names what is not there, as a sentence; "" if none."""
    layout, ops, say = step.layouts[template.layout], template.operations, Sentence(step, template)
    if len(wrong := np.flatnonzero((ops.kind < 0) | (ops.kind >= len(KINDS)))):
        return say.number(int(wrong[0]), "kind", f"0 to {len(KINDS) - 1}")
    compute = ops.kind == COMPUTE
    single = (ops.kind == SEND) | (ops.kind == MOVE)
    many = (ops.kind == GATHER) | (ops.kind == REDUCE)
    made = np.isin(ops.what, np.array(template.formulas, np.int64))
    tensors, places, lists = len(layout.tensors), step.num_places, layout.lists
    for column, bad, right in (
        ("what", compute & ~made, "the number of a formula that its template computes"),
        ("what", ~compute & _outside(ops.what, tensors), f"the number of a tensor, below {tensors}"),
        ("src", ~many & _outside(ops.src, places), f"a place, below {places}"),
        ("src", many & (ops.src != -1), "-1 of a collective"),
        ("dst", single & (_outside(ops.dst, places) | (ops.dst == ops.src)), f"another place, below {places}"),
        ("dst", (compute | (ops.kind == DROP)) & (ops.dst != -1), "-1 of a compute or a drop"),
        ("dst", many & ~_is_of(lists, ops.dst, PLACE), "a list of places"),
        ("layer", compute & (ops.layer != 0), "0 of a compute"),
        ("layer", abs(ops.layer) > MOST_OFFSET, f"at most {MOST_OFFSET} layers away"),
        ("queue", _outside(ops.queue, len(QUEUES)), f"a queue, below {len(QUEUES)}"),
        ("encoding", (ops.encoding < -1) | (ops.encoding >= len(step.encodings)), "-1 or an encoding of the step"),
        ("encoding", (compute | (ops.kind == DROP)) & (ops.encoding != -1), "-1 of a compute or a drop"),
        ("via", (ops.via != -1) & ~(single & _is_of(lists, ops.via, LANE)), "-1, or a list of lanes of a transfer"),
    ):
        if bad.any():
            return say.number(int(np.argmax(bad)), column, right)
    return _slots_fault(layout, ops, say)


def _outside(column: np.ndarray, size: int) -> Flags:
    return np.asarray((column < 0) | (column >= size))


def _is_of(lists: PartLists, column: np.ndarray, index: str) -> Flags:
    """Returns whether numbers are those of lists of an index with something in them."""
    inside = ~_outside(column, len(lists))
    which = np.where(inside, column, 0)
    if index not in lists.indices or not len(lists):
        return np.zeros(len(column), bool)
    found: Flags = inside & (lists.of[which] == lists.indices.index(index)) & (np.diff(lists.offsets)[which] > 0)
    return found


def _slots_fault(layout: StepLayout, ops: Operations, say: Sentence) -> str:
    """Returns the first operation with a list that is not of the index of its formula's slot or its tensor's axis."""
    kinds = np.unique(np.stack([ops.kind == COMPUTE, ops.what], axis=1).astype(np.int64), axis=0)
    first, words = len(ops), ""
    for computes, what in kinds.tolist():
        if computes:
            names = [layout.index_of(slot) for slot in layout.formulas[what].slots]
        else:
            names = list(layout.tensors[what].axes)
        mine = np.flatnonzero(((ops.kind == COMPUTE) == bool(computes)) & (ops.what == what))
        for at in range(3):
            column = getattr(ops, f"list{at}")[mine]
            bad = ~_is_of(layout.lists, column, names[at]) if at < len(names) else column != -1
            if bad.any() and mine[np.argmax(bad)] < first:
                first = int(mine[np.argmax(bad)])
                words = say.number(first, f"list{at}", f"a list of index {names[at]}" if at < len(names) else "-1")
        offset = ops.layer[mine] != 0
        if not computes and layout.tensors[what].layers == "none" and offset.any() and mine[np.argmax(offset)] < first:
            first = int(mine[np.argmax(offset)])
            words = say.number(first, "layer", f"0, as {layout.tensors[what].name} is of no layer")
    return words


def contract_fault(step: Step, template: Template) -> str:
    """Returns what is wrong with the numbers of a template's contract, as a sentence; "" if nothing."""
    layout, say = step.layouts[template.layout], Sentence(step, template)
    for name, items in (("needs", template.needs), ("leaves", template.leaves)):
        if word := items_fault(layout, items):
            return say.contract(f"{name} {word}")
    return ""


def items_fault(layout: StepLayout, items: Items) -> str:
    """Returns what is wrong with the numbers of items, "" if nothing."""
    outside = _outside(items.tensor, len(layout.tensors))
    if outside.any():
        at = int(np.argmax(outside))
        return f"entry {at} has tensor {items.tensor[at]}; it takes a number below {len(layout.tensors)}"
    for tensor in np.unique(items.tensor).tolist():
        mine = np.flatnonzero(items.tensor == tensor)
        one, rows = layout.tensors[tensor], items.take(mine)
        at_home = rows.places == AT_HOME
        sums = (rows.count > 0) | (rows.count == COMPLETE) if one.nature == "sum" else rows.count == 0
        for bad, word in (
            (~at_home & ~_is_of(layout.lists, rows.places, PLACE), "places that are no list of places, or -1: at home"),
            (at_home & bool((one.home < 0).any()), "items at home, which has no home"),
            (~_is_axis(layout, rows.list0, one.axes, 0), "a list that is not of its first axis"),
            (~_is_axis(layout, rows.list1, one.axes, 1), "a list that is not of its second axis"),
            (abs(rows.layer) > (0 if one.layers == "none" else MOST_OFFSET), "a layer that is too far"),
            (~sums, "a wrong count; sums have one above 0 or are complete, others have none"),
            ((rows.version != 0) & (one.nature != "state"), "a version, and is no state"),
            ((rows.hops < 0) | (rows.hops > MOST_HOPS), f"hops that are not from 0 to {MOST_HOPS}"),
        ):
            if bad.any():
                return f"entry {int(mine[np.argmax(bad)])}, of {one.name}, has {word}"
    return ""


def _is_axis(layout: StepLayout, column: np.ndarray, axes: tuple[str, ...], at: int) -> Flags:
    """Returns whether numbers are of lists of a tensor's axis, or -1 where it has none."""
    return _is_of(layout.lists, column, axes[at]) if at < len(axes) else np.asarray(column == -1)
