"""Atoms of a template: parts of an index that stand together in every list that its operations name.

Who makes what somebody reads is the same for all parts of an atom, so data flow is followed atom by atom: a parameter's
128 shards, which a forward always names together, are one item there and not 128.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE, INNER
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.step.layout import StepLayout
from zbench.step.operations import GATHER, REDUCE
from zbench.step.proof.items import first_place
from zbench.step.template import AT_HOME, Template


class AtomTables(NamedTuple):
    """The tables that follow a template's items.

    list_offsets, atoms: compressed rows, of every list of the layout that an operation or the contract names.
    row_offsets, rows: zbench.step.form.FormulaRows. map_offsets, maps: from atoms of a finer index to those of a
    coarser. shape0, shape1: atoms along both axes of each tensor; first_cell: where its cells of atoms begin among all.
    home_offsets, homes: compressed rows, the places where the parts of a cell of atoms are at home, of tensors that
    collectives move or contracts have at home; home_bytes: of those parts. cell_bytes: of every cell. member_offsets,
    members: the layout's own lists. nature, layered, counts: of tensors, the last one as of StepLayout.
    """

    list_offsets: Ints
    atoms: Ints
    row_offsets: Ints
    rows: Ints
    map_offsets: Ints
    maps: Ints
    shape0: Ints
    shape1: Ints
    first_cell: Ints
    home_offsets: Ints
    homes: Ints
    home_bytes: Ints
    member_offsets: Ints
    members: Ints
    nature: Ints
    layered: Ints
    cell_bytes: Ints
    counts: Ints


def atom_tables(layout: StepLayout, template: Template, arrays: LayoutArrays) -> AtomTables:
    """Cuts a template's indices into atoms, and says its lists, maps and homes in them. arrays: of its layout."""
    contract = template.needs.table, template.leaves.table
    found = _tables(template.operations.table, *contract, arrays)
    (list_offsets, atoms), (map_offsets, maps), (shape0, shape1, first_cell), homes, cell_bytes = found
    home_offsets, places, home_bytes = homes
    return AtomTables(
        list_offsets,
        atoms,
        layout.bound.offsets,
        layout.bound.rows,
        map_offsets,
        maps,
        shape0,
        shape1,
        first_cell,
        home_offsets,
        places,
        home_bytes,
        layout.lists.offsets,
        layout.lists.parts,
        arrays.nature,
        layout.layered,
        cell_bytes,
        layout.counts,
    )


