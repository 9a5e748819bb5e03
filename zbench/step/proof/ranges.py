"""The rules of numbers: operations and contracts name places, lists, tensors and formulas that there are.

Compiled loops follow lists and numbers without looking whether these lead out of an array: hence these rules are first.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND, Operations
from zbench.step.proof.sentences import Sentence
from zbench.step.template import AT_HOME, COMPLETE, Items, Step, Template
from zbench.step.tensor import NATURES, STATE, SUM

MOST_OFFSET = 16  # layers that an operation may look ahead or back
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

    def owner(self, column: np.ndarray) -> Ints:
        """Returns the index of each list, -1 of no list, -2 of what is none."""
        inside = (column >= -1) & (column < len(self.of) - 2)
        return np.asarray(self.of[np.where(inside, column, len(self.of) - 2)])


def numbers_fault(step: Step, template: Template, owners: Owners) -> str:
    """Returns the first operation of a template that names what is not there, as a sentence; "" if none."""
    layout, ops, say = step.layouts[template.layout], template.operations, Sentence(step, template)
    if len(wrong := np.flatnonzero((ops.kind < 0) | (ops.kind >= len(KINDS)))):
        return say.number(int(wrong[0]), "kind", f"0 to {len(KINDS) - 1}")
    compute, drop = ops.kind == COMPUTE, ops.kind == DROP
    single = (ops.kind == SEND) | (ops.kind == MOVE)
    many = (ops.kind == GATHER) | (ops.kind == REDUCE)
    made = np.zeros(len(layout.formulas) + 1, bool)
    made[list(template.formulas)] = True
    known = np.where(_outside(ops.what, len(layout.formulas)), len(layout.formulas), ops.what)
    tensors, places = len(layout.tensors), step.num_places
    alone = compute | drop
    for column, bad, right in (
        ("what", compute & ~made[known], "the number of a formula that its template computes"),
        ("what", ~compute & _outside(ops.what, tensors), f"the number of a tensor, below {tensors}"),
        ("src", ~many & _outside(ops.src, places), f"a place, below {places}"),
        (
            "src",
            many & (ops.src != -1) & ~_divides(ops.src, step.num_gpus),
            "-1 of a collective, or what divides the GPUs",
        ),
        ("dst", single & (_outside(ops.dst, places) | (ops.dst == ops.src)), f"another place, below {places}"),
        ("dst", alone & (ops.dst != -1), "-1 of a compute or a drop"),
        ("dst", many & (owners.owner(ops.dst) != owners.place), "a list of places"),
        ("layer", compute & (ops.layer != 0), "0 of a compute"),
        ("layer", abs(ops.layer) > MOST_OFFSET, f"at most {MOST_OFFSET} layers away"),
        ("queue", _outside(ops.queue, len(QUEUES)), f"a queue, below {len(QUEUES)}"),
        ("encoding", (ops.encoding < -1) | (ops.encoding >= len(step.encodings)), "-1 or an encoding of the step"),
        ("encoding", alone & (ops.encoding != -1), "-1 of a compute or a drop"),
        (
            "via",
            (ops.via != -1) & ~(single & (owners.owner(ops.via) == owners.lane)),
            "-1, or a list of lanes of a transfer",
        ),
    ):
        if bad.any():
            return say.number(int(np.argmax(bad)), column, right)
    return _slots_fault(layout, ops, say, owners)


def _divides(column: np.ndarray, size: int) -> Flags:
    return np.asarray((column > 0) & (size % np.maximum(column, 1) == 0))


def _outside(column: np.ndarray, size: int) -> Flags:
    return np.asarray((column < 0) | (column >= size))


def _slots_fault(layout: StepLayout, ops: Operations, say: Sentence, owners: Owners) -> str:
    """Returns the first operation with a list that is not of the index of its formula's slot or its tensor's axis."""
    compute = ops.kind == COMPUTE
    wanted = np.full((len(ops), 3), -1, np.int64)
    wanted[compute] = owners.slots[ops.what[compute]]
    wanted[~compute, :2] = owners.axes[ops.what[~compute]]
    lists = np.stack([ops.list0, ops.list1, ops.list2], axis=1)
    wrong = owners.owner(lists) != wanted
    none = np.zeros(len(ops), bool)
    none[~compute] = (layout.layered[ops.what[~compute]] == 0) & (ops.layer[~compute] != 0)
    bad = np.flatnonzero(wrong.any(axis=1) | none)
    if not len(bad):
        return ""
    first = int(bad[0])
    what = int(ops.what[first])
    if not wrong[first].any():
        return say.number(first, "layer", f"0, as {layout.tensors[what].name} is of no layer")
    at = int(np.argmax(wrong[first]))
    index = int(wanted[first, at])
    return say.number(first, f"list{at}", f"a list of index {layout.lists.indices[index]}" if index >= 0 else "-1")


def contract_fault(step: Step, template: Template, owners: Owners) -> str:
    """Returns what is wrong with the numbers of a template's contract, as a sentence; "" if nothing."""
    layout, say = step.layouts[template.layout], Sentence(step, template)
    for name, items in (("needs", template.needs), ("leaves", template.leaves)):
        if word := items_fault(layout, items, owners):
            return say.contract(f"{name} {word}")
    return ""


def items_fault(layout: StepLayout, items: Items, owners: Owners) -> str:
    """Returns what is wrong with the numbers of items, "" if nothing."""
    outside = _outside(items.tensor, len(layout.tensors))
    if outside.any():
        at = int(np.argmax(outside))
        return f"entry {at} has tensor {items.tensor[at]}; it takes a number below {len(layout.tensors)}"
    nature, axes, at_home = owners.nature[items.tensor], owners.axes[items.tensor], items.places == AT_HOME
    sums = np.where(nature == SUM, (items.count >= 0) | (items.count == COMPLETE), items.count == 0)
    for bad, word in (
        (~at_home & (owners.owner(items.places) != owners.place), "places that are no list of places, or -1: at home"),
        (at_home & owners.homeless[items.tensor], "items at home, which has no home"),
        (owners.owner(items.list0) != axes[:, 0], "a list that is not of its first axis"),
        (owners.owner(items.list1) != axes[:, 1], "a list that is not of its second axis"),
        (abs(items.layer) > MOST_OFFSET * layout.layered[items.tensor], "a layer that is too far"),
        (~sums, "a wrong count; sums have one from 0 on or are complete, others have none"),
        ((items.version != 0) & (nature != STATE), "a version, and is no state"),
        (_outside(items.hops, MOST_HOPS + 1), f"hops that are not from 0 to {MOST_HOPS}"),
    ):
        if bad.any():
            at = int(np.argmax(bad))
            return f"entry {at}, of {layout.tensors[int(items.tensor[at])].name}, has {word}"
    return ""
