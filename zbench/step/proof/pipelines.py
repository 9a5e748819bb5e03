"""The rules of a step's order for pipelines side by side: which of them has which groups, and which places."""

from dataclasses import dataclass
from itertools import pairwise

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.operations import GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.groups import Groups, slots_of
from zbench.step.proof.tables import ItemRows
from zbench.step.proof.template_rules import Looked
from zbench.step.template import ACROSS, Step, Template


@dataclass(frozen=True)
class Slots:
    """The slots of what there may be: one for each tensor of a micro-batch, and one in each pipeline for those of the
    step.

    numbers: by layout and tensor, the slot, of the first pipeline. each: by slot, 1 where every pipeline has one of its
    own, one after another. count: of all slots.
    """

    numbers: tuple[tuple[int, ...], ...]
    each: dict[int, int]
    count: int

    @staticmethod
    def of(step: Step) -> "Slots":
        """Counts the slots of a step."""
        plain, pipelines = slots_of(step), len(step.pipelines)
        of_step = {
            slot
            for layout, row in zip(step.layouts, plain, strict=True)
            for tensor, slot in enumerate(row)
            if not layout.of_batch(tensor)
        }
        widths = np.array([pipelines if slot in of_step else 1 for slot in range(1 + max(map(max, plain)))], np.int64)
        ends = np.cumsum(widths)
        first = (ends - widths).tolist()
        each = {first[slot]: int(slot in of_step) for slot in range(len(widths))}
        return Slots(tuple(tuple(first[slot] for slot in row) for row in plain), each, int(ends[-1]))

    def tensor(self, layout: int, slot: int) -> int:
        """Returns the tensor of a layout that has a slot of the first pipeline."""
        return self.numbers[layout].index(slot)

    def owner(self, slot: int) -> tuple[int, int]:
        """Returns the first layout, and its tensor, that has a slot, of any pipeline."""
        first = max(one for one in self.each if one <= slot)
        return next((at, row.index(first)) for at, row in enumerate(self.numbers) if first in row)


def groups_of_pipelines(step: Step, groups: Groups, items: ItemRows, across: bool) -> Ints:
    """Returns the groups of a contract's items, int64 [groups, 6]: pipeline, tensor, layer offset, and an ItemGroup.
    across: they are told apart by the pipelines of their places; else all are of the instance's, -1."""
    if not across:
        found = groups.of(items)
        return np.concatenate([np.full((len(found), 1), -1), found], axis=1)
    of, rows = step.pipeline_of[items.place], [np.zeros((0, 6), np.int64)]
    for pipeline in np.unique(of).tolist():
        found = groups.of(ItemRows(*(column[of == pipeline] for column in items)))
        rows.append(np.concatenate([np.full((len(found), 1), pipeline), found], axis=1))
    return np.concatenate(rows)


def stages_fault(step: Step) -> str:
    """Returns what is wrong with the layers and places that stages begin with, and with how many layers are of the
    first kind, "" if nothing."""
    if not 0 <= step.leading <= step.num_layers:
        return f"a step of {step.num_layers} layers has {step.leading} first ones of another kind"
    firsts, places = [one.layer for one in step.stages], [one.place for one in step.stages]
    if any(not 0 <= place < step.num_places for place in places):
        return f"the stages of a step begin with places below {step.num_places}; they are {places}"
    ascends = [b == 0 or a < b < max(step.num_layers, 1) for a, b in pairwise(firsts)]
    if firsts[:1] != [0] or not all(ascends):
        return (
            f"the stages of a step begin with layer 0 and ascend below {step.num_layers}, in every pipeline; they are "
            f"{firsts}"
        )
    leads = [stages[0].place for stages in step.pipelines]
    if leads[0] != 0 or any(a >= b for a, b in pairwise(leads)):
        return f"the pipelines of a step begin with place 0 and ascend; they are {leads}"
    for number, (stages, end) in enumerate(zip(step.pipelines, [*leads[1:], step.num_places], strict=True)):
        if any(not stages[0].place <= one.place < end for one in stages):
            return f"pipeline {number} has places {stages[0].place} to {end - 1}, and a stage that begins elsewhere"
    return ""


