"""The rule of coverage: operations of a formula compute each combination of parts exactly once; compiled.

Lists of a slot are cut into atoms, the parts that always stand together in them, so that a combination of lists that
form a partition is one key, and lists that overlap are looked at as finely as they have to be, and no finer. Where a
formula has a relation, its two slots are looked at group by group, and only pairs that meet count.
"""

from collections.abc import Sequence

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.step.operations import COMPUTE
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.items import EMPTY, find_key
from zbench.step.proof.sentences import Sentence
from zbench.step.proof.template_rows import TemplateRows
from zbench.step.proof.walk import rows_meet
from zbench.step.template import Step, Template

_OK, _TWICE, _MISSING, _SPLIT = range(4)


def formulas_fault(
    step: Step, templates: Sequence[Template], tables: WalkTables, rows: TemplateRows
) -> tuple[int, str]:
    """Returns (the first of a layout's templates whose operations do not compute every part of its formulas once, the
    sentence), (how many rows there are of, "") if all do.

    What updates state is not looked at: it may be held in several places, each of which updates its own, and versions
    say how often.
    """
    layout = step.layouts[templates[0].layout]
    lists, groups = (tables.list_offsets, tables.parts), (tables.maps.group_offsets, tables.maps.groups)
    pairs = (tables.maps.row_begin, tables.maps.partner_offsets, tables.maps.partners)
    about = layout.parts_of_slots, tables.relation, layout.form.updates
    which, formula, code, op, other, first = _first_fault(rows, about, lists, groups, pairs)
    if code == _OK:
        return len(rows.op_ends) - 1, ""
    say, slots, parts = Sentence(step, templates[which]), layout.formulas[formula].slots, first.tolist()
    if code == _SPLIT:
        index = layout.index_of(slots[other])
        return which, say.at(op, f"names a part of a group of {index}, which its relation takes as one{say.played}")
    if code == _TWICE:
        return which, say.computed_twice(op, other, parts)
    return which, say.not_computed(formula, parts)


@nb.njit(**ENTERED)
def _first_fault(rows, about, lists, groups, pairs):  # type: ignore[no-untyped-def]
    """Returns (the first template with a formula that is not computed as it has to be, the formula, the fault, the
    operation, the one before it or the slot that it splits, a part of each slot). about: the parts of formulas' slots,
    their relations, and whether they update state."""
    sizes, relations, updates = about
    for which in range(len(rows.op_ends) - 1):
        ops = rows.ops[rows.op_ends[which] : rows.op_ends[which + 1]]
        begin, mine = np.zeros(len(sizes) + 1, np.int64), np.empty(len(ops), np.int64)
        for op in ops:
            begin[op[1] + 1] += op[0] == COMPUTE
        for formula in range(len(sizes)):
            begin[formula + 1] += begin[formula]
        fill = begin[:-1].copy()
        for at in range(len(ops)):
            if ops[at, 0] == COMPUTE:
                mine[fill[ops[at, 1]]] = at
                fill[ops[at, 1]] += 1
        for formula in rows.formulas[rows.formula_ends[which] : rows.formula_ends[which + 1]]:
            if updates[formula]:
                continue
            makers = mine[begin[formula] : begin[formula + 1]]
            code, op, other, told = _fault(ops, makers, sizes[formula], relations[formula], lists, groups, pairs)
            if code != _OK:
                before = makers[other] if code == _TWICE else other
                return which, formula, code, makers[op] if op >= 0 else np.int64(-1), before, told
    return -1, np.int64(-1), _OK, np.int64(-1), np.int64(-1), np.full(3, -1, np.int64)


