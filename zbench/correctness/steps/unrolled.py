"""Judges a step with its layers unrolled: one walk over all instances, in which contracts only say what is forgotten.

What zbench.step.proof.order concludes from contracts is looked at here operation by operation, layer by layer.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, QUEUES, REDUCE, SEND
from zbench.step.proof.coverage import formulas_fault
from zbench.step.proof.item_rules import (
    BASE,
    HIGHEST,
    HOME,
    LAYERED,
    LOWEST,
    NATURE,
    OK,
    SHAPE0,
    SHAPE1,
    WalkState,
    WalkTables,
    key_of,
)
from zbench.step.proof.items import NO_ITEM, READ_ALREADY, THERE, find_item
from zbench.step.proof.ranges import Owners, numbers_fault
from zbench.step.proof.tables import walk_tables, whole_counts, with_layers
from zbench.step.proof.template_rows import ItemRows, TemplateRows, item_rows
from zbench.step.proof.template_rules import enter_items, new_state
from zbench.step.proof.walk import walk_items
from zbench.step.template import ACROSS, COMPLETE, GONE, Instance, Items, Step, Template
from zbench.step.tensor import SUM

MOST_ITEMS, MOST_TENSORS = 200_000, 999


def unrolled_fault(step: Step) -> str:
    """Returns what is wrong with a step whose contracts are well-formed, "" if nothing; for small steps."""
    counts = whole_counts(step)
    tables, keys = _all_tables(step, counts)
    for template in step.templates:
        layout, alone = step.layouts[template.layout], TemplateRows.of([template])
        _, fault = numbers_fault(step, [template], alone, Owners.in_layout(layout))
        if fault:
            return fault
        if word := _queue_word(step, layout, template):
            return word
        _, word = formulas_fault(step, [template], tables[template.layout], alone)
        if word:
            return word
    state = new_state(min(keys, MOST_ITEMS), MOST_TENSORS)
    begins = _every_layer(step, tables[0], step.begins)
    enter_items(tables[0], begins, 0, len(begins.key), state.items)
    for number, one in enumerate(step.order):
        template = step.templates[one.template]
        for layer in one.layers:
            mine = _of_stage(step, layout_of(step, one), tables[template.layout], layer, one.place)
            where, rows = step.where(one.place, layer), template.operations.table
            moved = _moved(rows, where)
            if one.place == ACROSS and _leaves_pipelines(step, rows, moved):
                return f"instance {number}, layer {layer}: a place is in another pipeline than the template has it in"
            walk_items(_placed(step, layout_of(step, one), mine, where), moved, layer, one.version, state)
            if state.fault[0] != OK:
                return f"instance {number}, layer {layer}: fault {state.fault.tolist()}"
            if word := _forget(step, template, mine, one, layer, state):
                return f"instance {number}, layer {layer}: {word}"
    return _end(step, tables[0], state)


def _leaves_pipelines(step: Step, rows: Ints, moved: Ints) -> bool:
    """Returns whether a computing, sending or receiving place is of another pipeline where an instance has it."""
    single = (rows[:, 0] != GATHER) & (rows[:, 0] != REDUCE)
    named, there, count = rows[single, 2:4], moved[single, 2:4], len(step.pipeline_of)
    other = (there >= count) | (step.pipeline_of[named] != step.pipeline_of[np.minimum(there, count - 1)])
    return bool(other[named >= 0].any())


def _queue_word(step: Step, layout: StepLayout, template: Template) -> str:
    """Tells of an operation in a queue that is not of its kind."""
    for kind, _, src, dst, _, _, _, _, queue, *_ in template.operations.table.tolist():
        if kind == DROP:
            continue
        many = kind in (GATHER, REDUCE)
        ends = layout.lists[dst].tolist() if many else [one for one in (src, dst) if one >= 0]
        hosts = sum(one >= step.num_gpus for one in ends)
        right = {"compute"} if kind == COMPUTE else {"host"} if hosts else set(QUEUES) - {"compute", "host"}
        if QUEUES[queue] not in right or (kind != COMPUTE and hosts > (0 if many else 1)):
            return f"template {template.name}: kind {kind} between {ends} is in queue {QUEUES[queue]}"
    return ""


def _all_tables(step: Step, counts: list[Ints]) -> tuple[list[WalkTables], int]:
    """Returns the tables of all layouts over one space of keys, in which the step's tensors are the same in all, and
    how many keys that has."""
    shared: dict[str, int] = {}
    begin, found = 0, []
    for layout, total in zip(step.layouts, counts, strict=True):
        highest, base = [], []
        for at, tensor in enumerate(layout.tensors):
            highest.append({"border": step.num_layers, "none": 0}.get(tensor.layers, step.num_layers - 1))
            if layout.of_batch(at) or tensor.name not in shared:
                shared[tensor.name] = begin
                begin += (highest[-1] + 1) * step.num_places * int(np.prod(layout.shape(at)))
            base.append(shared[tensor.name])
        zeros = np.zeros(len(highest), np.int64)
        tables = walk_tables(step, layout, total)
        found.append(with_layers(tables, zeros, np.array(highest, np.int64), np.array(base, np.int64)))
    return found, begin


def layout_of(step: Step, one: Instance) -> StepLayout:
    """Returns the layout of an instance's template."""
    return step.layouts[step.templates[one.template].layout]


