"""The data flow of one template: which operation waits for which, and what it takes from and leaves to others.

Inside a template the edges are exact to the atom (zbench.simulator.steps.dataflow.atoms); between templates what is
waited for is told of a tensor, a layer and a place, as (operation, tensor, layer offset, place).
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE, INLINED
from zbench.simulator.steps.dataflow.atoms import AtomTables, atom_tables
from zbench.simulator.steps.dataflow.chains import (
    FlowState,
    ItemSpace,
    adds_item,
    drops_item,
    reads_item,
    takes_item,
    writes_item,
)
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.step.form import ADD, READ, UPDATE, WRITE
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.items import EMPTY
from zbench.step.template import Template


@dataclass(frozen=True)
class Flow:
    """The data flow of a template.

    producer, consumer: int64 [edges], operations; computes of one place are left out, as their queue has them in
    order. rows: int64 [n, 5], (READS ... ARRIVES, operation, tensor, layer offset, place), each once: READS of what was
    there before the template, WRITES and ARRIVES of what is there after an operation, USES of state that was read.
    items: int64 [n, 6], (tensor, layer offset, place, cell of atoms, the operation that wrote or added to it first or
    -1, that which touched it last). ended: as many columns, of copies that places forgot in between. tables: the atoms.
    """

    producer: Ints
    consumer: Ints
    rows: Ints
    items: Ints
    ended: Ints
    tables: AtomTables


def template_flow(layout: StepLayout, template: Template, num_places: int, arrays: LayoutArrays) -> Flow:
    """Follows the items of a template that was proven. arrays: of its layout."""
    tables = atom_tables(layout, template, arrays)
    ops, needs = template.operations.table, template.needs.table
    producer, consumer, rows, items, ended = _walked(tables, ops, needs, num_places)
    return Flow(producer, consumer, rows, items, ended, tables)


@nb.njit(**ENTERED)
def _walked(t, ops, needs, places):  # type: ignore[no-untyped-def]
    """Returns the fields of `Flow` but for the last. needs: of the contract. places: how many there are."""
    low, high = 0, 0
    for op in ops:
        low, high = min(low, op[7]), max(high, op[7])
    for item in needs:
        low, high = min(low, item[1]), max(high, item[1])
    count, cells = high - low + 2, t.shape0 * t.shape1
    room = cells * places * count
    needed = np.zeros((len(cells), count), np.bool_)
    for item in needs:
        needed[item[0], item[1] - low] = True
    where = ItemSpace(np.cumsum(room) - room, low, count, places, needed)
    items, nodes, drops = _sizes(t, ops)
    edges, rows = 4 * len(ops) + nodes, 4 * len(ops) + nodes  # more is rare, and then it is done again
    slots = 16
    while slots <= items + items // 2 + 2:
        slots *= 2
    while True:
        state = FlowState(
            np.full(slots, EMPTY, np.int64),
            np.empty(slots, np.int32),
            np.empty((items, 8), np.int64),
            np.zeros((drops, 6), np.int64),
            np.empty(nodes + 1, np.int64),
            np.empty(nodes + 1, np.int64),
            np.full(len(ops) + 1, -1, np.int64),
            np.full(4 * len(cells) * count * places, -1, np.int64),
            np.zeros(5, np.int64),
            np.empty((edges, 2), np.int64),
            np.empty((rows, 5), np.int64),
        )
        _follow(t, where, ops, state)
        used_edges, used_rows, used_items = state.used[1], state.used[2], state.used[4]
        if used_edges <= edges and used_rows <= rows:
            ends = state.edges[:used_edges]
            left = state.rows[:used_rows].copy(), state.items[:used_items, :6].copy()
            return ends[:, 0].copy(), ends[:, 1].copy(), left[0], left[1], state.ended
        edges, rows = max(edges, used_edges), max(rows, used_rows)


@nb.njit(**INLINED)
def _length(t, which):  # type: ignore[no-untyped-def]
    return 1 if which < 0 else t.list_offsets[which + 1] - t.list_offsets[which]


@nb.njit(**IN_PLACE)
def _sizes(t, ops):  # type: ignore[no-untyped-def]
    """Returns (items that are touched, nodes of chains, copies that are forgotten) at most."""
    items, nodes, drops = 0, 0, 0
    for op in ops:
        if op[0] == COMPUTE:
            for row in range(t.row_offsets[op[1]], t.row_offsets[op[1] + 1]):
                tensor, product = t.rows[row, 1], 1
                for axis in range(2):
                    slot = t.rows[row, 3 + 2 * axis]
                    whole = t.shape0[tensor] if axis == 0 else t.shape1[tensor]
                    product *= whole if slot < 0 else _length(t, op[4 + slot])
                items += product
                nodes += product
        else:
            product = _length(t, op[4]) * _length(t, op[5])
            drops += product * (op[0] == DROP)
            ends = 2 if t.counts[op[1]] < 0 else 3
            if op[0] == GATHER or op[0] == REDUCE:
                ends = 2 * (t.member_offsets[op[3] + 1] - t.member_offsets[op[3]]) + 2
                homes = 0
                for cell in range(t.first_cell[op[1]], t.first_cell[op[1]] + t.shape0[op[1]] * t.shape1[op[1]]):
                    homes = max(homes, t.home_offsets[cell + 1] - t.home_offsets[cell])
                ends += 2 * homes
            items += product * ends
            nodes += product * ends
    return items, nodes, drops


@nb.njit(**INLINED)
def _compute(t, where, state, ops, number):  # type: ignore[no-untyped-def]
    """Follows a formula, reference by reference."""
    op = ops[number]
    for row in range(t.row_offsets[op[1]], t.row_offsets[op[1] + 1]):
        does, tensor = t.rows[row, 0], t.rows[row, 1]
        layer = (op[7] + t.rows[row, 2]) * t.layered[tensor]
        slot0, slot1 = t.rows[row, 3], t.rows[row, 5]
        count0 = t.shape0[tensor] if slot0 < 0 else _length(t, op[4 + slot0])
        count1 = t.shape1[tensor] if slot1 < 0 else _length(t, op[4 + slot1])
        for i in range(count0):
            cell0 = i if slot0 < 0 else t.atoms[t.list_offsets[op[4 + slot0]] + i]
            if t.rows[row, 4] >= 0:
                cell0 = t.maps[t.map_offsets[t.rows[row, 4]] + cell0]
            for j in range(count1):
                cell1 = j if slot1 < 0 else t.atoms[t.list_offsets[op[4 + slot1]] + j]
                if t.rows[row, 6] >= 0:
                    cell1 = t.maps[t.map_offsets[t.rows[row, 6]] + cell1]
                item = (tensor, layer, op[2], cell0 * t.shape1[tensor] + cell1)
                if does in (READ, UPDATE):
                    reads_item(t, where, state, ops, number, item)
                if does in (WRITE, UPDATE):
                    writes_item(t, where, state, ops, number, item, False)
                if does == ADD:
                    adds_item(t, where, state, number, item)


@nb.njit(**INLINED)
def _transfer(t, where, state, ops, number):  # type: ignore[no-untyped-def]
    """Follows what is sent, moved, gathered, reduced or forgotten."""
    op = ops[number]
    kind, tensor = op[0], op[1]
    layer = op[7] * t.layered[tensor]
    for i in range(_length(t, op[4])):
        cell0 = 0 if op[4] < 0 else t.atoms[t.list_offsets[op[4]] + i]
        for j in range(_length(t, op[5])):
            cell = cell0 * t.shape1[tensor] + (0 if op[5] < 0 else t.atoms[t.list_offsets[op[5]] + j])
            if kind == DROP:
                drops_item(t, where, state, number, (tensor, layer, op[2], cell))
                continue
            if kind == SEND and t.counts[tensor] >= 0:  # whoever is sent rows knows how many, and waits for that
                reads_item(t, where, state, ops, number, (t.counts[tensor], layer, op[3], cell))
            if kind == SEND:
                reads_item(t, where, state, ops, number, (tensor, layer, op[2], cell))
                writes_item(t, where, state, ops, number, (tensor, layer, op[3], cell), True)
                continue
            if kind == MOVE:
                takes_item(t, where, state, ops, number, (tensor, layer, op[2], cell))
                adds_item(t, where, state, number, (tensor, layer, op[3], cell))
                continue
            first = t.first_cell[tensor] + cell
            homes = t.homes[t.home_offsets[first] : t.home_offsets[first + 1]]
            members = t.members[t.member_offsets[op[3]] : t.member_offsets[op[3] + 1]]
            every = op[2]  # each run of so many places has homes of its own; -1: there is one run
            if kind == GATHER:
                for at in homes:
                    home = at if every < 0 else members[0] // every * every + at % every
                    reads_item(t, where, state, ops, number, (tensor, layer, home, cell))
                for member in members:
                    home = homes[0] if every < 0 else members[0] // every * every + homes[0] % every
                    if len(homes) > 1 or member != home:
                        writes_item(t, where, state, ops, number, (tensor, layer, member, cell), True)
            else:
                for member in members:
                    takes_item(t, where, state, ops, number, (tensor, layer, member, cell))
                for at in homes:
                    home = at if every < 0 else members[0] // every * every + at % every
                    adds_item(t, where, state, number, (tensor, layer, home, cell))


@nb.njit(**IN_PLACE)
def _follow(t, where, ops, state):  # type: ignore[no-untyped-def]
    for number in range(len(ops)):
        if ops[number, 0] == COMPUTE:
            _compute(t, where, state, ops, number)
        else:
            _transfer(t, where, state, ops, number)