def places_fault(step: Step, looked: list[Looked]) -> str:
    """Returns an instance that is played in places that there are not, or that are not its pipeline's; "" if none."""
    ends = np.append([one[0].place for one in step.pipelines[1:]], step.num_places)
    most = step.shifts.max(axis=1)
    named: dict[int, Ints] = {}
    for number, one in enumerate(step.order):
        if one.place < ACROSS or one.place >= step.num_places:
            return f"instance {number} is played from place {one.place} on; there are {step.num_places}"
        if one.template not in named:
            template = step.templates[one.template]
            named[one.template] = _named_places(step, template, looked[one.template])
        places = named[one.template]
        if one.place != ACROSS:
            last = one.place + int(places.max(initial=0))
            if last >= step.num_places:
                return f"instance {number} is played from place {one.place} on; there are {step.num_places}"
            if last >= ends[step.pipeline_of[one.place]]:
                return f"instance {number} is played from place {one.place} on, and reaches into the next pipeline"
            continue
        of = step.pipeline_of[places]
        if (places + most[of] >= ends[of]).any():
            return f"instance {number} is of all pipelines, and reaches from one into the next"
        if word := _of_batches(step, step.templates[one.template]):
            return f"instance {number} is of all pipelines, and {word} is of a micro-batch"
    return _resting_fault(step)


def _resting_fault(step: Step) -> str:
    """Returns what a step of several pipelines begins or ends with that is of a micro-batch, as a sentence."""
    if len(step.pipelines) > 1:
        for items in (step.begins, step.ends):
            for tensor in np.unique(items.tensor).tolist():
                if step.layouts[0].of_batch(tensor):
                    return f"the step begins or ends with {step.layouts[0].tensors[tensor].name} of a micro-batch"
    return ""


def _of_batches(step: Step, template: Template) -> str:
    """Returns the name of a tensor of a micro-batch that a template names or touches, "" if there is none."""
    layout, ops = step.layouts[template.layout], template.operations
    tensors = {*template.needs.tensor.tolist(), *template.leaves.tensor.tolist(), *ops.what[ops.kind != 0].tolist()}
    rows, offsets = layout.bound.rows, layout.bound.offsets
    for formula in template.formulas:
        tensors |= set(rows[offsets[formula] : offsets[formula + 1], 1].tolist())
    return next((layout.tensors[one].name for one in sorted(tensors) if layout.of_batch(one)), "")


def _named_places(step: Step, template: Template, looked: Looked) -> Ints:
    """Returns the places that a template names, each once; of runs of places that have homes of their own the last."""
    layout, ops = step.layouts[template.layout], template.operations
    homes = [one.home for one in layout.tensors]
    at_home = np.unique(ops.what[(ops.kind >= GATHER) & (ops.kind <= REDUCE) & (ops.src < 0)]).tolist()
    named = np.zeros(2 * step.num_places, np.bool_)
    for what in at_home:
        named[homes[what][homes[what] >= 0]] = True
    named[looked.needs.place] = named[looked.leaves.place] = True
    _name(ops.table, layout.lists.offsets, layout.lists.parts, named)
    return np.flatnonzero(named)


@nb.njit(cache=True)
def _name(ops, offsets, parts, named):  # type: ignore[no-untyped-def]
    """Marks the places that operations name beside homes."""
    for op in ops:
        if op[0] == GATHER or op[0] == REDUCE:
            for at in range(offsets[op[3]], offsets[op[3] + 1]):
                named[parts[at]] = True
                if op[2] > 0:
                    named[parts[at] // op[2] * op[2] + op[2] - 1] = True
        else:
            named[op[2]] = True
            if op[0] == SEND or op[0] == MOVE:
                named[op[3]] = True
