"""Walks operations in order and follows every item that they touch; compiled, linear in touches."""

import numba as nb
import numpy as np

from zbench.step.layout import ADD, READ, UPDATE, WRITE
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.item_rules import (
    NO_HOME,
    NO_LAYER,
    NO_SUM,
    OK,
    add_contributions,
    note_fault,
    read_item,
    send_copy,
    take_sum,
    update_state,
    write_copy,
)
from zbench.step.tensor import SUM


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
        note_fault(state, NO_LAYER, (number, tensor, layer, where, 0), 0, 0)
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
                at = read_item(t, state, item, version)
                if at >= 0:
                    state.hops[tensor] = max(state.hops[tensor], state.items[at].hops)
            elif does == WRITE:
                write_copy(t, state, item)
            elif does == UPDATE:
                update_state(t, state, item, version)
            else:
                amount = amount0
                if relation >= 0 and not both and slot1 == first:
                    amount *= _partners(t, relation, part1, 0, lists[second])
                elif relation >= 0 and not both and slot1 == second:
                    amount *= _partners(t, relation, part1, 1, lists[first])
                add_contributions(t, state, item, amount, 0)  # nothing but zeros, where parts of both lists do not meet


@nb.njit(cache=True)
def _transfer(t, state, op, number, layer, version):  # type: ignore[no-untyped-def]
    """Follows a send, move, gather, reduce or drop of cells."""
    kind, tensor, encoding = op[0], op[1], op[10]
    layer *= t.layered[tensor]
    if not t.lowest[tensor] <= layer <= t.highest[tensor]:
        return  # of a layer that is not there, as what the last one would fetch ahead
    if kind in (MOVE, REDUCE) and t.nature[tensor] != SUM:
        note_fault(state, NO_SUM, (number, tensor, layer, 0, 0), 0, 0)
        return
    shape1 = t.shape1[tensor]
    count0 = 1 if op[4] < 0 else t.list_offsets[op[4] + 1] - t.list_offsets[op[4]]
    count1 = 1 if op[5] < 0 else t.list_offsets[op[5] + 1] - t.list_offsets[op[5]]
    for i in range(count0):
        cell0 = 0 if op[4] < 0 else t.parts[t.list_offsets[op[4]] + i]
        for j in range(count1):
            cell = cell0 * shape1 + (0 if op[5] < 0 else t.parts[t.list_offsets[op[5]] + j])
            if kind == SEND:
                send_copy(t, state, (number, tensor, layer, op[2], cell), op[3], version, encoding)
                continue
            if kind == DROP:
                at = read_item(t, state, (number, tensor, layer, op[2], cell), version)
                if at >= 0:
                    state.items[at].flags = 0
                continue
            if kind == MOVE:
                take_sum(t, state, (number, tensor, layer, op[2], cell), op[3], encoding, True)
                continue
            home = t.home[t.first_cell[tensor] + cell]
            if home < 0:
                note_fault(state, NO_HOME, (number, tensor, layer, 0, cell), 0, 0)
                return
            for at in range(t.list_offsets[op[3]], t.list_offsets[op[3] + 1]):
                member = t.parts[at]
                if member == home:
                    continue
                if kind == GATHER:
                    send_copy(t, state, (number, tensor, layer, home, cell), member, version, encoding)
                else:
                    take_sum(t, state, (number, tensor, layer, member, cell), home, encoding, False)


@nb.njit(cache=True)
def walk_items(t, ops, shift, update, state):  # type: ignore[no-untyped-def]
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
