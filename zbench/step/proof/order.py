"""The rules of a step's order: each instance finds what its contract needs, and nothing else of what it touches.

A contract's items of one tensor and layer are a group, and a group is compared as a whole, by its number: so a step of
many layers costs its contracts once, and a few comparisons an instance.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.groups import Groups, difference_word, named, slots_of
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.tables import ItemRows, item_rows, with_layers
from zbench.step.proof.template_rules import Looked
from zbench.step.template import Items, Step, Template
from zbench.step.tensor import LAYERS

_OK, _NO_LAYER, _DIFFERS = range(3)
# Columns of a contract's rows: the tensor's slot, what it is one of (LAYERS), the offset, whether formulas touch it and
# whether it is state; the group that is needed (-1: none) with its first version and place, and that which is left.
_SLOT, _KIND, _OFFSET, _COMPUTED, _STATE, _NEEDS, _LEAVES = 0, 1, 2, 3, 4, 5, 8


def order_fault(step: Step, tables: list[WalkTables], looked: list[Looked]) -> str:
    """Returns the first rule that the order of instances breaks, "" if none. tables: of layouts; looked: of
    templates."""
    for number, one in enumerate(step.order):
        if not 0 <= one.template < len(step.templates):
            return f"instance {number} is of template {one.template}; there are {len(step.templates)}"
    if fault := _computed_fault(step) or _places_fault(step, looked):
        return fault
    groups, slots = Groups(), slots_of(step)
    contracts = [
        _contract(step, template, slots[template.layout], (found.needs, found.leaves), groups)
        for template, found in zip(step.templates, looked, strict=True)
    ]
    there = np.full((sum(len(one) for one in slots), step.num_layers + 1, 3), -1, np.int64)
    wanted = there.copy()
    for items, into in ((step.begins, there), (step.ends, wanted)):
        _enter(step, items, tables[0], groups, into)
    instances = np.array(
        [[one.template, one.layer, one.repeats, one.stride, one.version, one.place] for one in step.order], np.int64
    ).reshape(-1, 6)
    ends = np.cumsum([0, *map(len, contracts)])
    rows = np.concatenate([*contracts, np.zeros((0, 11), np.int64)])
    code, number, layer, at = _played(rows, ends, instances, step.layers_of_stages, there)
    if code != _OK:
        return _told(step, (int(code), int(number), int(layer)), rows[at], groups, there)
    return _end_fault(step, groups, there, wanted)


def _told(step: Step, where: tuple[int, int, int], row: Ints, groups: Groups, there: Ints) -> str:
    """Says what an instance does not find as it has to be. where: the fault, the instance and the layer."""
    code, number, layer = where
    one = step.order[number]
    template = step.templates[one.template]
    layout = step.layouts[template.layout]
    tensor = slots_of(step)[template.layout].index(int(row[_SLOT]))
    at = (layer + int(row[_OFFSET])) * int(layout.layered[tensor])
    if code == _NO_LAYER:
        word = f"computes with {layout.tensors[tensor].name} of layer {layer + int(row[_OFFSET])}, which there is not"
    else:
        have = groups.group(there[row[_SLOT], at])
        need = row[_NEEDS : _NEEDS + 3] + np.array([0, one.version * int(row[_STATE]), one.place])
        want = groups.group(need) if row[_NEEDS] >= 0 else None
        word = difference_word(step, groups, (tensor, at, template.layout), have, want)
    return f"instance {number} (template {template.name}, layer {layer}) {word}"


def _end_fault(step: Step, groups: Groups, there: Ints, wanted: Ints) -> str:
    """Tells of what is not there at the end as the step says."""
    wrong = np.argwhere((there != wanted).any(axis=2))
    if not len(wrong):
        return ""
    slot, layer = wrong[0].tolist()
    number, tensor = next((at, one.index(slot)) for at, one in enumerate(slots_of(step)) if slot in one)
    have, want = groups.group(there[slot, layer]), groups.group(wanted[slot, layer])
    where = (tensor, layer, number)
    if want is None:
        return f"the step ends with {named(step, where)} left"
    return f"at the end of the step {difference_word(step, groups, where, have, want)}"


def _enter(step: Step, items: Items, tables: WalkTables, groups: Groups, into: Ints) -> None:
    """Enters the step's own items for every layer that has them, in the places of its stage."""
    layout, slots = step.layouts[0], slots_of(step)[0]
    zeros = np.zeros(len(layout.tensors), np.int64)
    places = np.array([step.stage(layer).place for layer in range(step.num_layers + 1)], np.int64)
    for (tensor, _), group in groups.of(item_rows(items, with_layers(tables, zeros, zeros))):
        kind = layout.tensors[tensor].layers
        count = {"layer": step.num_layers, "border": step.num_layers + 1, "none": 1}[kind]
        into[slots[tensor], :count] = group.number, group.version, group.place
        if kind != "none":
            into[slots[tensor], :count, 2] += places[:count]


