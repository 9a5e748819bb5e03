"""The rule of coverage: operations of a formula compute each combination of parts exactly once; compiled.

Lists of a slot are cut into atoms, the parts that always stand together in them, so that a combination of lists that
form a partition is one key, and lists that overlap are looked at as finely as they have to be, and no finer. Where a
formula has a relation, its two slots are looked at group by group, and only pairs that meet count.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, Operations
from zbench.step.proof.items import EMPTY, find_key

_OK, _TWICE, _SPLIT = range(3)


class _Pairs(NamedTuple):
    """A formula's relation: first and second slot, compressed rows of groups that meet; first is -1 if none."""

    first: int
    second: int
    offsets: Ints
    partners: Ints


def formula_fault(layout: StepLayout, formula: int, operations: Operations) -> tuple[int, str]:
    """Returns (operation, what is wrong), (-1, "") if the operations compute every part of a formula once.

    An operation is -1 where none is to blame, as where a part is missing.
    """
    mine = np.flatnonzero((operations.kind == COMPUTE) & (operations.what == formula))
    label, slots = layout.labels[formula], layout.formulas[formula].slots
    used = np.stack([operations.list0[mine], operations.list1[mine], operations.list2[mine]], axis=1).astype(np.int64)
    parts = [len(layout.indices[index]) if index >= 0 else 1 for index in layout.bound.slots[formula].tolist()]
    number, first, second = layout.bound.relation[formula].tolist()
    pairs = _Pairs(-1, -1, np.zeros(1, np.int64), np.zeros(0, np.int64))
    groups = [np.zeros(0, np.int64)] * 3
    total = int(np.prod([size for at, size in enumerate(parts) if at not in (first, second)]))
    if number >= 0:
        one = layout.relations[number]
        pairs = _Pairs(first, second, one.offsets, one.partners)
        groups[first], groups[second] = one.first_group, one.second_group
        total *= one.num_pairs
    atoms, rows = [], []
    for slot in range(3):
        lists = np.unique(used[:, slot]) if slot < len(slots) else np.zeros(0, np.int64)
        code, found, bad = _atoms(lists, layout.lists.offsets, layout.lists.parts, groups[slot], parts[slot])
        if code == _SPLIT:
            at = int(mine[np.argmax(used[:, slot] == bad)])
            word = f"names a part of a group of {layout.index_of(slots[slot])}, which its relation takes as one"
            return at, word
        atoms.append(found)
        rows.append(_rows(lists, layout.lists.offsets, layout.lists.parts, found, len(layout.lists)))
    sizes = tuple(_sizes(found, slot in (first, second)) for slot, found in enumerate(atoms))
    most = _combinations(used, tuple(rows), len(slots))
    keys = np.full(1 << max(int(2 * most + 2).bit_length(), 4), EMPTY, np.int64)
    by = np.zeros(len(keys), np.int64)
    done, code, op, key = _marked(used, tuple(rows), sizes, pairs, keys, by)
    if code == _TWICE:
        where = _named(layout, slots, atoms, sizes, key)
        return int(mine[op]), f"computes {label} for {where} a second time, after operation {int(mine[by[key[3]]])}"
    if done == total:
        return -1, ""
    return -1, f"{_missing(layout, slots, atoms, sizes, pairs, keys) or label} of {label} is computed by no operation"


def _named(layout: StepLayout, slots: tuple[str, ...], atoms: list[Ints], sizes: tuple[Ints, ...], key: Ints) -> str:
    """Names the first part of every atom of a combination."""
    words = [f"part {int(np.argmax(atoms[at] == key[at]))} of {slot}" for at, slot in enumerate(slots)]
    return ", ".join(words) or "its only part"


def _missing(
    layout: StepLayout, slots: tuple[str, ...], atoms: list[Ints], sizes: tuple[Ints, ...], pairs: _Pairs, keys: Ints
) -> str:
    """Names the first combination that no operation computes."""
    for at, slot in enumerate(slots):
        if (atoms[at] < 0).any():
            return f"part {int(np.argmax(atoms[at] < 0))} of {slot}"
    return _named(layout, slots, atoms, sizes, _first_missing(sizes, pairs, keys))


def _sizes(atoms: Ints, grouped: bool) -> Ints:
    """Returns the parts of each atom; groups of a relation count as one."""
    counts = np.bincount(atoms[atoms >= 0], minlength=1)
    return np.minimum(counts, 1) if grouped else counts