@nb.njit(**INNER)
def _fault(ops, makers, parts, relation, lists, groups, pairs):  # type: ignore[no-untyped-def]
    """Returns what is wrong with the operations that compute a formula, as `_covered`, or where one has a list that
    splits a group of a relation: (_SPLIT, the operation, the slot)."""
    first = _atoms(ops, makers, 0, parts, relation, lists, groups)
    if first[3] >= 0:
        return _SPLIT, first[3], np.int64(0), np.full(3, -1, np.int64)
    second = _atoms(ops, makers, 1, parts, relation, lists, groups)
    if second[3] >= 0:
        return _SPLIT, second[3], np.int64(1), np.full(3, -1, np.int64)
    third = _atoms(ops, makers, 2, parts, relation, lists, groups)
    if third[3] >= 0:
        return _SPLIT, third[3], np.int64(2), np.full(3, -1, np.int64)
    atoms, spans, rows = (
        (first[0], second[0], third[0]),
        (first[1], second[1], third[1]),
        (first[2], second[2], third[2]),
    )
    return _covered(pairs, relation, parts, atoms, spans, rows)


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
                return atom, np.int64(which)
        for at in range(offsets[which], offsets[which + 1]):
            found[groups[parts[at]]] = 0
    return atom, np.int64(-1)


@nb.njit(**INNER)
def _atoms(ops, makers, slot, sizes, relation, of_lists, of_groups):  # type: ignore[no-untyped-def]
    """Looks at a slot of a formula: returns (the atom of every part; the atoms of each operation's list as first and
    last place; these; the operation with a list that splits a group, or -1).

    makers: the operations that compute it. sizes: the parts of its slots, 0 of one that the formula has not, which is
    of one atom that all operations have. relation: of the formula. of_lists, of_groups: of WalkTables.
    """
    (offsets, parts), size, column = of_lists, sizes[slot], np.empty(len(makers), np.int64)
    spans = np.zeros((len(makers), 2), np.int64)
    if size == 0:
        spans[:, 1] = 1
        return np.zeros(1, np.int64), spans, np.zeros(1, np.int64), np.int64(-1)
    for at in range(len(makers)):
        column[at] = ops[makers[at], 4 + slot]
    groups = of_groups[1][:0, 0]
    for side in range(2):
        if relation[1 + side] == slot:
            where = of_groups[0][2 * relation[0] + side]
            groups = of_groups[1][where : where + size, 0]
    number = np.full(len(offsets), -1, np.int64)
    lists, count, most = np.empty(len(column), np.int64), 0, 0
    for which in column:
        if number[which] < 0:
            number[which] = count
            lists[count] = which
            most += offsets[which + 1] - offsets[which]
            count += 1
    wrong = np.int64(-1)
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
    split = np.int64(-1)
    for at in range(len(column)):
        spans[at, 0], spans[at, 1] = begin[number[column[at]]], begin[number[column[at]] + 1]
        if split < 0 and column[at] == wrong:
            split = np.int64(at)
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


@nb.njit(**INNER)
def _covered(pairs, relation, parts, atoms, spans, rows):  # type: ignore[no-untyped-def]
    """Marks what every operation computes: returns (fault, operation, the one before it, a part of each slot).

    parts: of each slot, 0 of a slot that the formula has not; atoms, spans, rows: of each slot, as _atoms has them.
    """
    told, wanted, most = np.full(3, -1, np.int64), 1, 0
    for slot in range(3):
        if parts[slot] > 0 and slot != relation[1] and slot != relation[2]:
            wanted *= parts[slot]
    if relation[0] >= 0:
        wanted *= pairs[1][pairs[0][relation[0] + 1]] - pairs[1][pairs[0][relation[0]]]
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
                        return _TWICE, np.int64(op), by[at], told
                    keys[at], by[at] = key, op
                    done += size0[three[0]] * size1[three[1]] * size2[three[2]]
    if done == wanted:
        return _OK, np.int64(-1), np.int64(-1), told
    for slot in range(3):
        for part in range(parts[slot]):
            if atoms[slot][part] < 0:
                told[slot] = part
                return _MISSING, np.int64(-1), np.int64(-1), told
    told = _first_missing(pairs, relation, keys, (first0, first1, first2))
    for slot in range(3):
        if parts[slot] == 0:
            told[slot] = -1
    return _MISSING, np.int64(-1), np.int64(-1), told
