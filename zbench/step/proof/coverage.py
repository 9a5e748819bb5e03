"""The rule of coverage: operations of a formula compute each combination of parts exactly once; compiled.

Lists of a slot are cut into atoms, the parts that always stand together in them, so that a combination of lists that
form a partition is one key, and lists that overlap are looked at as finely as they have to be, and no finer. Where a
formula has a relation, its two slots are looked at group by group, and only pairs that meet count.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.items import EMPTY, INNER, find_key
from zbench.step.proof.walk import groups_meet

_OK, _TWICE, _SPLIT, _MISSING = range(4)


def formula_fault(
    layout: StepLayout, tables: WalkTables, formula: int, operations: Ints, mine: Ints
) -> tuple[int, str]:
    """Returns (operation, what is wrong), (-1, "") if the operations compute every part of a formula once.

    operations: their rows; mine: the numbers of those that compute the formula. An operation is -1 where none is to
    blame, as where a part is missing.
    """
    parts = layout.parts_of_slots[formula]
    code, op, other, first = _covered(tables, operations, mine, formula, parts)
    if code == _OK:
        return -1, ""
    label, slots = layout.labels[formula], layout.formulas[formula].slots
    if code == _SPLIT:
        word = f"names a part of a group of {layout.index_of(slots[int(first[0])])}, which its relation takes as one"
        return int(op), word
    where = ", ".join(f"part {part} of {slot}" for part, slot in zip(first.tolist(), slots, strict=False) if part >= 0)
    if code == _TWICE:
        where = where or "its only part"
        return int(op), f"computes {label} for {where} a second time, after operation {int(other)}"
    return -1, f"{where or 'its only part'} of {label} is computed by no operation"


@nb.njit(**INNER)
def _refined(t, lists, size):  # type: ignore[no-untyped-def]
    """Returns the atom of every part, -1 if in no list, by refinement of a partition: class 0 has the parts that no
    list had so far, and is always left."""
    number, members = 1, np.zeros(size + 2, np.int64)
    members[0] = size
    here, goes, met = np.zeros(size + 2, np.int64), np.full(size + 2, -1, np.int64), np.zeros(size + 2, np.int64)
    atom = np.zeros(size, np.int64)
    for which in lists:
        touched = 0
        for at in range(t.list_offsets[which], t.list_offsets[which + 1]):
            old = atom[t.parts[at]]
            if here[old] == 0:
                met[touched] = old
                touched += 1
            here[old] += 1
        for at in range(touched):
            old = met[at]
            if old == 0 or here[old] < members[old]:
                goes[old] = number
                members[number] = here[old]
                members[old] -= here[old]
                number += 1
        for at in range(t.list_offsets[which], t.list_offsets[which + 1]):
            if goes[atom[t.parts[at]]] >= 0:
                atom[t.parts[at]] = goes[atom[t.parts[at]]]
        for at in range(touched):
            here[met[at]], goes[met[at]] = 0, -1
    return atom - 1


@nb.njit(**INNER)
def _grouped(t, lists, size, side):  # type: ignore[no-untyped-def]
    """Returns (the group of every part, -1 if in no list; the list that has a part of a group and not all of it, or
    -1). side: where the groups of the parts begin."""
    count, found, atom = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, -1, np.int64)
    for part in range(size):
        count[t.groups[side + part, 0]] += 1
    for which in lists:
        begin, end = t.list_offsets[which], t.list_offsets[which + 1]
        for at in range(begin, end):
            group = t.groups[side + t.parts[at], 0]
            found[group] += 1
            atom[t.parts[at]] = group
        for at in range(begin, end):
            if found[t.groups[side + t.parts[at], 0]] != count[t.groups[side + t.parts[at], 0]]:
                return atom, which
        for at in range(begin, end):
            found[t.groups[side + t.parts[at], 0]] = 0
    return atom, -1


@nb.njit(**INNER)
def _atoms(t, ops, mine, slot, size, side):  # type: ignore[no-untyped-def]
    """Looks at a slot: returns (the atom of every part; the atoms of each operation's list as first and last place;
    these; the operation with a list that splits a group, or -1). side: where a relation's groups of it begin, or -1."""
    number = np.full(len(t.list_offsets), -1, np.int64)
    lists, count, most = np.empty(len(mine), np.int64), 0, 0
    for at in range(len(mine)):
        which = ops[mine[at], 4 + slot]
        if number[which] < 0:
            number[which] = count
            lists[count] = which
            most += t.list_offsets[which + 1] - t.list_offsets[which]
            count += 1
    wrong = -1
    if side < 0:
        atom = _refined(t, lists[:count], size)
    else:
        atom, wrong = _grouped(t, lists[:count], size, side)
    begin, rows = np.zeros(count + 1, np.int64), np.empty(most, np.int64)
    seen, used = np.full(size, -1, np.int64), 0
    for at in range(count):
        for part in range(t.list_offsets[lists[at]], t.list_offsets[lists[at] + 1]):
            one = atom[t.parts[part]]
            if seen[one] != at:
                seen[one] = at
                rows[used] = one
                used += 1
        begin[at + 1] = used
    spans = np.empty((len(mine), 2), np.int64)
    split = -1
    for at in range(len(mine)):
        which = number[ops[mine[at], 4 + slot]]
        spans[at, 0], spans[at, 1] = begin[which], begin[which + 1]
        if split < 0 and ops[mine[at], 4 + slot] == wrong:
            split = at
    return atom, spans, rows, split


