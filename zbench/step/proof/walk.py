"""Walks operations in order and follows every item that they touch; compiled, linear in touches.

The rules of items are here: a copy is read where it was written and is not written twice; a sum is added to until it is
taken, is complete before it is read, and stays as it is after that; state is read in the version that is named, and
updated in place. zbench.step.proof.prove says what comes of it.
"""

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import ADD, READ, UPDATE, WRITE
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.items import EMPTY, READ_ALREADY, THERE, ItemTable, find
from zbench.step.tensor import STATE, SUM

OK, MISSING, TWICE, INCOMPLETE, NOTHING, AFTER_READ, VERSION, NO_SUM, NO_LAYER, NO_HOME = range(10)  # of faults
OP, TENSOR, LAYER, PLACE, CELL, HAVE, WANT = range(1, 8)  # of a fault, after its code


class WalkTables(NamedTuple):
    """What a walk reads. Of tensors: shape0, shape1, nature, base (where its keys begin), first_cell (where its cells
    begin in total and home), layered (0: of the step as a whole), lowest and highest layer that there is. total:
    contributions that make a cell complete.

    row_offsets, rows, relation: zbench.step.layout.FormulaRows. map_offsets, maps; relation_offsets (two for each
    relation: the groups of its first and second index), groups, leads (whether a part is the first of its group);
    row_begin: where a relation's rows begin in partner_offsets. lossy: of encodings.
    """

    list_offsets: Ints
    parts: Ints
    row_offsets: Ints
    rows: Ints
    relation: Ints
    shape0: Ints
    shape1: Ints
    nature: Ints
    base: Ints
    first_cell: Ints
    layered: Ints
    lowest: Ints
    highest: Ints
    total: Ints
    home: Ints
    map_offsets: Ints
    maps: Ints
    group_offsets: Ints
    groups: Ints
    leads: Flags
    row_begin: Ints
    partner_offsets: Ints
    partners: Ints
    lossy: Flags
    num_places: int


class WalkState(NamedTuple):
    """What a walk changes: the items, the first fault, the hops that reads of every tensor saw, the touches."""

    items: ItemTable
    fault: Ints
    hops: NDArray[np.int64]
    touches: Ints


@nb.njit(cache=True)
def key_of(t, tensor, layer, place, cell):  # type: ignore[no-untyped-def]
    """Returns an item's key."""
    cells = t.shape0[tensor] * t.shape1[tensor]
    return t.base[tensor] + ((layer - t.lowest[tensor]) * t.num_places + place) * cells + cell


@nb.njit(cache=True)
def _fail(state, code, item, have, want):  # type: ignore[no-untyped-def]
    """Notes the first fault. item: (operation, tensor, layer, place, cell)."""
    if state.fault[0] == OK:
        state.fault[0] = code
        for at in range(5):
            state.fault[1 + at] = item[at]
        state.fault[HAVE], state.fault[WANT] = have, want


@nb.njit(cache=True)
def _there(t, state, item, version):  # type: ignore[no-untyped-def]
    """Returns where an item is that is read or copied, or -1, noting why it cannot be."""
    _, tensor, layer, place, cell = item
    state.touches[0] += 1
    items = state.items
    at = find(items, key_of(t, tensor, layer, place, cell))
    if items[at].key == EMPTY or items[at].flags & THERE == 0:
        _fail(state, MISSING, item, 0, 0)
        return -1
    if t.nature[tensor] == SUM:
        wanted = t.total[t.first_cell[tensor] + cell]
        if items[at].count != wanted:
            _fail(state, INCOMPLETE, item, items[at].count, wanted)
            return -1
        items[at].flags |= READ_ALREADY
    elif t.nature[tensor] == STATE and items[at].version != version:
        _fail(state, VERSION, item, items[at].version, version)
        return -1
    return at


@nb.njit(cache=True)
def _put(t, state, item):  # type: ignore[no-untyped-def]
    """Returns where an item is, and makes room for one that is not there."""
    op, tensor, layer, place, cell = item
    state.touches[0] += 1
    items = state.items
    key = key_of(t, tensor, layer, place, cell)
    at = find(items, key)
    if items[at].key == EMPTY:
        items[at].key = key
    items[at].writer = op
    return at


@nb.njit(cache=True)
def _write(t, state, item):  # type: ignore[no-untyped-def]
    """Lets a formula write a copy."""
    at, items = _put(t, state, item), state.items
    if items[at].flags & THERE:
        _fail(state, TWICE, item, 0, 0)
    items[at].flags, items[at].hops, items[at].encoding = THERE, 0, -1


@nb.njit(cache=True)
def _add(t, state, item, amount, hops):  # type: ignore[no-untyped-def]
    """Adds contributions to a sum."""
    at, items = _put(t, state, item), state.items
    if items[at].flags & READ_ALREADY:
        _fail(state, AFTER_READ, item, 0, 0)
        return
    if items[at].flags & THERE == 0:
        items[at].flags, items[at].count, items[at].hops = THERE, 0, 0
    items[at].count += amount
    items[at].hops = max(items[at].hops, hops)
    items[at].encoding = -1


