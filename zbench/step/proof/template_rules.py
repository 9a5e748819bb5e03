"""The rules of one template: numbers in range, every formula covered, items followed from contract to contract."""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import READ, StepLayout
from zbench.step.operations import COMPUTE, GATHER
from zbench.step.proof.coverage import formulas_fault
from zbench.step.proof.item_rules import (
    BASE,
    FIRST_CELL,
    LOWEST,
    NATURE,
    OK,
    SHAPE0,
    SHAPE1,
    TOTAL,
    TOUCHES,
    WalkState,
    WalkTables,
)
from zbench.step.proof.items import NO_ITEM, READ_ALREADY, THERE, ItemTable, find_item, new_table
from zbench.step.proof.ranges import Owners, contract_fault, numbers_fault
from zbench.step.proof.sentences import Sentence, item_name
from zbench.step.proof.tables import ItemRows, item_rows, with_layers
from zbench.step.proof.walk import walk_items
from zbench.step.template import COMPLETE, Step, Template
from zbench.step.tensor import SUM


@dataclass(frozen=True)
class Looked:
    """Items and counts that a template's rules found. needs, leaves: the items of its contract. touches: by its
    operations; hops: lossy encodings of what they read, by tensor."""

    needs: ItemRows
    leaves: ItemRows
    touches: int
    hops: Ints


def template_fault(step: Step, template: Template, tables: WalkTables, owners: Owners) -> tuple[str, Looked | None]:
    """Returns (the first rule that a template breaks, "" if none; what was found where it breaks none). tables,
    owners: of its layout."""
    layout = step.layouts[template.layout]
    say = Sentence(step, template)
    if fault := numbers_fault(step, template, owners) or contract_fault(step, template, owners):
        return fault, None
    ops = template.operations.table
    op, word = formulas_fault(layout, tables, template)
    if word:
        return say.at(op, word), None
    tables = with_layers(tables, *_reach(layout, template))
    needs, leaves = (item_rows(items, tables) for items in (template.needs, template.leaves))
    for name, items in (("needs", needs), ("leaves", leaves)):
        if word := _named_twice(step, layout, items):
            return say.contract(f"{name} {word}"), None
    state = new_state(int(_writes(tables, ops)) + len(needs.key), len(layout.tensors))
    enter_items(tables, needs, state.items)
    walk_items(tables, ops, 0, 0, 0, state)
    if state.fault[0] != OK:
        return say.walked(state.fault), None
    at, have = _compare(tables, leaves, state.items, named := np.zeros(len(state.items), np.bool_))
    if at >= 0:
        return say.contract(_differs(step, layout, leaves, at, have)), None
    return _left(say, tables, state.items, named), Looked(needs, leaves, int(state.fault[TOUCHES]), state.hops)


def new_state(most: int, tensors: int) -> WalkState:
    """Returns the state of a walk that makes at most so many items, before its first operation."""
    return WalkState(new_table(most), np.zeros(TOUCHES + 1, np.int64), np.zeros(tensors, np.int64))


def _reach(layout: StepLayout, template: Template) -> tuple[Ints, Ints]:
    """Returns the lowest and the highest layer offset of each tensor; those of the whole step have one, 0."""
    all_of = [template.operations.layer, template.needs.layer, template.leaves.layer]
    low, high = min(int(one.min(initial=0)) for one in all_of), max(int(one.max(initial=0)) for one in all_of)
    return low * layout.layered, (high + 1) * layout.layered


def _named_twice(step: Step, layout: StepLayout, items: ItemRows) -> str:
    """Tells of an item that a contract names twice."""
    same = np.flatnonzero(items.key[1:] == items.key[:-1])
    return f"names {_item(step, layout, items, int(same[0]))} twice" if len(same) else ""


def _item(step: Step, layout: StepLayout, items: ItemRows, at: int) -> str:
    where = (int(items.tensor[at]), int(items.layer[at]), int(items.place[at]), int(items.cell[at]))
    return item_name(step, layout, *where)


