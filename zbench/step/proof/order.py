"""The rules of a step's order: each instance finds what its contract needs, and nothing else of what it touches.

A contract's items of one tensor and layer are a group, and a group is compared as a whole, by its number: so a step of
many layers costs its contracts once, and a few comparisons an instance. What is of the step has a group in each
pipeline: an instance in one pipeline says all there is there, and one that is of all pipelines says it of each.
"""

from collections.abc import Sequence
from itertools import pairwise

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, ENTERED_IN_PLACE, INNER
from zbench.step.operations import COMPUTE
from zbench.step.proof.computed import computed_fault
from zbench.step.proof.groups import Groups, difference_word, named
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.pipelines import Slots, places_fault
from zbench.step.proof.template_rows import items_of_contracts, one_below_another
from zbench.step.proof.template_rules import Looked
from zbench.step.template import ACROSS, GONE, Items, Step
from zbench.step.tensor import BORDER, FOLLOWING, LAYERS, LEADING, NONE, STATE

_OK, _NO_LAYER, _DIFFERS = range(3)
_OF_BORDER, _OF_STEP, _OF_LEADING, _OF_FOLLOWING = map(LAYERS.index, (BORDER, NONE, LEADING, FOLLOWING))
# Columns of a contract's rows: the tensor's slot, what it is one of (LAYERS), the offset, whether formulas touch it and
# whether it is state; the group that is needed (-1: none) with its first version and place, and that which is left;
# the pipeline that it says this of (-1: the instance's), and whether each pipeline has a slot of its own.
_SLOT, _KIND, _OFFSET, _COMPUTED, _STATE, _NEEDS, _LEAVES, _PIPELINE, _EACH = 0, 1, 2, 3, 4, 5, 8, 11, 12


def order_fault(step: Step, tables: WalkTables, looked: Sequence[tuple[Looked, int]]) -> str:
    """Returns the first rule that the order of instances breaks, "" if none. tables: of the first layout; looked: of
    templates, what was found of those of their layout, and which of these each is."""
    for number, one in enumerate(step.order):
        if not 0 <= one.template < len(step.templates):
            return f"instance {number} is of template {one.template}; it takes 0 to {len(step.templates) - 1}"
        last = one.layer + one.stride * (one.repeats - 1)
        if min(one.layer, last) < 0 or max(one.layer, last) > step.num_layers:
            name = step.templates[one.template].name
            named_layers = f"layer {last}" if last == one.layer else f"layers {one.layer} to {last}"
            return (
                f"instance {number} (template {name}) is for {named_layers}; the step has {step.num_layers}, from 0 on"
            )
    order = np.array(
        [(one.template, one.layer, one.repeats, one.stride, one.version, one.place) for one in step.order], np.int64
    ).reshape(-1, 6)
    if fault := computed_fault(step, order) or places_fault(step, looked):
        return fault
    known = Groups(), Slots.of(step)
    about = _about(step, known[1])
    there, wanted = _resting(step, tables, known, about)
    rows, ends, played = _contracts(step, order, looked, known[0], about)
    pipelines = step.layers_of_stages, step.shifts, step.pipeline_of
    code, at, layer, row = _played(rows, ends, played, pipelines, step.leading, there)
    if code != _OK:
        return _told(step, (int(code), int(at), int(layer)), rows[row], known, there)
    return _end_fault(step, known, there, wanted)


def _told(step: Step, where: tuple[int, int, int], row: Ints, known: tuple[Groups, Slots], there: Ints) -> str:
    """Says what an instance does not find as it has to be. where: the fault, the instance and the layer."""
    code, number, layer = where
    one, (groups, slots) = step.order[number], known
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


def _end_fault(step: Step, known: tuple[Groups, Slots], there: Ints, wanted: Ints) -> str:
    """Tells of what is not there at the end as the step says."""
    if np.array_equal(there, wanted):
        return ""
    wrong, (groups, slots) = np.argwhere((there != wanted).any(axis=2)), known
    slot, layer = wrong[0].tolist()
    number, tensor = slots.owner(slot)
    have, want = groups.group(there[slot, layer]), groups.group(wanted[slot, layer])
    where = (tensor, layer, number)
    if want is None:
        return f"the step ends with {named(step, where)} left"
    return f"the end of the step {difference_word(step, groups, where, have, want)}"


def _resting(step: Step, tables: WalkTables, known: tuple[Groups, Slots], about: Ints) -> tuple[Ints, Ints]:
    """Returns the groups that the step begins and ends with, each int64 [slots, layers + 1, 3] (-1: none): of every
    layer that has them, in the places of the stages of their pipelines. about: of `_about`."""
    groups, slots = known
    both = np.full((2, slots.count, step.num_layers + 1, 3), -1, np.int64)
    sides = [
        part for items, into in zip((step.begins, step.ends), both, strict=True) for part in _parts(step, items, into)
    ]
    items, ends = items_of_contracts(*one_below_another([rows for rows, _, _ in sides]), tables)
    contracts = np.array([[begin, end, 1] for begin, end in pairwise(ends.tolist())], np.int64)
    found, ends = groups.of(items, contracts, step.pipeline_of)
    for (_, spans, into), (begin, end) in zip(sides, pairwise(ends.tolist()), strict=True):
        _enter(found[begin:end], about, spans, step.shifts, into)
    return both[0], both[1]


