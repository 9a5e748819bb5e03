"""Walks operations in order and follows every item that they touch; compiled, linear in touches."""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED_IN_PLACE, INLINED
from zbench.step.form import ADD, READ, WRITE
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND
from zbench.step.proof.item_rules import (
    COUNTS,
    FIRST_CELL,
    HIGHEST,
    HOME,
    LAYERED,
    LOWEST,
    NATURE,
    NO_HOME,
    NO_LAYER,
    NO_SUM,
    OK,
    SHAPE0,
    SHAPE1,
    add_contributions,
    note_fault,
    read_item,
    send_copy,
    take_sum,
    update_state,
    write_copy,
)
from zbench.step.tensor import SUM


@nb.njit(**INLINED)
def rows_meet(pairs, relation, first, second):  # type: ignore[no-untyped-def]
    """Returns whether two groups of a relation meet. pairs: row_begin, partner_offsets and partners of WalkTables."""
    row = pairs[0][relation] + first
    low, high = pairs[1][row], pairs[1][row + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if pairs[2][middle] < second:
            low = middle + 1
        else:
            high = middle
    return low < end and pairs[2][low] == second


@nb.njit(**INLINED)
def _partners(t, relation, part, is_second, which):  # type: ignore[no-untyped-def]
    """Counts the groups of a list that a part meets; is_second: whether the part is of the second index."""
    count, mine = 0, t.maps.groups[t.maps.group_offsets[2 * relation + is_second] + part, 0]
    begin = t.maps.group_offsets[2 * relation + 1 - is_second]
    for at in range(t.list_offsets[which], t.list_offsets[which + 1]):
        other = begin + t.parts[at]
        if t.maps.groups[other, 1]:
            theirs = t.maps.groups[other, 0]
            first, second = (theirs, mine) if is_second else (mine, theirs)
            count += rows_meet((t.maps.row_begin, t.maps.partner_offsets, t.maps.partners), relation, first, second)
    return count


@nb.njit(**INLINED)
def _amount(t, op, slots, parts):  # type: ignore[no-untyped-def]
    """Returns the contributions that an operation makes to the cell with some parts of slots, which its other slots
    have; a slot of -1 is none."""
    amount = 1
    first, second = t.relation[op[1], 1], t.relation[op[1], 2]
    has_first, has_second = first in slots, second in slots
    for slot in range(3):
        if op[4 + slot] >= 0 and slot not in slots and slot != first and slot != second:
            amount *= t.list_offsets[op[4 + slot] + 1] - t.list_offsets[op[4 + slot]]
    if first < 0 or (has_first and has_second):
        return amount
    relation = t.relation[op[1], 0]
    if has_first or has_second:
        which = first if has_first else second
        part = parts[0] if slots[0] == which else parts[1]
        return amount * _partners(t, relation, part, 1 - int(has_first), op[4 + (second if has_first else first)])
    pairs = 0
    for at in range(t.list_offsets[op[4 + first]], t.list_offsets[op[4 + first] + 1]):
        if t.maps.groups[t.maps.group_offsets[2 * relation] + t.parts[at], 1]:
            pairs += _partners(t, relation, t.parts[at], 0, op[4 + second])
    return amount * pairs


@nb.njit(**INLINED)
def _row(t, state, op, number, row, version, layer, place):  # type: ignore[no-untyped-def]
    """Does to items what one reference of a formula says, for an operation `number`."""
    does, tensor, slots = t.rows[row, 0], t.rows[row, 1], (t.rows[row, 3], t.rows[row, 5])
    relation, first, second = t.relation[op[1], 0], t.relation[op[1], 1], t.relation[op[1], 2]
    about = t.tensors[tensor]
    layer = (layer + t.rows[row, 2]) * about[LAYERED]
    if not about[LOWEST] <= layer <= about[HIGHEST]:
        note_fault(state, NO_LAYER, (number, tensor, layer, place, np.int64(0)), 0, 0)
        return
    both = relation >= 0 and first in slots and second in slots
    varies = relation >= 0 and not both and does == ADD
    amount = 0 if varies or does != ADD else _amount(t, op, slots, slots)
    begin0 = 0 if slots[0] < 0 else t.list_offsets[op[4 + slots[0]]]
    begin1 = 0 if slots[1] < 0 else t.list_offsets[op[4 + slots[1]]]
    count0 = about[SHAPE0] if slots[0] < 0 else t.list_offsets[op[4 + slots[0]] + 1] - begin0
    count1 = about[SHAPE1] if slots[1] < 0 else t.list_offsets[op[4 + slots[1]] + 1] - begin1
    by_first = varies and (slots[0] == first or slots[0] == second)
    for i in range(count0):
        part0 = i if slots[0] < 0 else t.parts[begin0 + i]
        cell0 = part0 if t.rows[row, 4] < 0 else t.maps.maps[t.maps.map_offsets[t.rows[row, 4]] + part0]
        for j in range(count1):
            part1 = j if slots[1] < 0 else t.parts[begin1 + j]
            if both:
                one, two = (part0, part1) if slots[0] == first else (part1, part0)
                groups = t.maps.group_offsets[2 * relation], t.maps.group_offsets[2 * relation + 1]
                if not rows_meet(
                    (t.maps.row_begin, t.maps.partner_offsets, t.maps.partners),
                    relation,
                    t.maps.groups[groups[0] + one, 0],
                    t.maps.groups[groups[1] + two, 0],
                ):
                    continue
            cell1 = part1 if t.rows[row, 6] < 0 else t.maps.maps[t.maps.map_offsets[t.rows[row, 6]] + part1]
            item = (number, tensor, layer, place, cell0 * about[SHAPE1] + cell1)
            if does == READ:
                at = read_item(t, state, item, version)
                if at >= 0:
                    state.hops[tensor] = max(state.hops[tensor], state.items[at].hops)
            elif does == WRITE:
                write_copy(t, state, item)
            elif does == ADD:
                if varies and (j == 0 or not by_first):
                    amount = _amount(t, op, slots, (part0, part1))
                add_contributions(t, state, item, amount, 0)  # nothing but zeros, where parts of both lists do not meet
            else:
                update_state(t, state, item, version)


@nb.njit(**INLINED)
def _transfer(t, state, op, number, layer, version):  # type: ignore[no-untyped-def]
    """Follows a send, move, gather, reduce or drop of cells."""
    kind, tensor, encoding = op[0], op[1], op[10]
    about = t.tensors[tensor]
    layer *= about[LAYERED]
    if not about[LOWEST] <= layer <= about[HIGHEST]:
        return  # of a layer that is not there, as what the last one would fetch ahead
    zero = np.int64(0)
    if kind in (MOVE, REDUCE) and about[NATURE] != SUM:
        note_fault(state, NO_SUM, (number, tensor, layer, zero, zero), 0, 0)
        return
    begin0 = 0 if op[4] < 0 else t.list_offsets[op[4]]
    begin1 = 0 if op[5] < 0 else t.list_offsets[op[5]]
    count0 = 1 if op[4] < 0 else t.list_offsets[op[4] + 1] - begin0
    count1 = 1 if op[5] < 0 else t.list_offsets[op[5] + 1] - begin1
    collective = kind in (GATHER, REDUCE)
    first = t.list_offsets[op[3]] if collective else 0
    ends = t.list_offsets[op[3] + 1] - first if collective else 1
    every = op[2] if collective else -1
    for i in range(count0):
        cell0 = 0 if op[4] < 0 else t.parts[begin0 + i]
        for j in range(count1):
            cell = cell0 * about[SHAPE1] + (0 if op[5] < 0 else t.parts[begin1 + j])
            home = t.cells[about[FIRST_CELL] + cell, HOME]
            if collective and home < 0:
                note_fault(state, NO_HOME, (number, tensor, layer, zero, cell), 0, 0)
                return
            if every > 0:
                home = t.parts[first] // every * every + home % every
            for at in range(ends):
                one, two = op[2], op[3]
                if collective:
                    one, two = home, t.parts[first + at]
                    if one == two:
                        continue
                    if kind == REDUCE:
                        one, two = two, one
                item = (number, tensor, layer, one, cell)
                if about[COUNTS] >= 0 and kind != DROP:  # whoever is sent rows knows how many
                    read_item(t, state, (number, about[COUNTS], layer, two, cell), version)
                if kind in (SEND, GATHER):
                    send_copy(t, state, item, two, version, encoding)
                elif kind == DROP:
                    where = read_item(t, state, item, version)
                    if where >= 0:
                        state.items[where].flags = 0
                else:
                    take_sum(t, state, item, two, encoding, kind == MOVE)


@nb.njit(**ENTERED_IN_PLACE)
def walk_items(t, ops, shift, update, state):  # type: ignore[no-untyped-def]
    """Follows operations until the first fault. ops: int64 [n, columns]; shift: added to their layers; update: to the
    versions that they name."""
    for number in range(len(ops)):
        op = ops[number]
        layer, version = op[7] + shift, op[9] + update
        if op[0] == COMPUTE:
            for row in range(t.row_offsets[op[1]], t.row_offsets[op[1] + 1]):
                _row(t, state, op, number, row, version, layer, op[2])
        else:
            _transfer(t, state, op, number, layer, version)
        if state.fault[0] != OK:
            return
