"""The rules of numbers: operations and contracts name places, lists, tensors and formulas that there are.

Compiled loops follow lists and numbers without looking whether these lead out of an array: hence these rules are first.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import IN_PLACE
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND
from zbench.step.proof.sentences import Sentence
from zbench.step.template import AT_HOME, COMPLETE, Items, Step, Template
from zbench.step.tensor import NATURES, STATE, SUM

MOST_HOPS = 1000  # lossy encodings, one after another


@dataclass(frozen=True)
class Owners:
    """The indices that lists of a layout belong to, as numbers of PartLists.indices.

    of: int64 [lists + 2]: -2 of a list with nothing in it, and of what is out of range (the last but one); -1 at the
    end, of "no list". slots: int64 [formulas, 3], axes: int64 [tensors, 2]: the index that a list has to be of, or -1.
    nature: of tensors, as numbers; homeless: whether a tensor has a cell without a home.
    """

    of: Ints
    slots: Ints
    axes: Ints
    nature: Ints
    homeless: Flags
    place: int
    lane: int

    @staticmethod
    def in_layout(layout: StepLayout) -> "Owners":
        """Reads them off a layout."""
        lists = layout.lists
        number = {name: at for at, name in enumerate(lists.indices)}
        own = np.where(np.diff(lists.offsets) > 0, lists.of, -2)
        known = np.array([*(number.get(one.name, -2) for one in layout.indices), -1], np.int64)
        axes = [[*(number.get(axis, -2) for axis in one.axes), -1, -1][:2] for one in layout.tensors]
        return Owners(
            np.concatenate([own, [-2, -1]]),
            known[layout.bound.slots],
            np.array(axes, np.int64).reshape(-1, 2),
            np.array([NATURES.index(one.nature) for one in layout.tensors], np.int64),
            np.array([one.home.min(initial=0) < 0 for one in layout.tensors], bool),
            number.get(PLACE, -3),
            number.get(LANE, -3),
        )


def numbers_fault(step: Step, template: Template, owners: Owners) -> str:
    """Returns the first operation of a template that names what is not there, as a sentence; "" if none."""
    layout, ops, say = step.layouts[template.layout], template.operations.table, Sentence(step, template)
    made = np.zeros(len(layout.formulas), bool)
    made[list(template.formulas)] = True
    sizes = len(step.encodings), step.num_gpus, step.num_layers
    counts = len(KINDS), len(layout.tensors), step.num_places, len(QUEUES), *sizes
    first = _wrong_numbers(ops, made, counts, (owners.of, owners.place, owners.lane)).tolist()
    tensors, places = len(layout.tensors), step.num_places
    for op, (column, right) in zip(
        first,
        (
            ("kind", f"0 to {len(KINDS) - 1}"),
            ("what", "the number of a formula that its template computes"),
            ("what", f"the number of a tensor, below {tensors}"),
            ("src", f"a place, below {places}"),
            ("src", "-1 of a collective, or what divides the GPUs"),
            ("dst", f"another place, below {places}"),
            ("dst", "-1 of a compute or a drop"),
            ("dst", "a list of places"),
            ("layer", "0 of a compute"),
            ("layer", f"at most {step.num_layers} layers away, as there are no more"),
            ("queue", f"a queue, below {len(QUEUES)}"),
            ("encoding", "-1 or an encoding of the step"),
            ("encoding", "-1 of a compute or a drop"),
            ("via", "-1, or a list of lanes of a transfer"),
        ),
        strict=True,
    ):
        if op >= 0:
            return say.number(op, column, right)
    op, at, index = _wrong_lists(ops, owners.of, owners.slots, owners.axes, layout.layered)
    if op < 0:
        return ""
    if at < 0:
        return say.number(op, "layer", f"0, as {layout.tensors[ops[op, 1]].name} is of no layer")
    return say.number(op, f"list{at}", f"a list of index {layout.lists.indices[index]}" if index >= 0 else "-1")


@nb.njit(**IN_PLACE)
def _owner(of, which):  # type: ignore[no-untyped-def]
    """Returns the index of a list, -1 of no list, -2 of what is none. of: of Owners."""
    return of[which] if -1 <= which < len(of) - 2 else np.int64(-2)


@nb.njit(**IN_PLACE)
def _note(first, rule, at, is_broken):  # type: ignore[no-untyped-def]
    """Notes who breaks a rule first."""
    if is_broken and first[rule] < 0:
        first[rule] = at


@nb.njit(cache=True)
def _wrong_numbers(ops, made, counts, owners):  # type: ignore[no-untyped-def]
    """Returns the first operation that breaks each rule of `numbers_fault`, -1 where none does. made: of formulas.
    counts: kinds, tensors, places, queues, encodings, GPUs and layers. owners: of, place and lane of Owners."""
    first, (of, place, lane) = np.full(14, -1, np.int64), owners
    kinds, tensors, places, queues, encodings, gpus, layers = counts
    for at in range(len(ops)):
        kind, what, src, dst, layer, encoding, via = (
            ops[at, 0],
            ops[at, 1],
            ops[at, 2],
            ops[at, 3],
            ops[at, 7],
            ops[at, 10],
            ops[at, 11],
        )
        compute, many = kind == COMPUTE, kind in (GATHER, REDUCE)
        single, alone = kind in (SEND, MOVE), compute or kind == DROP
        _note(first, 0, at, kind < 0 or kind >= kinds)
        _note(first, 1, at, compute and (what < 0 or what >= len(made) or not made[what]))
        _note(first, 2, at, not compute and (what < 0 or what >= tensors))
        _note(first, 3, at, not many and (src < 0 or src >= places))
        _note(first, 4, at, many and src != -1 and (src < 1 or gpus % src != 0))
        _note(first, 5, at, single and (dst < 0 or dst >= places or dst == src))
        _note(first, 6, at, alone and dst != -1)
        _note(first, 7, at, many and _owner(of, dst) != place)
        _note(first, 8, at, compute and layer != 0)
        _note(first, 9, at, abs(layer) > layers)
        _note(first, 10, at, ops[at, 8] < 0 or ops[at, 8] >= queues)
        _note(first, 11, at, encoding < -1 or encoding >= encodings)
        _note(first, 12, at, alone and encoding != -1)
        _note(first, 13, at, via != -1 and not (single and _owner(of, via) == lane))
    return first


@nb.njit(cache=True)
def _wrong_lists(ops, of, slots, axes, layered):  # type: ignore[no-untyped-def]
    """Returns (the first operation with a list that is not of the index of its formula's slot or its tensor's axis, the
    slot, the index that is right), the slot -1 where its tensor is of no layer and it names one; -1 if there is
    none."""
    for at in range(len(ops)):
        what, compute = ops[at, 1], ops[at, 0] == COMPUTE
        for slot in range(3):
            wanted = slots[what, slot] if compute else axes[what, slot] if slot < 2 else np.int64(-1)
            if _owner(of, ops[at, 4 + slot]) != wanted:
                return at, slot, wanted
        if not compute and layered[what] == 0 and ops[at, 7] != 0:
            return at, -1, np.int64(-1)
    return -1, -1, np.int64(-1)


def contract_fault(step: Step, template: Template, owners: Owners) -> str:
    """Returns what is wrong with the numbers of a template's contract, as a sentence; "" if nothing."""
    layout, say = step.layouts[template.layout], Sentence(step, template)
    for name, items in (("needs", template.needs), ("leaves", template.leaves)):
        if word := items_fault(layout, items, owners, step.num_layers):
            return say.contract(f"{name} {word}")
    return ""