def _placed(step: Step, layout: StepLayout, tables: WalkTables, where: Ints) -> WalkTables:
    """Returns tables whose lists of places and homes are where an instance has them."""
    lists, parts = layout.lists, tables.parts.copy()
    named = np.array([name == PLACE for name in lists.indices], bool)
    mine = named[np.repeat(lists.of, np.diff(lists.offsets))]
    inside = np.append(where, -1)
    parts[mine] = inside[np.clip(parts[mine], 0, step.num_places)]
    cells = tables.cells.copy()
    cells[:, HOME] = np.where(cells[:, HOME] < 0, cells[:, HOME], inside[cells[:, HOME]])
    return tables._replace(parts=parts, cells=cells)


def _moved(rows: Ints, where: Ints) -> Ints:
    """Returns operations whose places are where an instance has them."""
    found, single = rows.copy(), (rows[:, 0] == SEND) | (rows[:, 0] == MOVE)
    named = (rows[:, 2] >= 0) & (rows[:, 0] != GATHER) & (rows[:, 0] != REDUCE)
    found[:, 2] = np.where(named, where[np.where(named, rows[:, 2], 0)], rows[:, 2])
    found[:, 3] = np.where(single, where[np.where(single, rows[:, 3], 0)], rows[:, 3])
    return found


def _of_stage(step: Step, layout: StepLayout, tables: WalkTables, layer: int, place: int) -> WalkTables:
    """Returns tables in which there are the layers of a layer's stage alone, of a tensor of one kind of layers those of
    this; the keys of items are as they were."""
    tensors = tables.tensors.copy()
    spans = [one.layers_of(*step.span(layer, place), step.leading) for one in layout.tensors]
    first, last = np.array(spans, np.int64).reshape(-1, 2).T
    cells = tensors[:, SHAPE0] * tensors[:, SHAPE1] * tables.num_places
    tensors[:, BASE] += first * cells
    tensors[:, LOWEST], tensors[:, HIGHEST] = first, last
    return tables._replace(tensors=tensors)


def _keys(tables: WalkTables, tensor: Ints, layer: Ints, place: Ints, cell: Ints) -> Ints:
    """Returns the keys of items, as key_of."""
    about = tables.tensors[tensor]
    rows = (layer - about[:, LOWEST]) * tables.num_places + place
    return np.asarray(about[:, BASE] + rows * about[:, SHAPE0] * about[:, SHAPE1] + cell)


def _every_layer(step: Step, tables: WalkTables, items: Items) -> ItemRows:
    """Returns the step's own items for every layer that has them."""
    found = []
    spans = [one.layers_of(0, step.num_layers - 1, step.leading) for one in step.layouts[0].tensors]
    first, last = np.array(spans, np.int64).reshape(-1, 2).T
    table = items.table
    for layer in range(step.num_layers + 1):
        since: dict[int, int] = {}  # by tensor, the last layer up to this one from which on there are entries of it
        for tensor, begin in table[table[:, 1] <= layer, :2].tolist():
            since[tensor] = max(since.get(tensor, 0), begin)
        here = [
            since.get(row[0]) == row[1] and row[2] != GONE and first[row[0]] <= layer <= last[row[0]]
            for row in table.tolist()
        ]
        mine = np.stack(item_rows(Items.of([[row[0], 0, *row[2:]] for row in table[here].tolist()]), tables))
        mine[1] = layer
        mine[2] = np.where(tables.tensors[mine[0], LAYERED] == 1, step.where(ACROSS, layer)[mine[2]], mine[2])
        mine[7] = _keys(tables, *mine[:4])
        found.append(mine)
    return ItemRows(*np.concatenate(found, axis=1))


