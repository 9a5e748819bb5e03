"""The data flow of one template: which operation waits for which, and what it takes from and leaves to others.

Inside a template the edges are exact to the atom (zbench.simulator.steps.atoms); between templates what is waited for
is told of a tensor, a layer and a place, as (operation, tensor, layer offset, place).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.simulator.steps.atoms import AtomTables, atom_tables
from zbench.step.layout import ADD, READ, UPDATE, WRITE, StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.items import EMPTY, find_key
from zbench.step.template import Template
from zbench.step.tensor import STATE, SUM

READS, WRITES, USES, ARRIVES = range(4)  # of rows: waits for what wrote it; wrote it; read state; was brought state


@dataclass(frozen=True)
class Flow:
    """What operations of a template wait for.

    producer, consumer: int64 [edges], operations; computes of one place are left out, as their queue has them in
    order. rows: int64 [n, 5], (READS ... ARRIVES, operation, tensor, layer offset, place), each once: READS of what was
    there before the template, WRITES and ARRIVES of what is there after an operation, USES of state that was read.
    items: int64 [n, 6], (tensor, layer offset, place, cell of atoms, the operation that wrote or added to it first or
    -1, that which touched it last). tables: the atoms.
    """

    producer: Ints
    consumer: Ints
    rows: Ints
    items: Ints
    tables: AtomTables


class _State(NamedTuple):
    """What a walk keeps: keys of items, and for each the operations that made it and those that read it, as chains of
    nodes. stamp: by operation, the last consumer that has an edge from it. life: of items, as in Flow.items. seen: by kind, tensor, offset and place, the
    last operation that a row was made for. count: nodes, edges and rows so far."""

    keys: Ints
    makers: Ints
    readers: Ints
    life: Ints
    node: Ints
    following: Ints
    stamp: Ints
    seen: Ints
    count: Ints
    edges: Ints
    rows: Ints


class _Where(NamedTuple):
    """base: where the keys of each tensor begin. lowest: the lowest layer offset. offsets, places: how many there
    are. needed: [tensors, offsets], whether the contract needs some of it."""

    base: Ints
    lowest: int
    offsets: int
    places: int
    needed: Flags


def template_flow(layout: StepLayout, template: Template, num_places: int) -> Flow:
    """Follows the items of a template that was proven."""
    tables, ops = atom_tables(layout, template), template.operations.rows()
    low = int(min(ops[:, 7].min(initial=0), template.needs.layer.min(initial=0)))
    high = int(max(ops[:, 7].max(initial=0), template.needs.layer.max(initial=0))) + 1
    count = high - low + 1
    cells = tables.shape0 * tables.shape1
    room = cells * num_places * count
    needed = np.zeros((len(cells), count), bool)
    needed[template.needs.tensor, template.needs.layer - low] = True
    where = _Where(np.cumsum(room) - room, low, count, num_places, needed)
    items, nodes = _sizes(tables, ops).tolist()
    edges = rows = 4 * len(ops) + 64
    while True:
        slots = 1 << max(int(items + items // 2 + 2).bit_length(), 4)
        state = _State(
            np.full(slots, EMPTY, np.int64), np.full(slots, -1, np.int64), np.full(slots, -1, np.int64),
            np.full((slots, 6), -1, np.int64), np.zeros(nodes + 1, np.int64), np.zeros(nodes + 1, np.int64), np.full(len(ops) + 1, -1, np.int64),
            np.full(4 * len(cells) * count * num_places, -1, np.int64), np.zeros(3, np.int64),
            np.zeros((edges, 2), np.int64), np.zeros((rows, 5), np.int64),
        )  # fmt: skip
        _follow(tables, where, ops, state)
        _, used_edges, used_rows = state.count.tolist()
        if used_edges <= edges and used_rows <= rows:
            found = state.edges[:used_edges]
            life = state.life[state.keys != EMPTY]
            return Flow(found[:, 0].copy(), found[:, 1].copy(), state.rows[:used_rows], life, tables)
        edges, rows = max(edges, used_edges), max(rows, used_rows)


@nb.njit(cache=True)
def _length(t, which):  # type: ignore[no-untyped-def]
    return 1 if which < 0 else t.list_offsets[which + 1] - t.list_offsets[which]


@nb.njit(cache=True)
def _sizes(t, ops):  # type: ignore[no-untyped-def]
    """Returns (items that are touched, nodes of chains) at most."""
    items, nodes = 0, 0
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
            ends = 2
            if op[0] == GATHER or op[0] == REDUCE:
                ends = 2 * (t.member_offsets[op[3] + 1] - t.member_offsets[op[3]]) + 2
                homes = 0
                for cell in range(t.first_cell[op[1]], t.first_cell[op[1]] + t.shape0[op[1]] * t.shape1[op[1]]):
                    homes = max(homes, t.home_offsets[cell + 1] - t.home_offsets[cell])
                ends += 2 * homes
            items += product * ends
            nodes += product * ends
    return np.array([items, nodes])


@nb.njit(cache=True)
def _slot(t, where, state, op, item, writes):  # type: ignore[no-untyped-def]
    """Returns the place of an item in the table; it is entered if it is new, and its life goes on."""
    tensor, layer, place, cell = item
    cells = t.shape0[tensor] * t.shape1[tensor]
    from_lowest = (layer - where.lowest) * t.layered[tensor]
    key = where.base[tensor] + (from_lowest * where.places + place) * cells + cell
    at = find_key(state.keys, key)
    state.keys[at] = key
    life = state.life[at]
    life[0], life[1], life[2], life[3], life[5] = tensor, layer, place, cell, op
    if writes and life[4] < 0:
        life[4] = op
    return at


@nb.njit(cache=True)
def _row(t, where, state, kind, op, tensor, layer, place):  # type: ignore[no-untyped-def]
    """Notes a row, once for an operation."""
    offset = layer - where.lowest
    at = ((kind * len(t.nature) + tensor) * where.offsets + offset) * where.places + place
    if state.seen[at] == op:
        return
    state.seen[at] = op
    if state.count[2] < len(state.rows):
        row = state.rows[state.count[2]]
        row[0], row[1], row[2], row[3], row[4] = kind, op, tensor, layer, place
    state.count[2] += 1


@nb.njit(cache=True)
def _edges(state, ops, chain, op):  # type: ignore[no-untyped-def]
    """Makes the operation wait for all of a chain."""
    while chain >= 0:
        other = state.node[chain]
        chain = state.following[chain]
        if other == op or state.stamp[other] == op:
            continue
        state.stamp[other] = op
        if ops[other, 0] == COMPUTE and ops[op, 0] == COMPUTE and ops[other, 2] == ops[op, 2]:
            continue
        if state.count[1] < len(state.edges):
            state.edges[state.count[1], 0], state.edges[state.count[1], 1] = other, op
        state.count[1] += 1


@nb.njit(cache=True)
def _chained(state, chain, op):  # type: ignore[no-untyped-def]
    """Returns the chain with the operation in front."""
    if chain >= 0 and state.node[chain] == op:
        return chain
    at = state.count[0]
    state.node[at], state.following[at] = op, chain
    state.count[0] += 1
    return at


@nb.njit(cache=True)
def _read(t, where, state, ops, op, item):  # type: ignore[no-untyped-def]
    """Waits for what made an item."""
    tensor, layer, place, _ = item
    at = _slot(t, where, state, op, item, False)
    nature = t.nature[tensor]
    if state.makers[at] < 0 or (nature == SUM and where.needed[tensor, layer - where.lowest]):
        _row(t, where, state, READS, op, tensor, layer, place)
    _edges(state, ops, state.makers[at], op)
    if nature == STATE:
        state.readers[at] = _chained(state, state.readers[at], op)
        _row(t, where, state, USES, op, tensor, layer, place)


@nb.njit(cache=True)
def _write(t, where, state, ops, op, item, arrives):  # type: ignore[no-untyped-def]
    """Replaces an item; of state, after all that read it."""
    tensor, layer, place, _ = item
    at = _slot(t, where, state, op, item, True)
    if t.nature[tensor] == STATE:
        _edges(state, ops, state.readers[at], op)
        state.readers[at] = -1
        if arrives:
            _row(t, where, state, ARRIVES, op, tensor, layer, place)
    state.makers[at] = _chained(state, -1, op)
    _row(t, where, state, WRITES, op, tensor, layer, place)


@nb.njit(cache=True)
def _add(t, where, state, op, item):  # type: ignore[no-untyped-def]
    """Adds to a sum, which waits for nobody."""
    tensor, layer, place, _ = item
    at = _slot(t, where, state, op, item, True)
    state.makers[at] = _chained(state, state.makers[at], op)
    _row(t, where, state, WRITES, op, tensor, layer, place)


@nb.njit(cache=True)
def _take(t, where, state, ops, op, item):  # type: ignore[no-untyped-def]
    """Takes what was added to a sum so far."""
    tensor, layer, place, _ = item
    at = _slot(t, where, state, op, item, False)
    if where.needed[tensor, layer - where.lowest]:
        _row(t, where, state, READS, op, tensor, layer, place)
    _edges(state, ops, state.makers[at], op)
    state.makers[at] = -1


@nb.njit(cache=True)
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
                if does == READ or does == UPDATE:
                    _read(t, where, state, ops, number, item)
                if does == WRITE or does == UPDATE:
                    _write(t, where, state, ops, number, item, False)
                if does == ADD:
                    _add(t, where, state, number, item)


@nb.njit(cache=True)
def _transfer(t, where, state, ops, number):  # type: ignore[no-untyped-def]
    """Follows what is sent, moved, gathered or reduced."""
    op = ops[number]
    kind, tensor = op[0], op[1]
    layer = op[7] * t.layered[tensor]
    for i in range(_length(t, op[4])):
        cell0 = 0 if op[4] < 0 else t.atoms[t.list_offsets[op[4]] + i]
        for j in range(_length(t, op[5])):
            cell = cell0 * t.shape1[tensor] + (0 if op[5] < 0 else t.atoms[t.list_offsets[op[5]] + j])
            if kind == SEND:
                _read(t, where, state, ops, number, (tensor, layer, op[2], cell))
                _write(t, where, state, ops, number, (tensor, layer, op[3], cell), True)
                continue
            if kind == MOVE:
                _take(t, where, state, ops, number, (tensor, layer, op[2], cell))
                _add(t, where, state, number, (tensor, layer, op[3], cell))
                continue
            first = t.first_cell[tensor] + cell
            homes = t.homes[t.home_offsets[first] : t.home_offsets[first + 1]]
            members = t.members[t.member_offsets[op[3]] : t.member_offsets[op[3] + 1]]
            if kind == GATHER:
                for home in homes:
                    _read(t, where, state, ops, number, (tensor, layer, home, cell))
                for member in members:
                    if len(homes) > 1 or member != homes[0]:
                        _write(t, where, state, ops, number, (tensor, layer, member, cell), True)
            else:
                for member in members:
                    _take(t, where, state, ops, number, (tensor, layer, member, cell))
                for home in homes:
                    _add(t, where, state, number, (tensor, layer, home, cell))


@nb.njit(cache=True)
def _follow(t, where, ops, state):  # type: ignore[no-untyped-def]
    for number in range(len(ops)):
        if ops[number, 0] == COMPUTE:
            _compute(t, where, state, ops, number)
        elif ops[number, 0] != DROP:
            _transfer(t, where, state, ops, number)