def _parts(step: Step, items: Items, into: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """Returns what a step begins or ends with in parts, each with one range of layers for every tensor: the entries as
    those of one layer, the ranges, int64 [tensors, 2], and `into`."""
    spans, found, table = step.layers_of_entries(items), list[tuple[Ints, Ints, Ints]](), items.table
    for first in np.unique(items.layer).tolist() or [0]:
        mine = np.flatnonzero((items.layer == first) & (items.places != GONE))
        rows = table[mine]
        rows[:, 1] = 0
        of_tensors = np.zeros((len(step.layouts[0].tensors), 2), np.int64)
        of_tensors[items.tensor[mine]] = spans[mine]
        found.append((rows, of_tensors, into))
    return found


@nb.njit(**ENTERED_IN_PLACE)
def _enter(groups, about, spans, shifts, into):  # type: ignore[no-untyped-def]
    """Enters groups for every layer that has them. about: of `_about`; spans: of tensors, the first and the last
    layer."""
    for group in groups:
        pipeline, tensor = group[0], group[1]
        slot = about[tensor, 0] + pipeline * about[tensor, 3]
        for layer in range(spans[tensor, 0], spans[tensor, 1] + 1):
            into[slot, layer, 0], into[slot, layer, 1], into[slot, layer, 2] = group[3], group[4], group[5]
            if about[tensor, 1] != _OF_STEP:
                into[slot, layer, 2] += shifts[pipeline, layer]


def _contracts(
    step: Step, order: Ints, looked: Sequence[tuple[Looked, int]], groups: Groups, about: Ints
) -> tuple[Ints, Ints, Ints]:
    """Returns the contracts of the templates that are played as rows, one for each (tensor, layer offset) that one
    needs, touches or leaves, of one that is played across pipelines in each of them; where those of each begin; and the
    order, with the numbers of contracts in place of templates'. about: of `_about`."""
    first = np.cumsum([0, *(len(layout.tensors) for layout in step.layouts)])
    of_layouts: dict[int, list[tuple[int, bool]]] = {}
    for template, across in sorted({(one.template, one.place == ACROSS) for one in step.order}):
        of_layouts.setdefault(id(looked[template][0]), []).append((template, across))
    tables, ends, number = list[Ints](), [np.zeros(1, np.int64)], dict[tuple[int, bool], int]()
    for played in of_layouts.values():
        found, layout = looked[played[0][0]][0], step.layouts[step.templates[played[0][0]].layout]
        contracts, mine = list[tuple[int, int, bool]](), list[tuple[int, int, int]]()
        for template, across in played:
            at = looked[template][1]
            begin, middle, end = found.ends[2 * at : 2 * at + 3].tolist()
            contracts += [(begin, middle, across), (middle, end, across)]
            mine.append((at, len(step.pipelines) if across else 0, int(first[step.templates[template].layout])))
            number[template, across] = len(number)
        sides, rows = groups.of(found.items, np.array(contracts, np.int64), step.pipeline_of), layout.bound
        table, sizes = _rows(found.rows, (rows.offsets, rows.rows), about, np.array(mine, np.int64), *sides)
        tables.append(table)
        ends.append(ends[-1][-1] + sizes)
    plays = order.copy()
    plays[:, 0] = [number[one.template, one.place == ACROSS] for one in step.order]
    return np.concatenate([*tables, np.zeros((0, 13), np.int64)]), np.concatenate(ends), plays


def _about(step: Step, slots: Slots) -> Ints:
    """Returns what rows of contracts say of all layouts' tensors, int64 [tensors, 4]: slot, kind, whether state, and
    whether each pipeline has a slot."""
    numbers = [slot for row in slots.numbers for slot in row]
    forms = [layout.form for layout in step.layouts]
    columns = numbers, [slots.each[slot] for slot in numbers]
    kinds, natures = (np.concatenate(each) for each in zip(*((one.layers, one.natures) for one in forms), strict=True))
    return np.stack([columns[0], kinds, natures == STATE, columns[1]], axis=1).astype(np.int64)


@nb.njit(**ENTERED)
def _rows(templates, formulas, about, played, groups, group_ends):  # type: ignore[no-untyped-def]
    """Returns contracts as rows, and where those of each end. templates: TemplateRows; formulas: FormulaRows.offsets
    and rows. about: of `_about`. played: of each contract, the template, how many pipelines have rows of their own (0
    of an instance in one), and the first row of its layout in `about`. groups, group_ends: of `Groups.of`."""
    found, total, ends = [np.zeros((0, 13), np.int64)], 0, np.zeros(len(played), np.int64)
    for at in range(len(played)):
        which, pipelines, first = played[at]
        ops = templates.ops[templates.op_ends[which] : templates.op_ends[which + 1]]
        made = templates.formulas[templates.formula_ends[which] : templates.formula_ends[which + 1]]
        needs = groups[group_ends[2 * at] : group_ends[2 * at + 1]]
        leaves = groups[group_ends[2 * at + 1] : group_ends[2 * at + 2]]
        rows = _contract(ops, (made, *formulas), about[first:], needs, leaves, pipelines)
        found.append(rows)
        total += len(rows)
        ends[at] = total
    table, begin = np.empty((total, 13), np.int64), 0
    for rows in found:
        table[begin : begin + len(rows)] = rows
        begin += len(rows)
    return table, ends


@nb.njit(**INNER)
def _contract(ops, formulas, about, needs, leaves, pipelines):  # type: ignore[no-untyped-def]
    """Returns a contract as rows. formulas: their numbers, and FormulaRows.offsets and rows. about: of the layout's
    tensors. needs, leaves: groups. pipelines: how many have rows of their own, 0 of an instance in one."""
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


@nb.njit(**ENTERED_IN_PLACE)
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