@nb.njit(cache=True)
def enter_items(t, needs, items):  # type: ignore[no-untyped-def]
    """Puts the items of a contract into a table."""
    for i in range(len(needs.key)):
        tensor, cell, key = needs.tensor[i], needs.cell[i], needs.key[i]
        at = find_item(items, key)
        items[at].key, items[at].version, items[at].hops = key, needs.version[i], needs.hops[i]
        items[at].flags, items[at].count = THERE, needs.contributions[i]
        items[at].encoding, items[at].writer = -1, -1
        if needs.contributions[i] == COMPLETE and t.tensors[tensor, NATURE] == SUM:
            items[at].flags = THERE | READ_ALREADY
            items[at].count = t.cells[t.tensors[tensor, FIRST_CELL] + cell, TOTAL]


@nb.njit(cache=True)
def _compare(t, leaves, items, named):  # type: ignore[no-untyped-def]
    """Returns the first item that is not as a contract says, -1 if none, with what there is: (there, count, version,
    hops); marks those that are named."""
    have = np.zeros(4, np.int64)
    for i in range(len(leaves.key)):
        tensor, at = leaves.tensor[i], find_item(items, leaves.key[i])
        have[:] = 0
        if items[at].key == NO_ITEM or items[at].flags & THERE == 0:
            return i, have
        have[0], have[1], have[2], have[3] = 1, 0, items[at].version, items[at].hops
        if t.tensors[tensor, NATURE] == SUM:
            have[1] = COMPLETE if items[at].flags & READ_ALREADY else items[at].count
        if have[1] != leaves.contributions[i] or have[2] != leaves.version[i] or have[3] != leaves.hops[i]:
            return i, have
        named[at] = True
    return -1, have


def _differs(step: Step, layout: StepLayout, leaves: ItemRows, at: int, have: Ints) -> str:
    """Says how an item differs from what the contract leaves."""
    what = _item(step, layout, leaves, at)
    if not have[0]:
        return f"leaves {what}, which is not there at the end"
    told = [("count", leaves.contributions[at], have[1]), ("version", leaves.version[at], have[2])]
    for name, wanted, found in (*told, ("hops", leaves.hops[at], have[3])):
        if wanted != found:
            words = ["complete" if number == COMPLETE else f"{name} {number}" for number in (wanted, found)]
            return f"leaves {what} {words[0]}; at the end it is {words[1]}"
    raise AssertionError("it is as the contract says")


def _left(say: Sentence, tables: WalkTables, items: ItemTable, named: np.ndarray) -> str:
    """Tells of a sum that something was added to, and that nothing takes, reads or leaves."""
    rest = np.flatnonzero((items["flags"] & (THERE | READ_ALREADY)) == THERE)
    rest = rest[~named[rest] & (items["count"][rest] > 0)]
    base = tables.tensors[:, BASE]
    tensor = np.searchsorted(base, items["key"][rest], side="right") - 1
    lost = rest[tables.tensors[tensor, NATURE] == SUM]
    if not len(lost):
        return ""
    first = int(lost[np.argmin(items["key"][lost])])
    which = int(np.searchsorted(base, items["key"][first], side="right")) - 1
    layer, place, cell = item_of(tables, which, int(items["key"][first]))
    return say.left(int(items["writer"][first]), (which, layer, place, cell), int(items["count"][first]))


def item_of(tables: WalkTables, tensor: int, key: int) -> tuple[int, int, int]:
    """Returns (layer, place, cell) of an item's key."""
    about = tables.tensors[tensor]
    rest, cell = divmod(key - int(about[BASE]), int(about[SHAPE0] * about[SHAPE1]))
    layer, place = divmod(rest, tables.num_places)
    return layer + int(about[LOWEST]), place, cell


@nb.njit(cache=True)
def _writes(t, ops):  # type: ignore[no-untyped-def]
    """Counts at least as many items as operations can make."""
    total = 0
    for number in range(len(ops)):
        op = ops[number]
        begin, end = (t.row_offsets[op[1]], t.row_offsets[op[1] + 1]) if op[0] == COMPUTE else (0, 1)
        for row in range(begin, end):
            if op[0] == COMPUTE and t.rows[row, 0] == READ:
                continue
            product = 1
            for axis in range(2):
                slot = t.rows[row, 3 + 2 * axis] if op[0] == COMPUTE else axis
                which = op[4 + slot] if slot >= 0 else -1
                if which >= 0:
                    product *= t.list_offsets[which + 1] - t.list_offsets[which]
                elif op[0] == COMPUTE:
                    product *= t.tensors[t.rows[row, 1], SHAPE0 + axis]
            if op[0] == GATHER:
                product *= t.list_offsets[op[3] + 1] - t.list_offsets[op[3]]
            total += product
    return total
