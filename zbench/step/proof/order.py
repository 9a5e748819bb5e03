"""The rules of a step's order: each instance finds what its contract needs, and nothing else of what it touches.

A contract's items of one tensor and layer are a group, and a group is compared as a whole, by its number: so a step of
many layers costs its contracts once, and a few comparisons an instance. What is of the step has a group in each
pipeline: an instance in one pipeline says all there is there, and one that is of all pipelines says it of each.
"""

from collections.abc import Mapping

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE
from zbench.step.proof.groups import Groups, difference_word, named
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.pipelines import Slots, groups_of_pipelines, places_fault
from zbench.step.proof.tables import item_rows, with_layers
from zbench.step.proof.template_rules import Looked
from zbench.step.template import ACROSS, Items, Step
from zbench.step.tensor import BORDER, FOLLOWING, LAYERS, LEADING, NONE

_OK, _NO_LAYER, _DIFFERS = range(3)
_OF_BORDER, _OF_STEP, _OF_LEADING, _OF_FOLLOWING = map(LAYERS.index, (BORDER, NONE, LEADING, FOLLOWING))
# Columns of a contract's rows: the tensor's slot, what it is one of (LAYERS), the offset, whether formulas touch it and
# whether it is state; the group that is needed (-1: none) with its first version and place, and that which is left;
# the pipeline that it says this of (-1: the instance's), and whether each pipeline has a slot of its own.
_SLOT, _KIND, _OFFSET, _COMPUTED, _STATE, _NEEDS, _LEAVES, _PIPELINE, _EACH = 0, 1, 2, 3, 4, 5, 8, 11, 12


def order_fault(step: Step, tables: list[WalkTables], looked: list[Looked]) -> str:
    """Returns the first rule that the order of instances breaks, "" if none. tables: of layouts; looked: of
    templates."""
    for number, one in enumerate(step.order):
        if not 0 <= one.template < len(step.templates):
            return f"instance {number} is of template {one.template}; there are {len(step.templates)}"
    if fault := _computed_fault(step) or places_fault(step, looked):
        return fault
    groups, slots = Groups(), Slots.of(step)
    used = sorted({(one.template, one.place == ACROSS) for one in step.order})
    tensors = [_about(layout, row, slots.each) for layout, row in zip(step.layouts, slots.numbers, strict=True)]
    contracts = [_contract(step, template, across, looked[template], (tensors, groups)) for template, across in used]
    there = np.full((slots.count, step.num_layers + 1, 3), -1, np.int64)
    wanted = there.copy()
    for items, into in ((step.begins, there), (step.ends, wanted)):
        _enter(step, items, tables[0], (slots, groups), into)
    row_of = {key: at for at, key in enumerate(used)}
    instances = np.array(
        [
            [row_of[one.template, one.place == ACROSS], one.layer, one.repeats, one.stride, one.version, one.place]
            for one in step.order
        ],
        np.int64,
    ).reshape(-1, 6)
    ends = np.cumsum([0, *map(len, contracts)])
    rows = np.concatenate([*contracts, np.zeros((0, 13), np.int64)])
    pipelines = step.layers_of_stages, step.shifts, step.pipeline_of
    code, at, layer, row = _played(rows, ends, instances, pipelines, step.leading, there)
    if code != _OK:
        return _told(step, (int(code), int(at), int(layer)), rows[row], (slots, groups), there)
    return _end_fault(step, (slots, groups), there, wanted)


def _told(step: Step, where: tuple[int, int, int], row: Ints, known: tuple[Slots, Groups], there: Ints) -> str:
    """Says what an instance does not find as it has to be. where: the fault, the instance and the layer."""
    code, number, layer = where
    one, (slots, groups) = step.order[number], known
    template = step.templates[one.template]
    layout = step.layouts[template.layout]
    pipeline = int(row[_PIPELINE]) if one.place == ACROSS else int(step.pipeline_of[one.place])
    tensor = slots.tensor(template.layout, int(row[_SLOT]))
    at = (layer + int(row[_OFFSET])) * int(layout.layered[tensor])
    if code == _NO_LAYER:
        word = f"computes with {layout.tensors[tensor].name} of layer {layer + int(row[_OFFSET])}, which there is not"
    else:
        have = groups.group(there[row[_SLOT] + row[_EACH] * pipeline, at])
        place = int(step.shifts[pipeline, min(layer, step.num_layers)]) if one.place == ACROSS else one.place
        need = row[_NEEDS : _NEEDS + 3] + np.array([0, one.version * int(row[_STATE]), place])
        want = groups.group(need) if row[_NEEDS] >= 0 else None
        word = difference_word(step, groups, (tensor, at, template.layout), have, want)
    return f"instance {number} (template {template.name}, layer {layer}) {word}"