@nb.njit(cache=True)
def _update(t, state, item, version):  # type: ignore[no-untyped-def]
    """Updates state in place."""
    at = _there(t, state, item, version)
    if at >= 0:
        state.items[at].version += 1
        state.items[at].hops, state.items[at].encoding = 0, -1
        state.items[at].writer = item[0]


@nb.njit(cache=True)
def _copied(t, state, item, dst, version, encoding):  # type: ignore[no-untyped-def]
    """Sends a copy of a complete item to another place."""
    op, tensor, layer, _, cell = item
    at, items = _there(t, state, item, version), state.items
    if at < 0:
        return
    hops, forwards = items[at].hops, items[at].encoding == encoding
    there = (op, tensor, layer, dst, cell)
    to = _put(t, state, there)
    if items[to].flags & THERE and (t.nature[tensor] != STATE or items[to].version >= version):
        _fail(state, TWICE, there, 0, 0)
        return
    items[to].flags = THERE | (READ_ALREADY if t.nature[tensor] == SUM else 0)
    items[to].count, items[to].version, items[to].encoding = items[at].count, items[at].version, encoding
    items[to].hops = hops + (1 if encoding >= 0 and t.lossy[encoding] and not forwards else 0)


@nb.njit(cache=True)
def _taken(t, state, item, dst, encoding, must):  # type: ignore[no-untyped-def]
    """Moves what was added to a sum to another place. must: whether there has to be something."""
    op, tensor, layer, place, cell = item
    items = state.items
    state.touches[0] += 1
    at = find(items, key_of(t, tensor, layer, place, cell))
    if items[at].key == EMPTY or items[at].flags & THERE == 0:
        if must:
            _fail(state, NOTHING, item, 0, 0)
        return
    if items[at].flags & READ_ALREADY:
        _fail(state, AFTER_READ, item, 0, 0)
        return
    amount, hops = items[at].count, items[at].hops
    items[at].flags, items[at].count, items[at].hops = 0, 0, 0
    _add(t, state, (op, tensor, layer, dst, cell), amount, hops + (1 if encoding >= 0 and t.lossy[encoding] else 0))


