"""The rules of numbers: operations and contracts name places, lists, tensors and formulas that there are.

Compiled loops follow lists and numbers without looking whether these lead out of an array: hence these rules are first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED, IN_PLACE, INNER
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND
from zbench.step.proof.sentences import Sentence
from zbench.step.proof.template_rows import TemplateRows
from zbench.step.template import AT_HOME, COMPLETE, GONE, Items, Step, Template
from zbench.step.tensor import STATE, SUM

MOST_HOPS = 1000  # lossy encodings, one after another
_NOTHING, _NUMBERS, _LISTS, _NEEDS, _LEAVES = range(5)  # where a template names what is not there


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
        homeless = np.zeros(len(layout.tensors), bool)
        homeless[np.searchsorted(layout.first_cells, np.flatnonzero(layout.homes < 0), side="right") - 1] = True
        return Owners(
            np.concatenate([own, [-2, -1]]),
            known[layout.bound.slots],
            known[layout.form.axes],
            layout.form.natures,
            homeless,
            number.get(PLACE, -3),
            number.get(LANE, -3),
        )


def numbers_fault(step: Step, templates: Sequence[Template], rows: TemplateRows, owners: Owners) -> tuple[int, str]:
    """Returns (which of a layout's templates is the first whose operations or contract name what is not there, the
    sentence), (how many there are, "") if none does. rows: of the templates."""
    layout = step.layouts[templates[0].layout]
    sizes = len(step.encodings), step.num_gpus, step.num_layers
    counts = len(KINDS), len(layout.tensors), step.num_places, len(QUEUES), *sizes
    which, where, at, rule, index = _first_wrong(
        rows,
        counts,
        (owners.of, owners.place, owners.lane),
        owners.slots,
        _about_items(owners, layout, step.num_layers),
    )
    if where == _NOTHING:
        return len(templates), ""
    template, tensors, places = templates[which], len(layout.tensors), step.num_places
    say = Sentence(step, template)
    if where in (_NEEDS, _LEAVES):
        name, items = ("needs", template.needs) if where == _NEEDS else ("leaves", template.leaves)
        return which, say.contract(f"{name} {_entry_word(layout, items, at, rule)}")
    if where == _LISTS and rule < 0:
        return which, say.number(
            at, "layer", f"0, as {layout.tensors[template.operations.what[at]].name} is of no layer"
        )
    if where == _LISTS:
        right = f"a list of index {layout.lists.indices[index]}" if index >= 0 else "-1"
        return which, say.number(at, f"list{rule}", right)
    column, right = (
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
    )[rule]
    return which, say.number(at, column, right)


@nb.njit(**ENTERED)
def _first_wrong(rows, counts, owners, slots, about):  # type: ignore[no-untyped-def]
    """Returns (the first template that breaks a rule, where, the operation or entry, the rule or the slot of a list,
    the index that the list has to be of). rows: TemplateRows; counts, owners: of `_wrong_numbers`; slots: of Owners;
    about: of `_about_items`."""
    (of, axes, _, _), _, _, layered = about
    made = np.zeros(len(slots), np.int64)  # of formulas: the template that computes it, from 1 on
    for which in range(len(rows.op_ends) - 1):
        ops = rows.ops[rows.op_ends[which] : rows.op_ends[which + 1]]
        for formula in rows.formulas[rows.formula_ends[which] : rows.formula_ends[which + 1]]:
            made[formula] = which + 1
        first = _wrong_numbers(ops, made == which + 1, counts, owners)
        for rule in range(len(first)):
            if first[rule] >= 0:
                return which, _NUMBERS, first[rule], rule, np.int64(-1)
        op, at, index = _wrong_lists(ops, of, slots, axes, layered)
        if op >= 0:
            return which, _LISTS, op, at, index
        for side in range(2):
            contract = 2 * which + side
            items = rows.entries[rows.entry_ends[contract] : rows.entry_ends[contract + 1]]
            entry, rule = _wrong_entry(items, about)
            if entry >= 0:
                return which, _NEEDS + side, entry, rule, np.int64(-1)
    return -1, _NOTHING, np.int64(-1), -1, np.int64(-1)


@nb.njit(**IN_PLACE)
def _owner(of, which):  # type: ignore[no-untyped-def]
    """Returns the index of a list, -1 of no list, -2 of what is none. of: of Owners."""
    return of[which] if -1 <= which < len(of) - 2 else np.int64(-2)


@nb.njit(**IN_PLACE)
def _note(first, rule, at, is_broken):  # type: ignore[no-untyped-def]
    """Notes who breaks a rule first."""
    if is_broken and first[rule] < 0:
        first[rule] = at


@nb.njit(**INNER)
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


@nb.njit(**INNER)
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


def resting_fault(step: Step, items: Items, owners: Owners) -> str:
    """Returns what is wrong with the numbers of what a step begins or ends with, "" if nothing. owners: of its first
    layout."""
    layout, there = step.layouts[0], np.flatnonzero(items.places != GONE)
    at, rule = _wrong_entry(items.table[there], _about_items(owners, layout, step.num_layers))
    if at >= 0:
        return _entry_word(layout, items, int(there[at]), rule)
    known = (items.tensor >= 0) & (items.tensor < len(layout.tensors))
    if not known.all():
        return _entry_word(layout, items, int(np.flatnonzero(~known)[0]), 0)
    spans = step.layers_of_entries(items)
    no_layer = (items.layer < 0) | ((items.layer > 0) & (spans[:, 0] > spans[:, 1]))
    if no_layer.any():
        at = int(np.flatnonzero(no_layer)[0])
        name = layout.tensors[int(items.tensor[at])].name
        return f"entry {at}, of {name}, is from layer {int(items.layer[at])} on, and no such layer has one"
    return ""


def _about_items(
    owners: Owners, layout: StepLayout, layers: int
) -> tuple[tuple[Ints, Ints, Ints, Flags], int, Ints, Ints]:
    """Returns what `_wrong_entry` has to know: of Owners of lists, axes, natures and homeless, and its place; for each
    tensor how many layers away an entry may be, and whether layers have one. layers: of the step."""
    known = owners.of, owners.axes, owners.nature, owners.homeless
    return known, owners.place, layers * layout.layered, layout.layered


def _entry_word(layout: StepLayout, items: Items, at: int, rule: int) -> str:
    """Says which rule an entry of a contract breaks."""
    tensor = int(items.tensor[at])
    if rule == 0:
        return f"entry {at} has tensor {tensor}; it takes a number below {len(layout.tensors)}"
    word = (
        "places that are no list of places, or -1: at home",
        "items at home, which has no home",
        "a list that is not of its first axis",
        "a list that is not of its second axis",
        "a layer that is too far",
        "a wrong count; sums have one from 0 on or are complete, others have none",
        "a version, and is no state",
        f"hops that are not from 0 to {MOST_HOPS}",
    )[rule - 1]
    return f"entry {at}, of {layout.tensors[tensor].name}, has {word}"


@nb.njit(**ENTERED)
def _wrong_entry(items, about):  # type: ignore[no-untyped-def]
    """Returns (the first entry that breaks a rule, the rule, by their order in `_entry_word`), -1 if there is none."""
    (of, axes, natures, homeless), place, farthest, _ = about
    first = np.full(9, -1, np.int64)
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
    for rule in range(len(first)):
        if first[rule] >= 0:
            return first[rule], rule
    return np.int64(-1), -1
