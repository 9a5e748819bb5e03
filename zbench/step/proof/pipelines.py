"""The rules of a step's order for pipelines side by side: which of them has which groups, and which places."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED
from zbench.step.operations import GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.groups import slots_of
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


def places_fault(step: Step, looked: Sequence[tuple[Looked, int]]) -> str:
    """Returns an instance that is played in places that there are not, or that are not its pipeline's; "" if none.
    looked: of templates, what was found of those of their layout, and which of these each is."""
    ends = np.append([one[0].place for one in step.pipelines[1:]], step.num_gpus)
    of_layouts: dict[int, Flags] = {}
    named: dict[int, Ints] = {}
    for number, one in enumerate(step.order):
        if one.place < ACROSS or one.place >= step.num_places:
            return f"instance {number} is played from place {one.place} on; there are {step.num_places}"
        if one.template not in named:
            (found, at), layout = looked[one.template], step.layouts[step.templates[one.template].layout]
            if id(found) not in of_layouts:
                lists, homes = (layout.lists.offsets, layout.lists.parts), (layout.first_cells, layout.homes)
                of_layouts[id(found)] = _named_places(
                    found.rows, found.items, found.ends, lists, homes, step.num_places
                )
            named[one.template] = np.flatnonzero(of_layouts[id(found)][at])
        places = named[one.template]
        if one.place != ACROSS:
            last = one.place + int(places.max(initial=0))
            gpu = one.place + int(places[places < step.num_gpus].max(initial=0))
            if last >= step.num_places or gpu >= step.num_gpus:
                return f"instance {number} is played from place {one.place} on; there are {step.num_places}"
            end = int(ends[step.pipeline_of[one.place]])
            if gpu >= end or last >= end + step.num_gpus:
                return f"instance {number} is played from place {one.place} on, and reaches into the next pipeline"
            continue
        last = one.layer + one.stride * (one.repeats - 1)
        low, high = np.clip(sorted((one.layer, last)), 0, step.num_layers).tolist()
        of, most = step.pipeline_of[places], step.shifts[:, low : high + 1].max(axis=1)
        if (places + most[of] >= ends[of] + step.num_gpus * (places >= step.num_gpus)).any():
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


@nb.njit(**ENTERED)
def _named_places(rows, items, ends, lists, homes, num_places):  # type: ignore[no-untyped-def]
    """Returns which places templates name, of runs of places that have homes of their own the last, bool [templates,
    places]. rows: TemplateRows; items, ends: of Looked; lists: offsets and parts; homes: where each tensor's begin, and
    the homes."""
    (offsets, parts), (first, home) = lists, homes
    found = np.zeros((len(rows.op_ends) - 1, 2 * num_places), np.bool_)
    for which in range(len(found)):
        named = found[which]
        for at in range(ends[2 * which], ends[2 * which + 2]):
            named[items.place[at]] = True
        for op in rows.ops[rows.op_ends[which] : rows.op_ends[which + 1]]:
            if op[0] == GATHER or op[0] == REDUCE:
                for at in range(offsets[op[3]], offsets[op[3] + 1]):
                    named[parts[at]] = True
                    if op[2] > 0:
                        named[parts[at] // op[2] * op[2] + op[2] - 1] = True
                for cell in range(first[op[1]], first[op[1] + 1] if op[2] < 0 else 0):
                    if home[cell] >= 0:
                        named[home[cell]] = True
            else:
                named[op[2]] = True
                if op[0] == SEND or op[0] == MOVE:
                    named[op[3]] = True
    return found
