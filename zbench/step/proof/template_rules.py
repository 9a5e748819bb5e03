"""The rules of templates: numbers in range, operations in queues of their kind, every formula covered, items followed
from contract to contract."""

from collections.abc import Sequence
from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.step.form import READ
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
from zbench.step.proof.items import NO_ITEM, READ_ALREADY, THERE, find_item, forget_items, new_table, room_for
from zbench.step.proof.queues import queues_fault
from zbench.step.proof.ranges import Owners, numbers_fault
from zbench.step.proof.sentences import Sentence
from zbench.step.proof.template_rows import ItemRows, TemplateRows, items_of_contracts
from zbench.step.proof.walk import walk_items
from zbench.step.template import COMPLETE, Step, Template
from zbench.step.tensor import SUM

_FINE, _NAMED_TWICE, _WALKED, _DIFFERS, _LEFT = range(5)  # what a template breaks
_NAMED = 4  # a bit of flags of an item, after THERE and READ_ALREADY: what the contract leaves


@dataclass(frozen=True)
class Looked:
    """Items and counts that rules found of a layout's templates. items: of their contracts, where those of each begin
    in `ends` (zbench.step.proof.template_rows). touches: by the operations of all; hops: lossy encodings of what they
    read, by tensor."""

    rows: TemplateRows
    items: ItemRows
    ends: Ints
    touches: Ints
    hops: Ints


def templates_fault(
    step: Step, templates: Sequence[Template], tables: WalkTables, owners: Owners
) -> tuple[int, str, Looked]:
    """Returns (which of a layout's templates is the first that breaks a rule, the first rule that it breaks, what was
    found where none does), (how many there are, "", what was found) if none does. tables, owners: of the layout."""
    rows = TemplateRows.of(templates)
    which, fault = numbers_fault(step, templates, rows, owners)
    rows = rows.first(which)  # a rule follows the numbers of what fits those before it
    broken, op, word = queues_fault(tables, rows, step.num_gpus)
    if word:
        which, fault, rows = broken, Sentence(step, templates[broken]).misplaced(op, word), rows.first(broken)
    broken, word = formulas_fault(step, templates, tables, rows)
    if word:
        which, fault, rows = broken, word, rows.first(broken)
    items, ends = items_of_contracts(rows.entries, rows.entry_ends, tables)
    hops, touches = np.zeros(len(tables.tensors), np.int64), np.zeros(which, np.int64)
    room = new_table(int(_most_items(tables, rows, ends)))  # for all templates, one after another
    broken, code, told = _follow(tables, rows, items, ends, room, (hops, touches))
    if code != _FINE:
        which, fault = broken, _sentence(Sentence(step, templates[broken]), code, told)
    return which, fault, Looked(rows, items, ends, touches, hops)


def new_state(most: int, tensors: int) -> WalkState:
    """Returns the state of a walk that makes at most so many items, before its first operation."""
    return WalkState(new_table(most), np.zeros(TOUCHES + 1, np.int64), np.zeros(tensors, np.int64))


def _sentence(say: Sentence, code: int, told: Ints) -> str:
    """Says what a template breaks. told: as of `_follow`."""
    if code == _WALKED:
        return say.walked(told[: TOUCHES + 1])
    side, tensor, layer, place, cell, first, second, third = told.tolist()[:8]
    if code == _LEFT:
        return say.left(first, (tensor, layer, place, cell), second)
    what = say.item(tensor, layer, place, cell)
    if code == _NAMED_TWICE:
        return say.contract(f"{'leaves' if side else 'needs'} names {what} twice")
    if first < 0:
        return say.contract(f"leaves {what}, which is not there at the end")
    name = ("count", "version", "hops")[first]
    words = ["complete" if number == COMPLETE else f"{name} {number}" for number in (second, third)]
    return say.contract(f"leaves {what} {words[0]}; at the end it is {words[1]}")


@nb.njit(**ENTERED)
def _most_items(t, rows, ends):  # type: ignore[no-untyped-def]
    """Returns the most items that there can be of a template."""
    most = 0
    for which in range(len(rows.op_ends) - 1):
        ops = rows.ops[rows.op_ends[which] : rows.op_ends[which + 1]]
        most = max(most, _writes(t, ops) + ends[2 * which + 1] - ends[2 * which])
    return most


