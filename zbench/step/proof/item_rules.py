"""The rules of items: what may be done to a copy, a sum or state when; compiled.

A copy is read where it was written and is not written twice; a sum is added to until it is taken, is complete before it
is read, and stays as it is after that; state is read in the version that is named, and updated in place.
"""

from typing import NamedTuple

import numba as nb

from zbench.describe.arrays import Flags, Ints
from zbench.describe.compiled import ENTERED_INLINED, INLINED
from zbench.step.contributions import MapTables
from zbench.step.proof.items import NO_ITEM, READ_ALREADY, THERE, ItemTable, find_item
from zbench.step.tensor import STATE, SUM

OK, MISSING, TWICE, INCOMPLETE, NOTHING, AFTER_READ, VERSION, NO_SUM, NO_LAYER, NO_HOME = range(10)  # of faults
OP, TENSOR, LAYER, PLACE, CELL, HAVE, WANT, TOUCHES = range(1, 9)  # of a fault, after its code


class WalkTables(NamedTuple):
    """The tables that a walk reads, few and wide, as each array of a compiled function's arguments costs compiling.

    rows, row_offsets, relation: zbench.step.form.FormulaRows. tensors: a row each, columns SHAPE0 to COUNTS. cells:
    of all tensors, the contributions that make a cell complete, and its home. lossy: of encodings.
    """

    list_offsets: Ints
    parts: Ints
    row_offsets: Ints
    rows: Ints
    relation: Ints
    tensors: Ints
    cells: Ints
    maps: MapTables
    lossy: Flags
    num_places: int


# Columns of WalkTables.tensors. BASE: where keys begin, from 1 on; FIRST_CELL: where a tensor's cells begin;
# LAYERED: 0 of one of the step as a whole; LOWEST, HIGHEST: the layers that there are; COUNTS: the tensor, cut alike,
# that has how many rows there are, -1 where none has.
SHAPE0, SHAPE1, NATURE, BASE, FIRST_CELL, LAYERED, LOWEST, HIGHEST, COUNTS = range(9)
TOTAL, HOME = range(2)  # columns of WalkTables.cells


class WalkState(NamedTuple):
    """The state that a walk changes: items, the first fault and (TOUCHES) the touches, the hops that reads of each
    tensor saw."""

    items: ItemTable
    fault: Ints
    hops: Ints


@nb.njit(**ENTERED_INLINED)
def key_of(t, tensor, layer, place, cell):  # type: ignore[no-untyped-def]
    """Returns an item's key."""
    row = t.tensors[tensor]
    return row[BASE] + ((layer - row[LOWEST]) * t.num_places + place) * (row[SHAPE0] * row[SHAPE1]) + cell


@nb.njit(**INLINED)
def note_fault(state, code, item, have, want):  # type: ignore[no-untyped-def]
    """Notes the first fault. item: (operation, tensor, layer, place, cell)."""
    if state.fault[0] == OK:
        state.fault[0] = code
        for at in range(5):
            state.fault[1 + at] = item[at]
        state.fault[HAVE], state.fault[WANT] = have, want


@nb.njit(**INLINED)
def read_item(t, state, item, version):  # type: ignore[no-untyped-def]
    """Returns where an item is that is read or copied, or -1, noting why it cannot be."""
    _, tensor, layer, place, cell = item
    state.fault[TOUCHES] += 1
    items = state.items
    at = find_item(items, key_of(t, tensor, layer, place, cell))
    if items[at].key == NO_ITEM or items[at].flags & THERE == 0:
        note_fault(state, MISSING, item, 0, 0)
        return -1
    if t.tensors[tensor, NATURE] == SUM:
        wanted = t.cells[t.tensors[tensor, FIRST_CELL] + cell, TOTAL]
        if items[at].count != wanted:
            note_fault(state, INCOMPLETE, item, items[at].count, wanted)
            return -1
        items[at].flags |= READ_ALREADY
    elif t.tensors[tensor, NATURE] == STATE and items[at].version != version:
        note_fault(state, VERSION, item, items[at].version, version)
        return -1
    return at


@nb.njit(**INLINED)
def _put(t, state, item):  # type: ignore[no-untyped-def]
    """Returns where an item is, and makes room for one that is not there."""
    op, tensor, layer, place, cell = item
    state.fault[TOUCHES] += 1
    items = state.items
    key = key_of(t, tensor, layer, place, cell)
    at = find_item(items, key)
    if items[at].key == NO_ITEM:
        items[at].key = key
    items[at].writer = op
    return at


@nb.njit(**INLINED)
def write_copy(t, state, item):  # type: ignore[no-untyped-def]
    """Lets a formula write a copy."""
    at, items = _put(t, state, item), state.items
    if items[at].flags & THERE:
        note_fault(state, TWICE, item, 0, 0)
    items[at].flags, items[at].hops, items[at].encoding = THERE, 0, -1


@nb.njit(**INLINED)
def add_contributions(t, state, item, amount, hops):  # type: ignore[no-untyped-def]
    """Adds contributions to a sum."""
    at, items = _put(t, state, item), state.items
    if items[at].flags & READ_ALREADY:
        note_fault(state, AFTER_READ, item, 0, 0)
        return
    if items[at].flags & THERE == 0:
        items[at].flags, items[at].count, items[at].hops = THERE, 0, 0
    items[at].count += amount
    items[at].hops = max(items[at].hops, hops)
    items[at].encoding = -1


@nb.njit(**INLINED)
def update_state(t, state, item, version):  # type: ignore[no-untyped-def]
    """Updates state in place."""
    at = read_item(t, state, item, version)
    if at >= 0:
        state.items[at].version += 1
        state.items[at].hops, state.items[at].encoding = 0, -1
        state.items[at].writer = item[0]


@nb.njit(**INLINED)
def send_copy(t, state, item, dst, version, encoding):  # type: ignore[no-untyped-def]
    """Sends a copy of a complete item to another place."""
    op, tensor, layer, _, cell = item
    at, items = read_item(t, state, item, version), state.items
    if at < 0:
        return
    hops, forwards = items[at].hops, items[at].encoding == encoding
    arrived = (op, tensor, layer, dst, cell)
    to = _put(t, state, arrived)
    if items[to].flags & THERE and (t.tensors[tensor, NATURE] != STATE or items[to].version >= version):
        note_fault(state, TWICE, arrived, 0, 0)
        return
    items[to].flags = THERE | (READ_ALREADY if t.tensors[tensor, NATURE] == SUM else 0)
    items[to].count, items[to].version, items[to].encoding = items[at].count, items[at].version, encoding
    items[to].hops = hops + (1 if encoding >= 0 and t.lossy[encoding] and not forwards else 0)


@nb.njit(**INLINED)
def take_sum(t, state, item, dst, encoding, must):  # type: ignore[no-untyped-def]
    """Moves what was added to a sum to another place. must: whether there has to be something."""
    op, tensor, layer, place, cell = item
    items = state.items
    state.fault[TOUCHES] += 1
    at = find_item(items, key_of(t, tensor, layer, place, cell))
    if items[at].key == NO_ITEM or items[at].flags & THERE == 0:
        if must:
            note_fault(state, NOTHING, item, 0, 0)
        return
    if items[at].flags & READ_ALREADY:
        note_fault(state, AFTER_READ, item, 0, 0)
        return
    amount, hops = items[at].count, items[at].hops
    items[at].flags, items[at].count, items[at].hops = 0, 0, 0
    add_contributions(
        t, state, (op, tensor, layer, dst, cell), amount, hops + (1 if encoding >= 0 and t.lossy[encoding] else 0)
    )
