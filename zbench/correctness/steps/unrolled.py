"""Judges a step with its layers unrolled: one walk over all instances, in which contracts only say what is forgotten.

What zbench.step.proof.order concludes from contracts is looked at here operation by operation, layer by layer.
"""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.coverage import formula_fault
from zbench.step.proof.item_rules import OK, WalkState, WalkTables, key_of
from zbench.step.proof.items import READ_ALREADY, THERE, find_item, new_table
from zbench.step.proof.ranges import numbers_fault
from zbench.step.proof.tables import ItemRows, item_rows, walk_tables, whole_counts
from zbench.step.proof.template_rules import enter_items
from zbench.step.proof.walk import walk_items
from zbench.step.template import COMPLETE, Instance, Step, Template
from zbench.step.tensor import SUM

MOST_ITEMS = 200_000


def unrolled_fault(step: Step) -> str:
    """Returns what is wrong with a step whose contracts are well-formed, "" if nothing; for small steps."""
    counts = whole_counts(step)
    for template in step.templates:
        layout = step.layouts[template.layout]
        if fault := numbers_fault(step, template):
            return fault
        for formula in template.formulas:
            if layout.formulas[formula].action != ":=":
                _, word = formula_fault(layout, formula, template.operations)
                if word:
                    return word
    tables = _all_tables(step, counts)
    state = WalkState(new_table(MOST_ITEMS), np.zeros(8, np.int64), np.zeros(999, np.int64), np.zeros(1, np.int64))
    enter_items(tables[0], _every_layer(step, tables[0], step.begins), state.items)
    for number, one in enumerate(step.order):
        template = step.templates[one.template]
        mine = tables[template.layout]
        for layer in one.layers:
            walk_items(mine, template.operations.rows(), layer, one.version, state)
            if state.fault[0] != OK:
                return f"instance {number}, layer {layer}: fault {state.fault.tolist()}"
            if word := _forget(step, template, mine, one, layer, state):
                return f"instance {number}, layer {layer}: {word}"
    return _end(step, tables[0], state)


def _all_tables(step: Step, counts: list[tuple[Ints, ...]]) -> list[WalkTables]:
    """Returns the tables of all layouts over one space of keys, in which the step's tensors are the same in all."""
    shared: dict[str, int] = {}
    begin, found = 0, []
    for layout, total in zip(step.layouts, counts, strict=True):
        highest, base = [], []
        for at, tensor in enumerate(layout.tensors):
            highest.append({"layer": step.num_layers - 1, "border": step.num_layers, "none": 0}[tensor.layers])
            if layout.of_batch(at) or tensor.name not in shared:
                shared[tensor.name] = begin
                begin += (highest[-1] + 1) * step.num_places * int(np.prod(layout.shape(at)))
            base.append(shared[tensor.name])
        zeros = np.zeros(len(highest), np.int64)
        layers = (zeros, np.array(highest, np.int64))
        found.append(walk_tables(step, layout, total, layers, np.array(base, np.int64)))
    return found


def _every_layer(step: Step, tables: WalkTables, items: object) -> ItemRows:
    """Returns the step's own items for every layer that has them."""
    layout = step.layouts[0]
    rows = np.stack(item_rows(layout, items, tables))  # type: ignore[arg-type]
    found = []
    for layer in range(step.num_layers + 1):
        mine = rows[:, layer <= tables.highest[rows[0]]].copy()
        mine[1] = layer
        found.append(mine)
    return ItemRows(*np.concatenate(found, axis=1))


def _forget(step: Step, template: Template, tables: WalkTables, one: Instance, layer: int, state: WalkState) -> str:
    """Drops what an instance used and does not leave; tells of sums that are lost with it."""
    layout, items = step.layouts[template.layout], state.items
    needs, leaves = (item_rows(layout, part, tables) for part in (template.needs, template.leaves))
    left = set()
    for tensor, offset, place, cell in zip(*leaves[:4], strict=True):
        at = (layer + offset) * tables.layered[tensor]
        left.add(int(key_of(tables, tensor, at, place, cell)))
    used = _used(layout, template)
    used |= {(int(tensor), int(offset)) for tensor, offset in zip(*needs[:2], strict=True)}
    used |= {(int(tensor), int(offset)) for tensor, offset in zip(*leaves[:2], strict=True)}
    for tensor, offset in used:
        at = (layer + offset) * tables.layered[tensor]
        if not 0 <= at <= tables.highest[tensor]:
            continue
        cells = int(tables.shape0[tensor] * tables.shape1[tensor])
        first = int(key_of(tables, tensor, at, 0, 0))
        for key in range(first, first + cells * step.num_places):
            slot = find_item(items, key)
            if items["key"][slot] == key and items["flags"][slot] & THERE and key not in left:
                if tables.nature[tensor] == SUM and items["count"][slot] and not items["flags"][slot] & READ_ALREADY:
                    return f"a sum of {layout.tensors[tensor].name} is lost"
                items["flags"][slot] = 0
    return ""


def _used(layout: StepLayout, template: Template) -> set[tuple[int, int]]:
    """Returns (tensor, layer offset) of what a template's operations touch."""
    found, bound = set(), layout.bound
    for op in template.operations.rows().tolist():
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
    for tensor, layer, place, cell, count, version, _, _ in zip(*wanted, strict=True):
        slot = find_item(items, key_of(tables, tensor, layer, place, cell))
        have = COMPLETE if items["flags"][slot] & READ_ALREADY else int(items["count"][slot])
        right = items["key"][slot] >= 0 and items["flags"][slot] & THERE and items["version"][slot] == version
        if not right or (tables.nature[tensor] == SUM and have != count):
            return f"tensor {tensor} of layer {layer} at {place} is not as it has to be at the end"
        named.add(int(slot))
    rest = np.flatnonzero(items["flags"] & THERE)
    return "something is left at the end" if set(rest.tolist()) - named else ""