@nb.njit(**ENTERED)
def _follow(t, rows, items, ends, room, found):  # type: ignore[no-untyped-def]
    """Follows the items of each template from its first contract through its operations to its second one, until one
    breaks a rule: returns (which, the rule, what is told of it). room: a table that is empty. found: the hops that
    reads see, and the touches of each template, which are noted.

    What is told: of a walk its fault; else the contract's side, the item (tensor, layer, place, cell), and of _DIFFERS
    the column (-1: it is not there), what it says and what there is; of _LEFT who added to it, and the count.
    """
    (hops, touches), told = found, np.zeros(TOUCHES + 1, np.int64)
    for which in range(len(rows.op_ends) - 1):
        begin, middle, end = ends[2 * which], ends[2 * which + 1], ends[2 * which + 2]
        for at in range(begin + 1, end):
            if at != middle and items.key[at] == items.key[at - 1]:
                told[0] = at > middle
                _tell_item(told, items, at)
                return which, _NAMED_TWICE, told
        ops = rows.ops[rows.op_ends[which] : rows.op_ends[which + 1]]
        table = room[: room_for(_writes(t, ops) + middle - begin)]
        enter_items(t, items, begin, middle, table)
        fault = np.zeros(TOUCHES + 1, np.int64)
        walk_items(t, ops, 0, 0, WalkState(table, fault, hops))
        if fault[0] != OK:
            return which, _WALKED, fault
        touches[which] = fault[TOUCHES]
        code = _ended(t, items, middle, end, table, told)
        if code != _FINE:
            return which, code, told
        forget_items(table)
    return -1, _FINE, told


@nb.njit(**INNER)
def _tell_item(told, items, at):  # type: ignore[no-untyped-def]
    told[1], told[2], told[3], told[4] = items.tensor[at], items.layer[at], items.place[at], items.cell[at]


@nb.njit(**ENTERED)
def enter_items(t, items, begin, end, table):  # type: ignore[no-untyped-def]
    """Puts the items of a contract, from one up to another, into a table."""
    for i in range(begin, end):
        tensor, cell, key = items.tensor[i], items.cell[i], items.key[i]
        at = find_item(table, key)
        table[at].key, table[at].version, table[at].hops = key, items.version[i], items.hops[i]
        table[at].flags, table[at].count = THERE, items.contributions[i]
        table[at].encoding, table[at].writer = -1, -1
        if items.contributions[i] == COMPLETE and t.tensors[tensor, NATURE] == SUM:
            table[at].flags = THERE | READ_ALREADY
            table[at].count = t.cells[t.tensors[tensor, FIRST_CELL] + cell, TOTAL]


@nb.njit(**INNER)
def _ended(t, items, begin, end, table, told):  # type: ignore[no-untyped-def]
    """Compares what there is with what a contract leaves, and looks for a sum that something was added to, and that
    nothing takes, reads or leaves: returns the rule that is broken, and tells of it."""
    for i in range(begin, end):
        tensor, at = items.tensor[i], find_item(table, items.key[i])
        told[0] = 1
        _tell_item(told, items, i)
        if table[at].key == NO_ITEM or table[at].flags & THERE == 0:
            told[5] = -1
            return _DIFFERS
        count = 0
        if t.tensors[tensor, NATURE] == SUM:
            count = COMPLETE if table[at].flags & READ_ALREADY else table[at].count
        wanted = items.contributions[i], items.version[i], items.hops[i]
        found = count, np.int64(table[at].version), np.int64(table[at].hops)
        for column in range(3):
            if wanted[column] != found[column]:
                told[5], told[6], told[7] = column, wanted[column], found[column]
                return _DIFFERS
        table[at].flags |= _NAMED
    lost = -1
    for at in range(len(table)):
        waits = table[at].flags == THERE and table[at].count > 0 and (lost < 0 or table[at].key < table[lost].key)
        if waits and t.tensors[_tensor_of(t, table[at].key), NATURE] == SUM:
            lost = at
    if lost < 0:
        return _FINE
    told[0], told[1] = 1, _tensor_of(t, table[lost].key)
    told[2], told[3], told[4] = _item_of(t, told[1], table[lost].key)
    told[5], told[6] = table[lost].writer, table[lost].count
    return _LEFT


@nb.njit(**INNER)
def _tensor_of(t, key):  # type: ignore[no-untyped-def]
    """Returns the tensor of an item's key: the last one whose keys begin no later."""
    return np.searchsorted(t.tensors[:, BASE], key, side="right") - 1


@nb.njit(**INNER)
def _item_of(t, tensor, key):  # type: ignore[no-untyped-def]
    """Returns (layer, place, cell) of an item's key."""
    about = t.tensors[tensor]
    cells = about[SHAPE0] * about[SHAPE1]
    rest = (key - about[BASE]) // cells
    return rest // t.num_places + about[LOWEST], rest % t.num_places, (key - about[BASE]) % cells


@nb.njit(**INNER)
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
