"""The rule of coverage: operations of a formula compute each combination of parts exactly once; compiled.

Lists of a slot are cut into atoms, the parts that always stand together in them, so that a combination of lists that
form a partition is one key, and lists that overlap are looked at as finely as they have to be, and no finer. Where a
formula has a relation, its two slots are looked at group by group, and only pairs that meet count.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import INNER
from zbench.step.layout import StepLayout
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.items import EMPTY, find_key
from zbench.step.proof.walk import rows_meet

_OK, _TWICE, _MISSING = range(3)


def formula_fault(
    layout: StepLayout, tables: WalkTables, formula: int, operations: Ints, mine: Ints
) -> tuple[int, str]:
    """Returns (operation, what is wrong), (-1, "") if the operations compute every part of a formula once.

    operations: their rows; mine: the numbers of those that compute the formula. An operation is -1 where none is to
    blame, as where a part is missing.
    """
    parts, label = layout.parts_of_slots[formula], layout.labels[formula]
    relation, slots = tables.relation[formula].tolist(), layout.formulas[formula].slots
    looked = []
    for slot, size in enumerate(parts.tolist()):
        side = tables.group_offsets[2 * relation[0] + relation.index(slot, 1) - 1] if slot in relation[1:] else -1
        groups = tables.groups[side : side + size, 0] if side >= 0 else tables.groups[:0, 0]
        column = operations[mine, 4 + slot] if size else np.zeros(len(mine), np.int64)
        found = _atoms(tables.list_offsets, tables.parts, groups, column, size)
        if found[3] >= 0:
            word = f"names a part of a group of {layout.index_of(slots[slot])}, which its relation takes as one"
            return int(mine[found[3]]), word
        looked.append(found)
    atoms, spans, rows = (tuple(one[at] for one in looked) for at in range(3))
    pairs = (tables.row_begin, tables.partner_offsets, tables.partners)
    code, op, other, first = _covered(pairs, tables.relation[formula], parts, atoms, spans, rows)
    if code == _OK:
        return -1, ""
    where = ", ".join(f"part {part} of {slot}" for part, slot in zip(first.tolist(), slots, strict=False) if part >= 0)
    if code == _TWICE:
        where = where or "its only part"
        return int(mine[op]), f"computes {label} for {where} a second time, after operation {int(mine[other])}"
    return -1, f"{where or 'its only part'} of {label} is computed by no operation"


@nb.njit(**INNER)
def _refined(offsets, parts, lists, size):  # type: ignore[no-untyped-def]
    """Returns the atom of every part, -1 if in no list, by refinement of a partition: class 0 has the parts that no
    list had so far, and is always left."""
    number, members = 1, np.zeros(size + 2, np.int64)
    members[0] = size
    here, goes, met = np.zeros(size + 2, np.int64), np.full(size + 2, -1, np.int64), np.zeros(size + 2, np.int64)
    atom = np.zeros(size, np.int64)
    for which in lists:
        touched = 0
        for at in range(offsets[which], offsets[which + 1]):
            old = atom[parts[at]]
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
        for at in range(offsets[which], offsets[which + 1]):
            if goes[atom[parts[at]]] >= 0:
                atom[parts[at]] = goes[atom[parts[at]]]
        for at in range(touched):
            here[met[at]], goes[met[at]] = 0, -1
    for part in range(size):
        atom[part] -= 1
    return atom


@nb.njit(**INNER)
def _grouped(offsets, parts, groups, lists):  # type: ignore[no-untyped-def]
    """Returns (the group of every part, -1 if in no list; the list that has a part of a group and not all of it, or
    -1). groups: of the parts, in a relation."""
    size = len(groups)
    count, found, atom = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, -1, np.int64)
    for part in range(size):
        count[groups[part]] += 1
    for which in lists:
        for at in range(offsets[which], offsets[which + 1]):
            found[groups[parts[at]]] += 1
            atom[parts[at]] = groups[parts[at]]
        for at in range(offsets[which], offsets[which + 1]):
            if found[groups[parts[at]]] != count[groups[parts[at]]]:
                return atom, which
        for at in range(offsets[which], offsets[which + 1]):
            found[groups[parts[at]]] = 0
    return atom, -1


@nb.njit(cache=True)
def _atoms(offsets, parts, groups, column, size):  # type: ignore[no-untyped-def]
    """Looks at a slot: returns (the atom of every part; the atoms of each operation's list as first and last place;
    these; the operation with a list that splits a group, or -1).

    column: the list of every operation. groups: of the parts, where a relation has the slot, else none. size: the
    number of parts; 0 of a slot that the formula has not, which is of one atom that all operations have.
    """
    spans = np.zeros((len(column), 2), np.int64)
    if size == 0:
        spans[:, 1] = 1
        return np.zeros(1, np.int64), spans, np.zeros(1, np.int64), -1
    number = np.full(len(offsets), -1, np.int64)
    lists, count, most = np.empty(len(column), np.int64), 0, 0
    for which in column:
        if number[which] < 0:
            number[which] = count
            lists[count] = which
            most += offsets[which + 1] - offsets[which]
            count += 1
    wrong = -1
    if len(groups) == 0:
        atom = _refined(offsets, parts, lists[:count], size)
    else:
        atom, wrong = _grouped(offsets, parts, groups, lists[:count])
    begin, rows = np.zeros(count + 1, np.int64), np.empty(most, np.int64)
    seen, used = np.full(size, -1, np.int64), 0
    for at in range(count):
        for part in range(offsets[lists[at]], offsets[lists[at] + 1]):
            one = atom[parts[part]]
            if seen[one] != at:
                seen[one] = at
                rows[used] = one
                used += 1
        begin[at + 1] = used
    split = -1
    for at in range(len(column)):
        spans[at, 0], spans[at, 1] = begin[number[column[at]]], begin[number[column[at]] + 1]
        if split < 0 and column[at] == wrong:
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
def _first_missing(pairs, relation, keys, firsts):  # type: ignore[no-untyped-def]
    """Returns the first part of each slot in the first combination of atoms that is not marked."""
    told = np.full(3, -1, np.int64)
    for i in range(len(firsts[0])):
        for j in range(len(firsts[1])):
            for k in range(len(firsts[2])):
                three = (i, j, k)
                if firsts[0][i] < 0 or firsts[1][j] < 0 or firsts[2][k] < 0:
                    continue
                if relation[0] >= 0 and not rows_meet(pairs, relation[0], three[relation[1]], three[relation[2]]):
                    continue
                key = (i * len(firsts[1]) + j) * len(firsts[2]) + k
                if keys[find_key(keys, key)] != key:
                    told[0], told[1], told[2] = firsts[0][i], firsts[1][j], firsts[2][k]
                    return told
    return told


@nb.njit(cache=True)
def _covered(pairs, relation, parts, atoms, spans, rows):  # type: ignore[no-untyped-def]
    """Marks what every operation computes: returns (fault, operation, the one before it, a part of each slot).

    parts: of each slot, 0 of a slot that the formula has not; atoms, spans, rows: of each slot, as _atoms has them.
    """
    told, wanted, most = np.full(3, -1, np.int64), 1, 0
    for slot in range(3):
        if parts[slot] > 0 and slot != relation[1] and slot != relation[2]:
            wanted *= parts[slot]
    if relation[0] >= 0:
        last = pairs[0][relation[0] + 1] if relation[0] + 1 < len(pairs[0]) else len(pairs[1]) - 1
        wanted *= pairs[1][last] - pairs[1][pairs[0][relation[0]]]
    size0, first0 = _weights(atoms[0], relation[1] == 0 or relation[2] == 0)
    size1, first1 = _weights(atoms[1], relation[1] == 1 or relation[2] == 1)
    size2, first2 = _weights(atoms[2], relation[1] == 2 or relation[2] == 2)
    for op in range(len(spans[0])):
        product = spans[0][op, 1] - spans[0][op, 0]
        product *= spans[1][op, 1] - spans[1][op, 0]
        most += product * (spans[2][op, 1] - spans[2][op, 0])
    room = 16
    while room < 2 * most + 2:
        room *= 2
    keys, by, done = np.full(room, EMPTY, np.int64), np.zeros(room, np.int64), 0
    for op in range(len(spans[0])):
        for i in range(spans[0][op, 0], spans[0][op, 1]):
            for j in range(spans[1][op, 0], spans[1][op, 1]):
                for k in range(spans[2][op, 0], spans[2][op, 1]):
                    three = (rows[0][i], rows[1][j], rows[2][k])
                    if relation[0] >= 0 and not rows_meet(pairs, relation[0], three[relation[1]], three[relation[2]]):
                        continue
                    key = (three[0] * len(size1) + three[1]) * len(size2) + three[2]
                    at = find_key(keys, key)
                    if keys[at] == key:
                        told[0] = first0[three[0]] if parts[0] else -1
                        told[1] = first1[three[1]] if parts[1] else -1
                        told[2] = first2[three[2]] if parts[2] else -1
                        return _TWICE, op, by[at], told
                    keys[at], by[at] = key, op
                    done += size0[three[0]] * size1[three[1]] * size2[three[2]]
    if done == wanted:
        return _OK, -1, -1, told
    for slot in range(3):
        for part in range(parts[slot]):
            if atoms[slot][part] < 0:
                told[slot] = part
                return _MISSING, -1, -1, told
    told = _first_missing(pairs, relation, keys, (first0, first1, first2))
    for slot in range(3):
        if parts[slot] == 0:
            told[slot] = -1
    return _MISSING, -1, -1, told