def _forget(step: Step, template: Template, tables: WalkTables, one: Instance, layer: int, state: WalkState) -> str:
    """Drops what an instance used and does not leave; tells of sums that are lost with it."""
    layout, items = step.layouts[template.layout], state.items
    needs, leaves = (item_rows(part, tables) for part in (template.needs, template.leaves))
    about, where = tables.tensors, step.where(one.place, layer)
    here = np.full(step.num_places, True)
    if one.place != ACROSS:
        here = step.pipeline_of == step.pipeline_of[one.place]
    at = (layer + leaves.layer) * about[leaves.tensor, LAYERED]
    there = (about[leaves.tensor, LOWEST] <= at) & (at <= about[leaves.tensor, HIGHEST])
    left = np.sort(_keys(tables, leaves.tensor, at, where[leaves.place], leaves.cell)[there])
    used = _used(layout, template)
    used |= {(int(tensor), int(offset)) for tensor, offset in zip(*needs[:2], strict=True)}
    used |= {(int(tensor), int(offset)) for tensor, offset in zip(*leaves[:2], strict=True)}
    for tensor, offset in used:
        at = (layer + offset) * about[tensor, LAYERED]
        if not about[tensor, LOWEST] <= at <= about[tensor, HIGHEST]:
            continue
        cells = int(about[tensor, SHAPE0] * about[tensor, SHAPE1])
        first = int(key_of(tables, tensor, at, 0, 0))
        stays = np.repeat(~(here | layout.of_batch(tensor)), cells)  # what is of the step is there in each pipeline
        begin, end = np.searchsorted(left, (first, first + len(stays)))
        stays[left[begin:end] - first] = True
        if _forgotten(items, first, stays, about[tensor, NATURE] == SUM):
            return f"a sum of {layout.tensors[tensor].name} is lost"
    return ""


@nb.njit(**ENTERED)
def _forgotten(items, first, stays, is_sum):  # type: ignore[no-untyped-def]
    """Drops the items of keys from the first on that do not stay, up to a sum of what nobody has read; returns whether
    there is one."""
    for i in range(len(stays)):
        if stays[i]:
            continue
        slot = find_item(items, first + i)
        if items[slot].key == first + i and items[slot].flags & THERE:
            if is_sum and items[slot].count != 0 and not items[slot].flags & READ_ALREADY:
                return True
            items[slot].flags = 0
    return False


def _used(layout: StepLayout, template: Template) -> set[tuple[int, int]]:
    """Returns (tensor, layer offset) of what a template's operations touch."""
    found, bound = set(), layout.bound
    for op in template.operations.table.tolist():
        if op[0]:
            found.add((op[1], op[7]))
        else:
            rows = bound.rows[bound.offsets[op[1]] : bound.offsets[op[1] + 1]]
            found |= {(int(row[1]), int(row[2]) + op[7]) for row in rows}
    return found


def _end(step: Step, tables: WalkTables, state: WalkState) -> str:
    """Tells what at the end is not as the step says."""
    items, wanted = state.items, _every_layer(step, tables, step.ends)
    named = set()
    for tensor, layer, place, cell, count, version, *_ in zip(*wanted, strict=True):
        slot = find_item(items, key_of(tables, tensor, layer, place, cell))
        have = COMPLETE if items["flags"][slot] & READ_ALREADY else int(items["count"][slot])
        right = items["key"][slot] != NO_ITEM and items["flags"][slot] & THERE and items["version"][slot] == version
        if not right or (tables.tensors[tensor, NATURE] == SUM and have != count):
            return f"tensor {tensor} of layer {layer} at {place} is not as it has to be at the end"
        named.add(int(slot))
    rest = np.flatnonzero(items["flags"] & THERE)
    return "something is left at the end" if set(rest.tolist()) - named else ""