def items_fault(layout: StepLayout, items: Items, owners: Owners, layers: int) -> str:
    """Returns what is wrong with the numbers of items, "" if nothing. layers: of the step."""
    table = items.table
    of = owners.of, owners.axes, owners.nature, owners.homeless
    first = _wrong_items(table, of, owners.place, layers * layout.layered)
    for at, word in zip(
        first.tolist(),
        (
            "",
            "places that are no list of places, or -1: at home",
            "items at home, which has no home",
            "a list that is not of its first axis",
            "a list that is not of its second axis",
            "a layer that is too far",
            "a wrong count; sums have one from 0 on or are complete, others have none",
            "a version, and is no state",
            f"hops that are not from 0 to {MOST_HOPS}",
        ),
        strict=True,
    ):
        if at >= 0 and not word:
            return f"entry {at} has tensor {table[at, 0]}; it takes a number below {len(layout.tensors)}"
        if at >= 0:
            return f"entry {at}, of {layout.tensors[table[at, 0]].name}, has {word}"
    return ""


@nb.njit(cache=True)
def _wrong_items(items, owners, place, farthest):  # type: ignore[no-untyped-def]
    """Returns the first entry that breaks each rule of `items_fault`, -1 where none does. farthest: for each tensor how
    many layers away an entry may be."""
    first, (of, axes, natures, homeless) = np.full(9, -1, np.int64), owners
    for at in range(len(items)):
        tensor, layer, places, count = items[at, 0], items[at, 1], items[at, 2], items[at, 5]
        if tensor < 0 or tensor >= len(natures):
            _note(first, 0, at, True)
            continue
        nature, at_home = natures[tensor], places == AT_HOME
        _note(first, 1, at, not at_home and _owner(of, places) != place)
        _note(first, 2, at, at_home and homeless[tensor])
        _note(first, 3, at, _owner(of, items[at, 3]) != axes[tensor, 0])
        _note(first, 4, at, _owner(of, items[at, 4]) != axes[tensor, 1])
        _note(first, 5, at, abs(layer) > farthest[tensor])
        _note(first, 6, at, not (count >= 0 or count == COMPLETE) if nature == SUM else count != 0)
        _note(first, 7, at, items[at, 6] != 0 and nature != STATE)
        _note(first, 8, at, items[at, 7] < 0 or items[at, 7] > MOST_HOPS)
    return first