@nb.njit(cache=True)
def _atoms(lists, offsets, parts, group, size):  # type: ignore[no-untyped-def]
    """Returns (fault, the atom of every part, -1 if in no list; the list at fault). group: given where a relation has
    the slot: then atoms are its groups, and lists have whole ones."""
    atom = np.full(size, -1, np.int64)
    if len(lists) == 0:
        if size == 1:
            atom[0] = 0
        return _OK, atom, -1
    if len(group) > 0:
        count = np.bincount(group)
        found = np.zeros(len(count), np.int64)
        for which in lists:
            for at in range(offsets[which], offsets[which + 1]):
                found[group[parts[at]]] += 1
                atom[parts[at]] = group[parts[at]]
            for at in range(offsets[which], offsets[which + 1]):
                if found[group[parts[at]]] != count[group[parts[at]]]:
                    return _SPLIT, atom, which
            for at in range(offsets[which], offsets[which + 1]):
                found[group[parts[at]]] = 0
        return _OK, atom, -1
    # Refinement of a partition: class 0 has the parts that no list had so far, and is always left.
    number, members = 1, np.zeros(size + 2, np.int64)
    members[0] = size
    here, goes, met = np.zeros(size + 2, np.int64), np.full(size + 2, -1, np.int64), np.zeros(size + 2, np.int64)
    atom += 1
    for which in lists:
        touched = 0
        for at in range(offsets[which], offsets[which + 1]):
            old = atom[parts[at]]
            if here[old] == 0:
                met[touched] = old
                touched += 1
            here[old] += 1
        for old in met[:touched]:
            if old == 0 or here[old] < members[old]:
                goes[old] = number
                members[number] = here[old]
                members[old] -= here[old]
                number += 1
        for at in range(offsets[which], offsets[which + 1]):
            if goes[atom[parts[at]]] >= 0:
                atom[parts[at]] = goes[atom[parts[at]]]
        for old in met[:touched]:
            here[old], goes[old] = 0, -1
    return _OK, atom - 1, -1


@nb.njit(cache=True)
def _rows(lists, offsets, parts, atom, num_lists):  # type: ignore[no-untyped-def]
    """Returns (offsets by list number, atoms): those of every list, each once."""
    most = 0
    for which in lists:
        most += offsets[which + 1] - offsets[which]
    begin, found = np.zeros(num_lists + 1, np.int64), np.empty(most, np.int64)
    seen = np.full(len(atom) + 1, -1, np.int64)
    count, at_list = 0, 0
    for which in lists:
        begin[at_list : which + 1] = count
        at_list = which + 1
        for at in range(offsets[which], offsets[which + 1]):
            one = atom[parts[at]]
            if seen[one] != which:
                seen[one] = which
                found[count] = one
                count += 1
    begin[at_list:] = count
    return begin, found[:count]


@nb.njit(cache=True)
def _meet(pairs, first, second):  # type: ignore[no-untyped-def]
    """Returns whether two groups of a relation meet."""
    low, high = pairs.offsets[first], pairs.offsets[first + 1]
    while low < high:
        middle = (low + high) // 2
        if pairs.partners[middle] < second:
            low = middle + 1
        else:
            high = middle
    return low < pairs.offsets[first + 1] and pairs.partners[low] == second


@nb.njit(cache=True)
def _combinations(used, rows, slots):  # type: ignore[no-untyped-def]
    """Counts the combinations of atoms that operations name."""
    total = 0
    for op in range(len(used)):
        product = 1
        if slots > 0:
            product *= rows[0][0][used[op, 0] + 1] - rows[0][0][used[op, 0]]
        if slots > 1:
            product *= rows[1][0][used[op, 1] + 1] - rows[1][0][used[op, 1]]
        if slots > 2:
            product *= rows[2][0][used[op, 2] + 1] - rows[2][0][used[op, 2]]
        total += product
    return total


@nb.njit(cache=True)
def _marked(used, rows, sizes, pairs, keys, by):  # type: ignore[no-untyped-def]
    """Marks what every operation computes: returns (parts done, fault, operation, its atoms and place in the table)."""
    done, combination = 0, np.zeros(4, np.int64)
    for op in range(len(used)):
        begin, end = np.zeros(3, np.int64), np.ones(3, np.int64)
        if used[op, 0] >= 0:
            begin[0], end[0] = rows[0][0][used[op, 0]], rows[0][0][used[op, 0] + 1]
        if used[op, 1] >= 0:
            begin[1], end[1] = rows[1][0][used[op, 1]], rows[1][0][used[op, 1] + 1]
        if used[op, 2] >= 0:
            begin[2], end[2] = rows[2][0][used[op, 2]], rows[2][0][used[op, 2] + 1]
        for i in range(begin[0], end[0]):
            combination[0] = rows[0][1][i] if used[op, 0] >= 0 else 0
            for j in range(begin[1], end[1]):
                combination[1] = rows[1][1][j] if used[op, 1] >= 0 else 0
                for k in range(begin[2], end[2]):
                    combination[2] = rows[2][1][k] if used[op, 2] >= 0 else 0
                    if pairs.first >= 0 and not _meet(pairs, combination[pairs.first], combination[pairs.second]):
                        continue
                    key = (combination[0] * len(sizes[1]) + combination[1]) * len(sizes[2]) + combination[2]
                    at = find_key(keys, key)
                    if keys[at] == key:
                        combination[3] = at
                        return done, _TWICE, op, combination
                    keys[at], by[at] = key, op
                    done += sizes[0][combination[0]] * sizes[1][combination[1]] * sizes[2][combination[2]]
    return done, _OK, -1, combination


@nb.njit(cache=True)
def _first_missing(sizes, pairs, keys):  # type: ignore[no-untyped-def]
    """Returns the atoms of the first combination that is not marked."""
    combination = np.zeros(4, np.int64)
    for i in range(len(sizes[0])):
        for j in range(len(sizes[1])):
            for k in range(len(sizes[2])):
                combination[0], combination[1], combination[2] = i, j, k
                if pairs.first >= 0 and not _meet(pairs, combination[pairs.first], combination[pairs.second]):
                    continue
                key = (i * len(sizes[1]) + j) * len(sizes[2]) + k
                if keys[find_key(keys, key)] != key:
                    return combination
    return combination