def _end_fault(step: Step, known: tuple[Slots, Groups], there: Ints, wanted: Ints) -> str:
    """Tells of what is not there at the end as the step says."""
    wrong = np.argwhere((there != wanted).any(axis=2))
    if not len(wrong):
        return ""
    (slot, layer), (slots, groups) = wrong[0].tolist(), known
    number, tensor = slots.owner(slot)
    have, want = groups.group(there[slot, layer]), groups.group(wanted[slot, layer])
    where = (tensor, layer, number)
    if want is None:
        return f"the step ends with {named(step, where)} left"
    return f"at the end of the step {difference_word(step, groups, where, have, want)}"


def _enter(step: Step, items: Items, tables: WalkTables, known: tuple[Slots, Groups], into: Ints) -> None:
    """Enters the step's own items for every layer that has them, in the places of the stages of their pipelines."""
    layout, (slots, groups) = step.layouts[0], known
    zeros = np.zeros(len(layout.tensors), np.int64)
    rows = item_rows(items, with_layers(tables, zeros, zeros))
    for pipeline, tensor, _, *group in groups_of_pipelines(step, groups, rows, True).tolist():
        kind, slot = layout.tensors[tensor].layers, slots.numbers[0][tensor]
        slot += pipeline * slots.each[slot]
        first, last = layout.tensors[tensor].layers_of(0, step.num_layers - 1, step.leading)
        into[slot, first : last + 1] = group
        if kind != NONE:
            into[slot, first : last + 1, 2] += step.shifts[pipeline, first : last + 1]


def _contract(step: Step, number: int, across: bool, looked: Looked, known: tuple[list[Ints], Groups]) -> Ints:
    """Returns a template's contract as rows, one for each (tensor, layer offset) that it needs, touches or leaves; of
    one that is played across pipelines, one in each. known: what is known of the tensors of every layout."""
    template, (tensors, groups) = step.templates[number], known
    bound = step.layouts[template.layout].bound
    sides = [groups_of_pipelines(step, groups, items, across) for items in (looked.needs, looked.leaves)]
    formulas, count = np.array(template.formulas, np.int64), len(step.pipelines) if across else 0
    rows = (bound.offsets, bound.rows)
    found: Ints = _rows(
        template.operations.table, (formulas, *rows), tensors[template.layout], sides[0], sides[1], count
    )
    return found


def _about(layout: StepLayout, row: tuple[int, ...], each: Mapping[int, int]) -> Ints:
    """Returns what rows of contracts say of a layout's tensors, int64 [tensors, 4]: slot, kind, whether state, and
    whether each pipeline has a slot. row, each: of Slots."""
    told = [
        (slot, LAYERS.index(one.layers), int(one.nature == "state"), each[slot])
        for one, slot in zip(layout.tensors, row, strict=True)
    ]
    return np.array(told, np.int64).reshape(-1, 4)


@nb.njit(cache=True)
def _rows(ops, formulas, about, needs, leaves, pipelines):  # type: ignore[no-untyped-def]
    """Returns a contract as rows. formulas: their numbers, and FormulaRows.offsets and rows. about: of `_about`. needs,
    leaves: of `groups_of_pipelines`. pipelines: how many have rows of their own, 0 of an instance in one."""
    made, offsets, rows = formulas
    farthest = 0  # layers that a row is away
    for op in ops:
        farthest = max(farthest, abs(op[7]))
    for formula in made:
        for row in rows[offsets[formula] : offsets[formula + 1]]:
            farthest = max(farthest, abs(row[2]))
    for side in (needs, leaves):
        for group in side:
            farthest = max(farthest, abs(group[2]))
    named = np.zeros((len(about), 2 * farthest + 1), np.bool_)
    computed = named.copy()
    for op in ops:
        if op[0] != COMPUTE:
            named[op[1], op[7] + farthest] = True
    for formula in made:
        for row in rows[offsets[formula] : offsets[formula + 1]]:
            named[row[1], row[2] + farthest] = computed[row[1], row[2] + farthest] = True
    for side in (needs, leaves):
        for group in side:
            named[group[1], group[2] + farthest] = True
    each, count, place = max(pipelines, 1), 0, np.zeros(named.shape, np.int64)
    found = np.zeros((np.sum(named) * each, 13), np.int64)
    for tensor in range(len(about)):
        for offset in range(named.shape[1]):
            place[tensor, offset] = count
            for pipeline in range(each if named[tensor, offset] else 0):
                row = found[count]
                row[_SLOT], row[_KIND], row[_STATE], row[_EACH] = about[tensor]
                row[_OFFSET], row[_COMPUTED] = offset - farthest, computed[tensor, offset]
                row[_NEEDS] = row[_LEAVES] = -1
                row[_PIPELINE] = pipeline if pipelines else -1
                count += 1
    for column, side in ((_NEEDS, needs), (_LEAVES, leaves)):
        for group in side:
            at = place[group[1], group[2] + farthest] + max(group[0], 0)
            found[at, column : column + 3] = group[3:]
    return found