@nb.njit(**INNER)
def _weights(atom, grouped):  # type: ignore[no-untyped-def]
    """Returns (the parts of each atom, where groups of a relation count as one; the first part of each)."""
    size, first = np.zeros(len(atom), np.int64), np.full(len(atom), -1, np.int64)
    for part in range(len(atom)):
        if atom[part] >= 0:
            size[atom[part]] = 1 if grouped else size[atom[part]] + 1
            if first[atom[part]] < 0:
                first[atom[part]] = part
    return size, first


@nb.njit(**INNER)
def _first_missing(t, keys, firsts, relation, first, second):  # type: ignore[no-untyped-def]
    """Returns the first part of each slot in the first combination of atoms that is not marked."""
    n1, n2 = len(firsts[1]), len(firsts[2])
    told = np.full(3, -1, np.int64)
    for i in range(len(firsts[0])):
        for j in range(n1):
            for k in range(n2):
                if firsts[0][i] < 0 or firsts[1][j] < 0 or firsts[2][k] < 0:
                    continue
                three = (i, j, k)
                if relation >= 0 and not groups_meet(t, relation, three[first], three[second]):
                    continue
                key = (i * n1 + j) * n2 + k
                if keys[find_key(keys, key)] != key:
                    told[0], told[1], told[2] = firsts[0][i], firsts[1][j], firsts[2][k]
                    return told
    return told


@nb.njit(cache=True)
def _covered(t, ops, mine, formula, parts):  # type: ignore[no-untyped-def]
    """Marks what every operation computes: returns (fault, operation, the one before it, a part of each slot).

    parts: of each slot, 0 of a slot that the formula has not.
    """
    relation, first, second = t.relation[formula, 0], t.relation[formula, 1], t.relation[formula, 2]
    sides = np.full(3, -1, np.int64)
    told = np.full(3, -1, np.int64)
    wanted = 1
    for slot in range(3):
        if parts[slot] > 0 and slot != first and slot != second:
            wanted *= parts[slot]
    if relation >= 0:
        sides[first], sides[second] = t.group_offsets[2 * relation], t.group_offsets[2 * relation + 1]
        last = t.row_begin[relation + 1] if relation + 1 < len(t.row_begin) else len(t.partner_offsets) - 1
        wanted *= t.partner_offsets[last] - t.partner_offsets[t.row_begin[relation]]
    atom0, spans0, rows0, split0 = _slot(t, ops, mine, 0, parts, sides)
    atom1, spans1, rows1, split1 = _slot(t, ops, mine, 1, parts, sides)
    atom2, spans2, rows2, split2 = _slot(t, ops, mine, 2, parts, sides)
    for slot in range(3):
        split = (split0, split1, split2)[slot]
        if split >= 0:
            told[0] = slot
            return _SPLIT, mine[split], -1, told
    size0, first0 = _weights(atom0, sides[0] >= 0)
    size1, first1 = _weights(atom1, sides[1] >= 0)
    size2, first2 = _weights(atom2, sides[2] >= 0)
    most = 0
    for op in range(len(mine)):
        most += (spans0[op, 1] - spans0[op, 0]) * (spans1[op, 1] - spans1[op, 0]) * (spans2[op, 1] - spans2[op, 0])
    room = 16
    while room < 2 * most + 2:
        room *= 2
    keys, by = np.full(room, EMPTY, np.int64), np.zeros(room, np.int64)
    done = 0
    for op in range(len(mine)):
        for i in range(spans0[op, 0], spans0[op, 1]):
            for j in range(spans1[op, 0], spans1[op, 1]):
                for k in range(spans2[op, 0], spans2[op, 1]):
                    three = (rows0[i], rows1[j], rows2[k])
                    if relation >= 0 and not groups_meet(t, relation, three[first], three[second]):
                        continue
                    key = (three[0] * len(size1) + three[1]) * len(size2) + three[2]
                    at = find_key(keys, key)
                    if keys[at] == key:
                        told[0] = first0[three[0]] if parts[0] else -1
                        told[1] = first1[three[1]] if parts[1] else -1
                        told[2] = first2[three[2]] if parts[2] else -1
                        return _TWICE, mine[op], mine[by[at]], told
                    keys[at], by[at] = key, op
                    done += size0[three[0]] * size1[three[1]] * size2[three[2]]
    if done == wanted:
        return _OK, -1, -1, told
    for slot in range(3):
        atom = (atom0, atom1, atom2)[slot]
        for part in range(parts[slot]):
            if atom[part] < 0:
                told[slot] = part
                return _MISSING, -1, -1, told
    told = _first_missing(t, keys, (first0, first1, first2), relation, first, second)
    for slot in range(3):
        if parts[slot] == 0:
            told[slot] = -1
    return _MISSING, -1, -1, told


@nb.njit(**INNER)
def _slot(t, ops, mine, slot, parts, sides):  # type: ignore[no-untyped-def]
    """Looks at a slot; one that the formula has not is of one atom, which all operations have."""
    if parts[slot] > 0:
        return _atoms(t, ops, mine, slot, parts[slot], sides[slot])
    spans = np.zeros((len(mine), 2), np.int64)
    spans[:, 1] = 1
    return np.zeros(1, np.int64), spans, np.zeros(1, np.int64), -1
