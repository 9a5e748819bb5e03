"""The rules of one template: numbers in range, every formula covered, items followed from contract to contract."""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, GATHER
from zbench.step.proof.coverage import formula_fault
from zbench.step.proof.item_rules import OK, WalkState, WalkTables, key_of
from zbench.step.proof.items import READ_ALREADY, THERE, ItemTable, find_item, new_table
from zbench.step.proof.ranges import contract_fault, numbers_fault
from zbench.step.proof.sentences import Sentence, item_name
from zbench.step.proof.tables import ItemRows, item_rows, walk_tables
from zbench.step.proof.walk import walk_items
from zbench.step.template import COMPLETE, Step, Template
from zbench.step.tensor import SUM


def template_fault(step: Step, template: Template, counts: tuple[Ints, ...]) -> tuple[str, WalkState | None]:
    """Returns (the first rule that a template breaks, "" if none; what its walk found). counts: of its layout, by
    zbench.step.proof.tables.whole_counts."""
    layout = step.layouts[template.layout]
    say = Sentence(step, template)
    if fault := numbers_fault(step, template) or contract_fault(step, template):
        return fault, None
    for formula in template.formulas:
        if layout.formulas[formula].action == ":=":
            continue  # state may be held in several places, each of which updates its own: versions say how often
        op, word = formula_fault(layout, formula, template.operations)
        if word:
            return say.at(op, word), None
    reach = _reach(layout, template)
    tables = walk_tables(step, layout, counts, reach)
    needs, leaves = (item_rows(layout, items, tables) for items in (template.needs, template.leaves))
    for name, items in (("needs", needs), ("leaves", leaves)):
        if word := _named_twice(step, layout, items):
            return say.contract(f"{name} {word}"), None
    ops = template.operations.rows()
    written = int(_writes(tables, ops))
    state = WalkState(new_table(written + len(needs.tensor)), np.zeros(8, np.int64),
                      np.zeros(len(layout.tensors), np.int64), np.zeros(1, np.int64))  # fmt: skip
    enter_items(tables, needs, state.items)
    walk_items(tables, ops, 0, 0, state)
    if state.fault[0] != OK:
        return say.walked(state.fault), None
    at, have = _compare(tables, leaves, state.items, named := np.zeros(len(state.items), np.bool_))
    if at >= 0:
        return say.contract(_differs(step, layout, leaves, at, have)), None
    return _left(say, tables, state.items, named), state


def _reach(layout: StepLayout, template: Template) -> tuple[Ints, Ints]:
    """Returns the lowest and the highest layer offset of each tensor; those of the whole step have one, 0."""
    all_of = [template.operations.layer, template.needs.layer, template.leaves.layer, np.zeros(1, np.int32)]
    low, high = min(int(one.min(initial=0)) for one in all_of), max(int(one.max(initial=0)) for one in all_of)
    layered = np.array([int(one.layers != "none") for one in layout.tensors], np.int64)
    return low * layered, (high + 1) * layered


def _named_twice(step: Step, layout: StepLayout, items: ItemRows) -> str:
    """Tells of an item that a contract names twice."""
    table = np.stack([items.tensor, items.layer, items.place, items.cell], axis=1)
    same = np.flatnonzero((table[1:] == table[:-1]).all(axis=1))
    return f"names {_item(step, layout, items, int(same[0]))} twice" if len(same) else ""


def _item(step: Step, layout: StepLayout, items: ItemRows, at: int) -> str:
    where = (int(items.tensor[at]), int(items.layer[at]), int(items.place[at]), int(items.cell[at]))
    return item_name(step, layout, *where)


@nb.njit(cache=True)
def enter_items(t, needs, items):  # type: ignore[no-untyped-def]
    """Puts the items of a contract into a table."""
    for i in range(len(needs.tensor)):
        tensor, cell = needs.tensor[i], needs.cell[i]
        key = key_of(t, tensor, needs.layer[i], needs.place[i], cell)
        at = find_item(items, key)
        items[at].key, items[at].version, items[at].hops = key, needs.version[i], needs.hops[i]
        items[at].flags, items[at].count = THERE, needs.contributions[i]
        if needs.contributions[i] == COMPLETE and t.nature[tensor] == SUM:
            items[at].flags, items[at].count = THERE | READ_ALREADY, t.total[t.first_cell[tensor] + cell]


@nb.njit(cache=True)
def _compare(t, leaves, items, named):  # type: ignore[no-untyped-def]
    """Returns the first item that is not as a contract says, -1 if none, with what there is: (there, count, version,
    hops); marks those that are named."""
    have = np.zeros(4, np.int64)
    for i in range(len(leaves.tensor)):
        tensor, cell = leaves.tensor[i], leaves.cell[i]
        at = find_item(items, key_of(t, tensor, leaves.layer[i], leaves.place[i], cell))
        have[:] = 0
        if items[at].key < 0 or items[at].flags & THERE == 0:
            return i, have
        have[0], have[1], have[2], have[3] = 1, 0, items[at].version, items[at].hops
        if t.nature[tensor] == SUM:
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
    tensor = np.searchsorted(tables.base, items["key"][rest], side="right") - 1
    lost = rest[tables.nature[tensor] == SUM]
    if not len(lost):
        return ""
    first = int(lost[np.argmin(items["key"][lost])])
    which = int(np.searchsorted(tables.base, items["key"][first], side="right")) - 1
    layer, place, cell = item_of(tables, which, int(items["key"][first]))
    return say.left(int(items["writer"][first]), (which, layer, place, cell), int(items["count"][first]))


def item_of(tables: WalkTables, tensor: int, key: int) -> tuple[int, int, int]:
    """Returns (layer, place, cell) of an item's key."""
    cells = int(tables.shape0[tensor] * tables.shape1[tensor])
    rest, cell = divmod(key - int(tables.base[tensor]), cells)
    layer, place = divmod(rest, tables.num_places)
    return layer + int(tables.lowest[tensor]), place, cell


@nb.njit(cache=True)
def _writes(t, ops):  # type: ignore[no-untyped-def]
    """Counts at least as many items as operations can make."""
    total = 0
    for number in range(len(ops)):
        op = ops[number]
        if op[0] == COMPUTE:
            for row in range(t.row_offsets[op[1]], t.row_offsets[op[1] + 1]):
                if t.rows[row, 0] != 0:
                    tensor = t.rows[row, 1]
                    product = 1
                    for axis in range(2):
                        slot = t.rows[row, 3 + 2 * axis]
                        which = op[4 + slot] if slot >= 0 else -1
                        whole = t.shape0[tensor] if axis == 0 else t.shape1[tensor]
                        product *= whole if slot < 0 else t.list_offsets[which + 1] - t.list_offsets[which]
                    total += product
        else:
            product = 1
            for axis in range(2):
                which = op[4 + axis]
                product *= 1 if which < 0 else t.list_offsets[which + 1] - t.list_offsets[which]
            if op[0] == GATHER:
                product *= t.list_offsets[op[3] + 1] - t.list_offsets[op[3]]
            total += product
    return total
