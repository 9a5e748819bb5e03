"""Atoms of a template: parts of an index that stand together in every list that its operations name.

Who makes what somebody reads is the same for all parts of an atom, so data flow is followed atom by atom: a parameter's
128 shards, which a forward always names together, are one item there and not 128.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import GATHER, REDUCE
from zbench.step.template import AT_HOME, Template
from zbench.step.tensor import NATURES


class AtomTables(NamedTuple):
    """The tables that follow a template's items.

    list_offsets, atoms: compressed rows, of every list of the layout that an operation or the contract names.
    row_offsets, rows: zbench.step.layout.FormulaRows. map_offsets, maps: from atoms of a finer index to those of a
    coarser. shape0, shape1: atoms along both axes of each tensor; first_cell: where its cells of atoms begin among all.
    home_offsets, homes: compressed rows, the places where the parts of a cell of atoms are at home, of tensors that
    collectives move or contracts have at home; home_bytes: of those parts. cell_bytes: of every cell. member_offsets,
    members: the layout's own lists. nature, layered: of tensors.
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


def atom_tables(layout: StepLayout, template: Template) -> AtomTables:
    """Cuts a template's indices into atoms, and says its lists, maps and homes in them."""
    ops = template.operations
    both = template.needs, template.leaves
    named = [column for items in both for column in (items.list0, items.list1)]
    used = np.unique(np.concatenate([ops.list0, ops.list1, ops.list2, *named]))
    used = used[used >= 0].astype(np.int64)
    atom = _atoms(layout, used)
    counts = {name: int(of.max(initial=-1)) + 1 for name, of in atom.items()}
    list_offsets, atoms = _lists_of_atoms(layout, used, atom)
    maps = [_map_of_atoms(atom[one.coarse], atom[one.fine], one.part) for one in layout.maps]
    shape = [[counts[axis] for axis in one.axes] + [1, 1] for one in layout.tensors]
    shape0, shape1 = (np.array([row[at] for row in shape], np.int64) for at in (0, 1))
    collective = np.isin(ops.kind, (GATHER, REDUCE))
    moved = set(np.unique(ops.what[collective]).tolist())
    for items in both:
        moved |= set(np.unique(items.tensor[items.places == AT_HOME]).tolist())
    first_cell = np.cumsum(shape0 * shape1) - shape0 * shape1
    home_rows = _homes_of_atoms(layout, moved, atom, (shape0, shape1))
    bound = layout.bound
    return AtomTables(
        list_offsets,
        atoms,
        bound.offsets,
        bound.rows,
        *_joined(maps),
        shape0,
        shape1,
        first_cell,
        *home_rows,
        layout.lists.offsets,
        layout.lists.parts,
        np.array([NATURES.index(one.nature) for one in layout.tensors], np.int64),
        np.array([int(one.layers != "none") for one in layout.tensors], np.int64),
        _cell_bytes(layout, atom),
    )


def _cell_bytes(layout: StepLayout, atom: dict[str, Ints]) -> Ints:
    """Returns the bytes of every cell of atoms, of all tensors one after another."""
    sizes = {name: np.bincount(of, weights=layout.index[name].sizes).astype(np.int64) for name, of in atom.items()}
    found = []
    for tensor in layout.tensors:
        cells = np.full(1, tensor.unit, np.int64)
        for axis in tensor.axes:
            cells = np.multiply.outer(cells, sizes[axis]).reshape(-1)
        found.append(cells)
    return np.concatenate([*found, np.zeros(0, np.int64)])


def _joined(rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets, all rows one after another)."""
    sizes = np.cumsum([0, *(len(row) for row in rows)])
    return sizes.astype(np.int64), np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)


def _mixed(numbers: Ints) -> NDArray[np.uint64]:
    """Returns 64 bits for every number that look random and are always the same (the last steps of splitmix64, Steele,
    Lea, Flood 2014)."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), np.uint64)


def row_positions(offsets: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Returns (positions in compressed rows, sizes) of several rows one after another."""
    sizes = offsets[which + 1] - offsets[which]
    first = np.repeat(offsets[which] - (np.cumsum(sizes) - sizes), sizes)
    return first + np.arange(len(first)), sizes


def _atoms(layout: StepLayout, used: Ints) -> dict[str, Ints]:
    """Returns the atom of every part of every index. Parts with the same sum of their lists' random numbers are in the
    same lists; a map's finer index is cut so that each of its atoms lies in one of the coarser."""
    lists, found = layout.lists, {}
    for number, name in enumerate(lists.indices):
        if name not in layout.index:
            continue
        mine = used[lists.of[used] == number]
        at, sizes = row_positions(lists.offsets, mine)
        sums = np.zeros(len(layout.index[name]), np.uint64)
        np.add.at(sums, lists.parts[at], np.repeat(_mixed(mine), sizes))
        found[name] = _numbered(sums)
    for name in layout.index:
        found.setdefault(name, np.zeros(len(layout.index[name]), np.int64))
    for _ in layout.maps:  # as a coarser index may be the finer one of another map
        for one in layout.maps:
            width = int(found[one.coarse].max()) + 1
            found[one.fine] = _numbered(found[one.fine] * width + found[one.coarse][one.part])
    return found


def _numbered(values: NDArray[np.generic]) -> Ints:
    found: Ints = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found


def _lists_of_atoms(layout: StepLayout, used: Ints, atom: dict[str, Ints]) -> tuple[Ints, Ints]:
    """Returns the atoms of every list, compressed rows by list number."""
    lists = layout.lists
    sizes = np.array([len(atom.get(name, ())) for name in lists.indices], np.int64)
    begin = np.cumsum(sizes) - sizes
    of_all = np.concatenate([*(atom.get(name, np.zeros(0, np.int64)) for name in lists.indices), np.zeros(0, np.int64)])
    at, count = row_positions(lists.offsets, used)
    row = np.repeat(used, count)
    width = int(of_all.max(initial=0)) + 1
    keys = np.unique(row * width + of_all[begin[lists.of[row]] + lists.parts[at]])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(keys // width, minlength=len(lists)))])
    return offsets.astype(np.int64), (keys % width).astype(np.int64)


def _map_of_atoms(coarse: Ints, fine: Ints, part: Ints) -> Ints:
    """Returns the coarser atom of every finer one."""
    found = np.zeros(int(fine.max()) + 1, np.int64)
    found[fine] = coarse[part]
    return found


def _homes_of_atoms(
    layout: StepLayout, moved: set[int], atom: dict[str, Ints], shape: tuple[Ints, Ints]
) -> tuple[Ints, Ints, Ints]:
    """Returns the homes of every cell of atoms, compressed rows, and the bytes there, of the tensors `moved`."""
    sizes, rows, amounts = [], [], []
    for number, tensor in enumerate(layout.tensors):
        cells = int(shape[0][number] * shape[1][number])
        if number not in moved:
            sizes.append(np.zeros(cells, np.int64))
            continue
        cell = np.zeros(1, np.int64)
        for axis in tensor.axes:
            cell = np.add.outer(cell * (int(atom[axis].max()) + 1), atom[axis]).reshape(-1)
        width = int(tensor.home.max()) + 1
        keys, at = np.unique(cell * width + tensor.home, return_inverse=True)
        sizes.append(np.bincount(keys // width, minlength=cells))
        rows.append(keys % width)
        amounts.append(np.bincount(at.reshape(-1), weights=tensor.cell_bytes(layout.index)).astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([*sizes, np.zeros(0, np.int64)]))])
    none = np.zeros(0, np.int64)
    return offsets.astype(np.int64), np.concatenate([*rows, none]), np.concatenate([*amounts, none])