@nb.njit(cache=True)
def _meets(t, relation, first, second):  # type: ignore[no-untyped-def]
    """Returns whether two groups meet."""
    row = t.row_begin[relation] + first
    low, high = t.partner_offsets[row], t.partner_offsets[row + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if t.partners[middle] < second:
            low = middle + 1
        else:
            high = middle
    return low < end and t.partners[low] == second


@nb.njit(cache=True)
def _group(t, relation, second, part):  # type: ignore[no-untyped-def]
    return t.groups[t.group_offsets[2 * relation + second] + part]


@nb.njit(cache=True)
def _partners(t, relation, part, is_second, which):  # type: ignore[no-untyped-def]
    """Counts the groups of a list that a part meets; is_second: whether the part is of the second index."""
    other, count = 1 - is_second, 0
    mine = _group(t, relation, is_second, part)
    for at in range(t.list_offsets[which], t.list_offsets[which + 1]):
        if t.leads[t.group_offsets[2 * relation + other] + t.parts[at]]:
            theirs = _group(t, relation, other, t.parts[at])
            count += _meets(t, relation, theirs, mine) if is_second else _meets(t, relation, mine, theirs)
    return count


@nb.njit(cache=True)
def _row(t, state, op, number, row, lists, version, layer):  # type: ignore[no-untyped-def]
    """Does to items what one reference of a formula says, for an operation `number` with its lists."""
    does, tensor, after = t.rows[row, 0], t.rows[row, 1], t.rows[row, 2]
    slot0, slot1 = t.rows[row, 3], t.rows[row, 5]
    relation, first, second = t.relation[op[1], 0], t.relation[op[1], 1], t.relation[op[1], 2]
    times = 1
    if does == ADD:
        for slot in range(3):
            if lists[slot] >= 0 and slot != slot0 and slot != slot1 and slot != first and slot != second:
                times *= t.list_offsets[lists[slot] + 1] - t.list_offsets[lists[slot]]
    both = relation >= 0 and (slot0 == first or slot1 == first) and (slot0 == second or slot1 == second)
    count0 = t.shape0[tensor] if slot0 < 0 else t.list_offsets[lists[slot0] + 1] - t.list_offsets[lists[slot0]]
    count1 = t.shape1[tensor] if slot1 < 0 else t.list_offsets[lists[slot1] + 1] - t.list_offsets[lists[slot1]]
    where = op[2]
    layer = (layer + after) * t.layered[tensor]
    if not t.lowest[tensor] <= layer <= t.highest[tensor]:
        _fail(state, NO_LAYER, (number, tensor, layer, where, 0), 0, 0)
        return
    all_pairs = 0
    if does == ADD and relation >= 0 and slot0 != first and slot1 != first and slot0 != second and slot1 != second:
        for at in range(t.list_offsets[lists[first]], t.list_offsets[lists[first] + 1]):
            if t.leads[t.group_offsets[2 * relation] + t.parts[at]]:
                all_pairs += _partners(t, relation, t.parts[at], 0, lists[second])
    for i in range(count0):
        part0 = i if slot0 < 0 else t.parts[t.list_offsets[lists[slot0]] + i]
        amount0 = times
        if does == ADD and relation >= 0 and not both:
            if slot0 == first:
                amount0 *= _partners(t, relation, part0, 0, lists[second])
            elif slot0 == second:
                amount0 *= _partners(t, relation, part0, 1, lists[first])
            elif slot1 != first and slot1 != second:
                amount0 *= all_pairs
        cell0 = part0 if t.rows[row, 4] < 0 else t.maps[t.map_offsets[t.rows[row, 4]] + part0]
        for j in range(count1):
            part1 = j if slot1 < 0 else t.parts[t.list_offsets[lists[slot1]] + j]
            if both:
                one, two = (part0, part1) if slot0 == first else (part1, part0)
                if not _meets(t, relation, _group(t, relation, 0, one), _group(t, relation, 1, two)):
                    continue
            cell1 = part1 if t.rows[row, 6] < 0 else t.maps[t.map_offsets[t.rows[row, 6]] + part1]
            item = (number, tensor, layer, where, cell0 * t.shape1[tensor] + cell1)
            if does == READ:
                at = _there(t, state, item, version)
                if at >= 0:
                    state.hops[tensor] = max(state.hops[tensor], state.items[at].hops)
            elif does == WRITE:
                _write(t, state, item)
            elif does == UPDATE:
                _update(t, state, item, version)
            else:
                amount = amount0
                if relation >= 0 and not both and slot1 == first:
                    amount *= _partners(t, relation, part1, 0, lists[second])
                elif relation >= 0 and not both and slot1 == second:
                    amount *= _partners(t, relation, part1, 1, lists[first])
                _add(t, state, item, amount, 0)  # nothing but zeros, where parts of both lists do not meet


@nb.njit(cache=True)
def _transfer(t, state, op, number, layer, version):  # type: ignore[no-untyped-def]
    """Follows a send, move, gather, reduce or drop of cells."""
    kind, tensor, encoding = op[0], op[1], op[10]
    layer *= t.layered[tensor]
    if not t.lowest[tensor] <= layer <= t.highest[tensor]:
        return  # of a layer that is not there, as what the last one would fetch ahead
    if kind in (MOVE, REDUCE) and t.nature[tensor] != SUM:
        _fail(state, NO_SUM, (number, tensor, layer, 0, 0), 0, 0)
        return
    shape1 = t.shape1[tensor]
    count0 = 1 if op[4] < 0 else t.list_offsets[op[4] + 1] - t.list_offsets[op[4]]
    count1 = 1 if op[5] < 0 else t.list_offsets[op[5] + 1] - t.list_offsets[op[5]]
    for i in range(count0):
        cell0 = 0 if op[4] < 0 else t.parts[t.list_offsets[op[4]] + i]
        for j in range(count1):
            cell = cell0 * shape1 + (0 if op[5] < 0 else t.parts[t.list_offsets[op[5]] + j])
            if kind == SEND:
                _copied(t, state, (number, tensor, layer, op[2], cell), op[3], version, encoding)
                continue
            if kind == DROP:
                at = _there(t, state, (number, tensor, layer, op[2], cell), version)
                if at >= 0:
                    state.items[at].flags = 0
                continue
            if kind == MOVE:
                _taken(t, state, (number, tensor, layer, op[2], cell), op[3], encoding, True)
                continue
            home = t.home[t.first_cell[tensor] + cell]
            if home < 0:
                _fail(state, NO_HOME, (number, tensor, layer, 0, cell), 0, 0)
                return
            for at in range(t.list_offsets[op[3]], t.list_offsets[op[3] + 1]):
                member = t.parts[at]
                if member == home:
                    continue
                if kind == GATHER:
                    _copied(t, state, (number, tensor, layer, home, cell), member, version, encoding)
                else:
                    _taken(t, state, (number, tensor, layer, member, cell), home, encoding, False)


@nb.njit(cache=True)
def walk(t, ops, shift, update, state):  # type: ignore[no-untyped-def]
    """Follows operations until the first fault. ops: int64 [n, columns]; shift: added to their layers; update: to the
    versions that they name."""
    lists = np.empty(3, np.int64)
    for number in range(len(ops)):
        op = ops[number]
        layer, version = op[7] + shift, op[9] + update
        if op[0] == COMPUTE:
            for slot in range(3):
                lists[slot] = op[4 + slot]
            for row in range(t.row_offsets[op[1]], t.row_offsets[op[1] + 1]):
                _row(t, state, op, number, row, lists, version, layer)
        else:
            _transfer(t, state, op, number, layer, version)
        if state.fault[0] != OK:
            return