def _contract(
    step: Step, template: Template, slots: tuple[int, ...], items: tuple[ItemRows, ItemRows], groups: Groups
) -> Ints:
    """Returns a template's contract as rows, one for each (tensor, layer offset) that it needs, touches or leaves."""
    layout, ops = step.layouts[template.layout], template.operations
    bound = layout.bound
    moves = ops.kind != COMPUTE
    touched = np.unique(ops.what[moves].astype(np.int64) * 1000 + ops.layer[moves])
    used = {((one + 500) // 1000, (one + 500) % 1000 - 500) for one in touched.tolist()}
    computed = set()
    for formula in template.formulas:
        computed |= set(map(tuple, bound.rows[bound.offsets[formula] : bound.offsets[formula + 1], 1:3].tolist()))
    needs, leaves = dict(groups.of(items[0])), dict(groups.of(items[1]))
    rows = []
    for tensor, offset in sorted(used | computed | needs.keys() | leaves.keys()):
        one = layout.tensors[tensor]
        row = [slots[tensor], LAYERS.index(one.layers), offset, (tensor, offset) in computed, one.nature == "state"]
        for group in (needs.get((tensor, offset)), leaves.get((tensor, offset))):
            row += [-1, 0, 0] if group is None else [group.number, group.version, group.place]
        rows.append(row)
    return np.array(rows, np.int64).reshape(-1, 11)


@nb.njit(cache=True)
def _played(rows, ends, instances, stages, there):  # type: ignore[no-untyped-def]
    """Plays all instances on what is there: returns (fault, instance, layer, row).

    stages: for every layer, and what is after the last, the first and the last layer of its stage.
    """
    for number in range(len(instances)):
        template, first, repeats, stride, version, place = instances[number]
        for turn in range(repeats):
            layer = first + turn * stride
            low, high = stages[min(max(layer, 0), len(stages) - 1)]
            for leaves in range(2):
                for at in range(ends[template], ends[template + 1]):
                    row = rows[at]
                    where = layer + row[_OFFSET] if row[_KIND] < 2 else 0
                    if row[_KIND] < 2 and not low <= where <= high + row[_KIND]:
                        if row[_COMPUTED] and leaves == 0:
                            return _NO_LAYER, number, layer, at
                        continue
                    now = there[row[_SLOT], where]
                    group = row[_LEAVES:] if leaves else row[_NEEDS:_LEAVES]
                    if leaves == 0:
                        if now[0] != group[0]:
                            return _DIFFERS, number, layer, at
                        moved = now[1] != group[1] + version * row[_STATE] or now[2] != group[2] + place
                        if now[0] >= 0 and moved:
                            return _DIFFERS, number, layer, at
                        now[:] = -1
                    elif group[0] >= 0:
                        now[0], now[1], now[2] = group[0], group[1] + version * row[_STATE], group[2] + place
    return _OK, -1, -1, -1


def _places_fault(step: Step, looked: list[Looked]) -> str:
    """Tells of an instance that is played in places that there are not."""
    highest: dict[int, int] = {}
    for number, one in enumerate(step.order):
        if one.place and one.template not in highest:
            template = step.templates[one.template]
            highest[one.template] = _highest_place(step.layouts[template.layout], template, looked[one.template])
        if one.place < 0 or (one.place and one.place + highest[one.template] >= step.num_places):
            return f"instance {number} is played from place {one.place} on; there are {step.num_places}"
    return ""


def _highest_place(layout: StepLayout, template: Template, looked: Looked) -> int:
    """Returns the highest place that a template names."""
    ops, lists = template.operations, layout.lists
    single = (ops.kind == SEND) | (ops.kind == MOVE)
    many = (ops.kind == GATHER) | (ops.kind == REDUCE)
    named_places = [ops.src, ops.dst[single], looked.needs.place, looked.leaves.place]
    named_places += [lists[which] for which in np.unique(ops.dst[many]).tolist()]
    named_places += [layout.tensors[what].home for what in np.unique(ops.what[many]).tolist()]
    return max(int(one.max(initial=0)) for one in named_places)


def _computed_fault(step: Step) -> str:
    """Returns a formula that is not computed once for every layer of every micro-batch, "" if there is none.

    What updates state is left to versions: a step may have several rounds.
    """
    done = [np.zeros((len(layout.formulas), max(step.num_layers, 1)), np.int64) for layout in step.layouts]
    totals = [np.zeros(len(layout.formulas), np.int64) for layout in step.layouts]
    for one in step.order:
        template = step.templates[one.template]
        made = np.array(template.formulas, np.int64)
        totals[template.layout][made] += one.repeats
        layers = np.array([layer for layer in one.layers if 0 <= layer < step.num_layers], np.int64)
        done[template.layout][made[:, None], layers] += 1
    for number, layout in enumerate(step.layouts):
        wrong = layout.each_layer & (done[number] != 1).any(axis=1)
        wrong |= totals[number] != np.where(layout.each_layer, step.num_layers, 1)
        wrong &= ~layout.updates
        if wrong.any():
            at = int(np.argmax(wrong))
            layers = np.flatnonzero(done[number][at] != 1) if layout.each_layer[at] else np.zeros(0, np.int64)
            where = f"layer {layers[0]}" if len(layers) else "the step"
            count = done[number][at, layers[0]] if len(layers) else totals[number][at]
            return f"micro-batch {number}: formula {layout.labels[at]} is computed {count} times for {where}, not once"
    return ""