@nb.njit(cache=True)
def _played(rows, ends, instances, pipelines, leading, there):  # type: ignore[no-untyped-def]
    """Plays all instances on what is there: returns (fault, instance, layer, row).

    pipelines: for every layer, and what is after the last, the first and the last layer of its stage, and by how many
    places this stands after the first, by pipeline; the pipeline of every place. leading: how many layers are of the
    first kind.
    """
    spans, shifts, pipeline_of = pipelines
    last = spans.shape[1] - 1
    for number in range(len(instances)):
        template, first, repeats, stride, version, start = instances[number]
        across = start == ACROSS
        for turn in range(repeats):
            layer = first + turn * stride
            near = min(max(layer, 0), last)
            for leaves in range(2):
                for at in range(ends[template], ends[template + 1]):
                    row = rows[at]
                    pipeline = row[_PIPELINE] if across else pipeline_of[start]
                    low, high = (0, last - 1) if across else (spans[pipeline, near, 0], spans[pipeline, near, 1])
                    place = shifts[pipeline, near] if across else start
                    where = layer + row[_OFFSET] if row[_KIND] != _OF_STEP else 0
                    if row[_KIND] == _OF_BORDER:
                        high += 1
                    elif row[_KIND] == _OF_LEADING:
                        high = min(high, leading - 1)
                    elif row[_KIND] == _OF_FOLLOWING:
                        low = max(low, leading)
                    if row[_KIND] != _OF_STEP and not low <= where <= high:
                        if row[_COMPUTED] and leaves == 0:
                            return _NO_LAYER, number, layer, at
                        continue
                    now = there[row[_SLOT] + row[_EACH] * pipeline, where]
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


def _computed_fault(step: Step) -> str:
    """Returns a formula that is not computed once for every layer of every micro-batch, "" if there is none.

    What updates state is left to versions: a step may have several rounds. A formula of one kind of layers is computed
    for these. Of formulas that are alternatives each layer has one, and of what is made again a layer that is not
    recomputed has nothing. A sum that is there before the step may have no further contribution in it; the step's end
    says what there is of it.
    """
    begun = {step.layouts[0].tensors[at].name for at in step.begins.tensor[step.begins.count != 0].tolist()}
    done = [np.zeros((len(layout.formulas), max(step.num_layers, 1)), np.int64) for layout in step.layouts]
    totals = [np.zeros(len(layout.formulas), np.int64) for layout in step.layouts]
    for one in step.order:
        template = step.templates[one.template]
        made = step.layouts[template.layout].alternatives[np.array(template.formulas, np.int64)]
        totals[template.layout][made] += one.repeats
        layers = np.array([layer for layer in one.layers if 0 <= layer < step.num_layers], np.int64)
        done[template.layout][made[:, None], layers] += 1
    for number, layout in enumerate(step.layouts):
        optional, first = layout.is_optional.copy(), layout.alternatives == np.arange(len(layout.formulas))
        optional |= np.array([one.results[0].tensor in begun for one in layout.formulas], np.bool_)
        due = _layers_due(step, layout)
        wrong = layout.each_layer & (done[number] != due).any(axis=1)
        once = np.where(layout.each_layer, due.sum(axis=1), 1)
        wrong |= totals[number] != once
        wrong[optional] = ((done[number] > due).any(axis=1) | (totals[number] > once))[optional]
        wrong &= ~layout.updates & first
        if wrong.any():
            at = int(np.argmax(wrong))
            layers = np.flatnonzero(done[number][at] != due[at]) if layout.each_layer[at] else np.zeros(0, np.int64)
            where = f"layer {layers[0]}" if len(layers) else "the step"
            count = done[number][at, layers[0]] if len(layers) else totals[number][at]
            often = "once" if not len(layers) or due[at, layers[0]] else "at all, as it is of another kind"
            return (
                f"micro-batch {number}: formula {layout.labels[at]} is computed {count} times for {where}, not {often}"
            )
    return ""


def _layers_due(step: Step, layout: StepLayout) -> Ints:
    """Returns how often each formula is computed for each layer, 1 or 0, int64 [formulas, layers]: for those of its
    kind."""
    due = np.ones((len(layout.formulas), max(step.num_layers, 1)), np.int64)
    for at, kind in enumerate(layout.kinds):
        if kind == LEADING:
            due[at, step.leading :] = 0
        elif kind == FOLLOWING:
            due[at, : step.leading] = 0
    return due