def row_positions(offsets: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Returns (positions in compressed rows, sizes) of several rows one after another."""
    sizes = offsets[which + 1] - offsets[which]
    first = np.repeat(offsets[which] - (np.cumsum(sizes) - sizes), sizes)
    return first + np.arange(len(first)), sizes


@nb.njit(**INNER)
def _named(ops, needs, leaves, lists, tensors):  # type: ignore[no-untyped-def]
    """Returns which lists of a layout operations or contracts name as parts, and which tensors collectives move or
    contracts have at home. lists, tensors: how many there are."""
    used, moved = np.zeros(lists, np.bool_), np.zeros(tensors, np.bool_)
    for op in ops:
        for which in (op[4], op[5], op[6]):
            if which >= 0:
                used[which] = True
        if op[0] == GATHER or op[0] == REDUCE:
            moved[op[1]] = True
    for items in (needs, leaves):
        for row in items:
            for which in (row[3], row[4]):
                if which >= 0:
                    used[which] = True
            if row[2] == AT_HOME:
                moved[row[0]] = True
    return used, moved


@nb.njit(**ENTERED)
def _tables(ops, needs, leaves, arrays):  # type: ignore[no-untyped-def]
    """Returns lists in atoms, maps in atoms, (shape0, shape1, first_cell), (home_offsets, homes, home_bytes) and
    cell_bytes, as of `AtomTables`."""
    axes, first = arrays.axes, arrays.first
    used, moved = _named(ops, needs, leaves, len(arrays.lists[0]), len(axes))
    atom, counts = _cut(used, arrays.lists, first, arrays.maps)
    shape = np.ones((len(axes), 2), np.int64)  # an axis that is not there, -1, is one atom
    for tensor in range(len(axes)):
        for axis in range(2):
            if axes[tensor, axis] >= 0:
                shape[tensor, axis] = counts[axes[tensor, axis]]
    cells = shape[:, 0] * shape[:, 1]
    cut = (atom, first, arrays.sizes, axes, shape)
    return (
        _lists_of_atoms(used, arrays.lists, atom, first),
        _maps_of_atoms(atom, counts, first, arrays.maps),
        (shape[:, 0].copy(), shape[:, 1].copy(), np.cumsum(cells) - cells),
        _homes_of_atoms(cut, arrays.unit, moved, arrays.homes, arrays.amounts),
        _cell_bytes(cut, arrays.unit, arrays.amounts),
    )


@nb.njit(**INNER)
def _mixed(number):  # type: ignore[no-untyped-def]
    """Returns 64 bits for a number that look random and are always the same (the last steps of splitmix64, Steele, Lea,
    Flood 2014)."""
    x = (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@nb.njit(**IN_PLACE)
def _numbered(values, first, found):  # type: ignore[no-untyped-def]
    """Numbers values, equal ones alike, in the order in which they first stand there; returns how many there are.
    first: room for a table of a power of two, more than twice as large."""
    size, count = 2, 0
    while size < 2 * len(values):
        size *= 2
    first[:size] = -1
    for at in range(len(values)):
        place = first_place(np.int64(values[at]), size)
        while first[place] >= 0 and values[first[place]] != values[at]:
            place = (place + 1) & (size - 1)
        if first[place] < 0:
            first[place], found[at] = at, count
            count += 1
        found[at] = found[first[place]]
    return count


@nb.njit(**INNER)
def _cut(used, lists, first, maps):  # type: ignore[no-untyped-def]
    """Returns (the atom of every part, of all indices one after another; the number of atoms of each). Parts with the
    same sum of their lists' random numbers are in the same lists.

    A map's coarser index, which formulas name by parts of the finer one, is cut where these are of other atoms: GPUs of
    one tensor-parallel group have a slice each, though no list names slices by themselves. Then the finer index is cut
    so that each of its atoms lies in one of the coarser.
    """
    of, offsets, parts = lists
    ends, map_offsets, map_parts = maps
    sums = np.zeros(first[-1], np.uint64)
    for which in range(len(used)):
        if used[which] and of[which] >= 0:
            mixed = _mixed(which)
            for at in range(offsets[which], offsets[which + 1]):
                sums[first[of[which]] + parts[at]] += mixed
    atom, counts = np.zeros(first[-1], np.int64), np.ones(len(first) - 1, np.int64)
    room = np.empty(4 * len(atom) + 2, np.int64)
    for index in range(len(counts)):
        a, b = first[index], first[index + 1]
        counts[index] = _numbered(sums[a:b], room, atom[a:b])
    for _ in range(len(ends)):  # as a finer index may be the coarser one of another map
        for row in range(len(ends)):
            coarse, fine = ends[row]
            if counts[fine] > 1:
                a, b = first[coarse], first[coarse + 1]
                within = np.empty(b - a, np.uint64)
                for at in range(b - a):
                    within[at] = _mixed(-1 - atom[a + at])
                known = np.zeros((b - a, counts[fine]), np.bool_)
                for at in range(first[fine + 1] - first[fine]):
                    part, other = map_parts[map_offsets[row] + at], atom[first[fine] + at]
                    if not known[part, other]:
                        known[part, other] = True
                        within[part] += _mixed(other)
                counts[coarse] = _numbered(within, room, atom[a:b])
    for _ in range(len(ends)):
        for row in range(len(ends)):
            coarse, fine = ends[row]
            a, b = first[fine], first[fine + 1]
            both = np.empty(b - a, np.int64)
            for at in range(b - a):
                both[at] = atom[a + at] * counts[coarse] + atom[first[coarse] + map_parts[map_offsets[row] + at]]
            counts[fine] = _numbered(both, room, atom[a:b])
    return atom, counts


@nb.njit(**INNER)
def _lists_of_atoms(used, lists, atom, first):  # type: ignore[no-untyped-def]
    """Returns the atoms of every list, compressed rows by list number, ascending in each."""
    of, offsets, parts = lists
    seen, count = np.full(len(atom) + 1, -1, np.int64), 0
    starts, found = np.zeros(len(used) + 1, np.int64), np.empty(len(parts), np.int64)
    for which in range(len(used)):
        if used[which] and of[which] >= 0:
            for at in range(offsets[which], offsets[which + 1]):
                one = atom[first[of[which]] + parts[at]]
                if seen[one] != which:
                    seen[one] = which
                    found[count] = one
                    count += 1
            found[starts[which] : count].sort()
        starts[which + 1] = count
    return starts, found[:count].copy()


@nb.njit(**INNER)
def _maps_of_atoms(atom, counts, first, maps):  # type: ignore[no-untyped-def]
    """Returns the coarser atom of every finer one, compressed rows by map."""
    ends, map_offsets, map_parts = maps
    offsets = np.zeros(len(ends) + 1, np.int64)
    for row in range(len(ends)):
        offsets[row + 1] = offsets[row] + counts[ends[row, 1]]
    found = np.zeros(offsets[-1], np.int64)
    for row in range(len(ends)):
        coarse, fine = ends[row]
        for at in range(first[fine + 1] - first[fine]):
            found[offsets[row] + atom[first[fine] + at]] = atom[first[coarse] + map_parts[map_offsets[row] + at]]
    return offsets, found


@nb.njit(**IN_PLACE)
def _cell(cut, tensor, at):  # type: ignore[no-untyped-def]
    """Returns (the cell of atoms that a cell of parts lies in, the product of its parts' sizes)."""
    atom, first, sizes, axes, shape = cut
    one, two = axes[tensor, 0], axes[tensor, 1]
    if one < 0:
        return 0, 1
    if two < 0:
        return atom[first[one] + at], sizes[first[one] + at]
    width = first[two + 1] - first[two]
    a, b = first[one] + at // width, first[two] + at % width
    return atom[a] * shape[tensor, 1] + atom[b], sizes[a] * sizes[b]


@nb.njit(**INNER)
def _homes_of_atoms(cut, unit, moved, homes, amounts):  # type: ignore[no-untyped-def]
    """Returns the homes of every cell of atoms, compressed rows, and the bytes there, of the tensors that are `moved`;
    the rest have none."""
    shape, (home_offsets, home), (amount_offsets, amount) = cut[4], homes, amounts
    total = 0
    for tensor in range(len(unit)):
        total += shape[tensor, 0] * shape[tensor, 1]
    offsets, begin, count = np.zeros(total + 1, np.int64), 0, 0
    places, held = np.empty(len(home), np.int64), np.empty(len(home), np.int64)
    for tensor in range(len(unit)):
        mine = home[home_offsets[tensor] : home_offsets[tensor + 1] if moved[tensor] else home_offsets[tensor]]
        end = begin + shape[tensor, 0] * shape[tensor, 1]
        width = 1 if len(mine) == 0 else mine.max() + 1
        keys = np.empty(len(mine), np.int64)
        for at in range(len(mine)):
            keys[at] = _cell(cut, tensor, at)[0] * width + mine[at]
        order, before = np.argsort(keys), -1
        for at in order:
            size = _cell(cut, tensor, at)[1]
            if amount_offsets[tensor + 1] > amount_offsets[tensor]:
                size = amount[amount_offsets[tensor] + at]
            if keys[at] != before:
                before = keys[at]
                places[count], held[count] = keys[at] % width, 0
                count += 1
                offsets[begin + keys[at] // width + 1] += 1
            held[count - 1] += unit[tensor] * size
        begin = end
    for cell in range(total):
        offsets[cell + 1] += offsets[cell]
    return offsets, places[:count].copy(), held[:count].copy()


@nb.njit(**ENTERED)
def bytes_at_home(arrays, places):  # type: ignore[no-untyped-def]
    """Returns the bytes of every tensor at each place where parts of it are at home, int64 [tensors, places]. arrays:
    of a layout."""
    (home_offsets, home), (amount_offsets, amount) = arrays.homes, arrays.amounts
    first, sizes, axes, unit = arrays.first, arrays.sizes, arrays.axes, arrays.unit
    found = np.zeros((len(unit), places), np.int64)
    for tensor in range(len(unit)):
        one, two, counted = axes[tensor, 0], axes[tensor, 1], amount_offsets[tensor + 1] > amount_offsets[tensor]
        width = first[two + 1] - first[two] if two >= 0 else 1
        for at in range(home_offsets[tensor + 1] - home_offsets[tensor]):
            place, size = home[home_offsets[tensor] + at], np.int64(1)
            if counted:
                size = amount[amount_offsets[tensor] + at]
            elif one >= 0:
                size = sizes[first[one] + at // width] * (sizes[first[two] + at % width] if two >= 0 else 1)
            if place >= 0:
                found[tensor, place] += unit[tensor] * size
    return found


@nb.njit(**INNER)
def _cell_bytes(cut, unit, amounts):  # type: ignore[no-untyped-def]
    """Returns the bytes of every cell of atoms, of all tensors one after another."""
    (atom, first, sizes, axes, shape), (amount_offsets, amount) = cut, amounts
    total = 0
    for tensor in range(len(unit)):
        total += shape[tensor, 0] * shape[tensor, 1]
    of_atom = np.zeros(len(atom), np.int64)  # the size of atom a of index i, at first[i] + a
    for index in range(len(first) - 1):
        for at in range(first[index], first[index + 1]):
            of_atom[first[index] + atom[at]] += sizes[at]
    found, begin = np.zeros(total, np.int64), 0
    for tensor in range(len(unit)):
        one, two = axes[tensor, 0], axes[tensor, 1]
        cells = shape[tensor, 0] * shape[tensor, 1]
        if amount_offsets[tensor + 1] > amount_offsets[tensor]:
            for at in range(amount_offsets[tensor + 1] - amount_offsets[tensor]):
                found[begin + _cell(cut, tensor, at)[0]] += unit[tensor] * amount[amount_offsets[tensor] + at]
        else:
            for i in range(shape[tensor, 0]):
                for j in range(shape[tensor, 1]):
                    size = unit[tensor]
                    if one >= 0:
                        size *= of_atom[first[one] + i]
                    if two >= 0:
                        size *= of_atom[first[two] + j]
                    found[begin + i * shape[tensor, 1] + j] = size
        begin += cells
    return found
