"""Atoms of a template: the coarsest cut in which lists and maps can still be told, against one made part by part.

Part p of an index has size 2^p, so that the bytes of a tensor of one byte along it say which parts an atom has.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.describe.arrays import Ints
from zbench.simulator.steps.dataflow.atoms import AtomTables, atom_tables, row_positions
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.step.index import Index, PartMap
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, PartLists
from zbench.step.operations import GATHER, REDUCE, SEND, Operations
from zbench.step.template import AT_HOME, Items, Template
from zbench.step.tensor import NATURES, Tensor

PLACES = 3


@dataclass(frozen=True)
class Case:
    """A layout, a template, and the numbers of the lists that it names as parts."""

    layout: StepLayout
    template: Template
    used: set[int]


@st.composite
def indices(draw: st.DrawFn) -> tuple[tuple[Index, ...], tuple[PartMap, ...]]:
    """A few indices, and maps from some of them to coarser ones before them."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    found = tuple(Index(f"i{at}", 2 ** np.arange(count)) for at, count in enumerate(counts))
    maps = []
    for fine in range(len(counts)):
        for coarse in range(fine):
            if draw(st.booleans()):
                part = draw(st.lists(st.integers(0, counts[coarse] - 1), min_size=counts[fine], max_size=counts[fine]))
                maps.append(PartMap(f"i{coarse}", f"i{fine}", np.array(part, np.int64)))
    return found, tuple(draw(st.permutations(maps)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    of, maps = draw(indices())
    probes = [
        Tensor(f"probe{at}", (one.name,), "copy", "", "none", 1, np.zeros(len(one), np.int64))
        for at, one in enumerate(of)
    ]
    tensors = [*probes, *(draw(tensor(f"x{at}", of)) for at in range(draw(st.integers(0, 3))))]
    rows, owners = [], []
    for _ in range(draw(st.integers(0, 5))):
        owner = draw(st.integers(0, len(of)))
        size = PLACES if owner == len(of) else len(of[owner])
        rows.append(sorted(draw(st.sets(st.integers(0, size - 1)))))
        owners.append(owner)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    parts = np.array([part for row in rows for part in row], np.int64)
    lists = PartLists((*(one.name for one in of), PLACE), np.array(owners, np.int64), offsets, parts)
    which, whose = st.integers(-1, len(rows) - 1), st.integers(0, len(tensors) - 1)
    ops = [
        [
            draw(st.sampled_from((SEND, GATHER, REDUCE))),
            draw(whose),
            0,
            0,
            *(draw(which) for _ in range(3)),
            0,
            1,
            0,
            -1,
            -1,
        ]
        for _ in range(draw(st.integers(0, 3)))
    ]
    entries = [
        [draw(whose), 0, draw(st.sampled_from((AT_HOME, 0))), draw(which), draw(which), 0, 0, 0]
        for _ in range(draw(st.integers(0, 3)))
    ]
    cut = draw(st.integers(0, len(entries)))
    template = Template("t", 0, Operations.of(ops), (), Items.of(entries[:cut]), Items.of(entries[cut:]))
    used = {one for row in ops for one in row[4:7]} | {one for row in entries for one in row[3:5]}
    return Case(StepLayout(of, (), maps, (), tuple(tensors), (), lists), template, used - {-1})


@st.composite
def tensor(draw: st.DrawFn, name: str, of: tuple[Index, ...]) -> Tensor:
    """A tensor along none, one or two indices, with homes, and sometimes with amounts."""
    axes = tuple(draw(st.lists(st.sampled_from([one.name for one in of]), max_size=2)))
    size = {one.name: len(one) for one in of}
    cells = int(np.prod([size[axis] for axis in axes], dtype=np.int64))
    home = draw(st.lists(st.integers(0, PLACES - 1), min_size=cells, max_size=cells))
    amounts = draw(st.none() | st.lists(st.integers(0, 9), min_size=cells, max_size=cells))
    given = None if amounts is None else np.array(amounts, np.int64)
    unit, nature = draw(st.integers(1, 9)), draw(st.sampled_from(NATURES))
    return Tensor(name, axes, nature, "", draw(st.sampled_from(("layer", "none"))), unit, np.array(home), 0, given)


def cells_of(tables: AtomTables, tensor: int) -> slice:
    """Returns the place of a tensor's cells of atoms among all."""
    first = int(tables.first_cell[tensor])
    return slice(first, first + int(tables.shape0[tensor] * tables.shape1[tensor]))


def atoms_of(layout: StepLayout, tables: AtomTables) -> dict[str, list[int]]:
    """The atom of every part, of every index, read off the bytes of its probe."""
    found = {}
    for at, one in enumerate(layout.indices):
        held = tables.cell_bytes[cells_of(tables, at)].tolist()
        assert sum(held) == 2 ** len(one) - 1
        found[one.name] = [next(atom for atom, bits in enumerate(held) if bits >> part & 1) for part in range(len(one))]
    return found


def classes(case: Case) -> dict[str, list[object]]:
    """What tells every part of every index from others: its lists, those of the finer parts in it, and the classes of
    the coarser parts it lies in."""
    layout, named, found = case.layout, dict[str, list[object]](), dict[str, list[object]]()
    for one in reversed(layout.indices):  # finer ones come last
        mine = [at for at in sorted(case.used) if layout.lists.index_of(at) == one.name]
        below = [each for each in layout.maps if each.coarse == one.name and len(set(map(repr, named[each.fine]))) > 1]
        named[one.name] = [
            (
                tuple(part in layout.lists[at] for at in mine),
                tuple(
                    sorted({repr(named[each.fine][at]) for at in np.flatnonzero(each.part == part)}) for each in below
                ),
            )
            for part in range(len(one))
        ]
    for one in layout.indices:
        above = [each for each in layout.maps if each.fine == one.name]
        found[one.name] = [
            (named[one.name][part], tuple((each.coarse, found[each.coarse][each.part[part]]) for each in above))
            for part in range(len(one))
        ]
    return found


@settings(deadline=None, max_examples=200)
@given(cases())
def test_parts_are_together_if_nothing_tells_them_apart(case: Case) -> None:
    tables = atom_tables(case.layout, case.template, LayoutArrays.of(case.layout))
    atoms, wanted = atoms_of(case.layout, tables), classes(case)
    for name, found in atoms.items():
        pairs = set(zip(found, map(repr, wanted[name]), strict=True))
        assert len(pairs) == len(set(found)) == len(set(map(repr, wanted[name])))
        assert set(found) == set(range(len(pairs)))


@settings(deadline=None, max_examples=200)
@given(cases())
def test_lists_maps_and_cells_are_told_in_atoms(case: Case) -> None:
    layout, tables = case.layout, atom_tables(case.layout, case.template, LayoutArrays.of(case.layout))
    atoms = atoms_of(layout, tables)
    for at in range(len(layout.lists)):
        row = tables.atoms[tables.list_offsets[at] : tables.list_offsets[at + 1]].tolist()
        name = layout.lists.index_of(at)
        told = name != PLACE and at in case.used
        assert row == (sorted({atoms[name][part] for part in layout.lists[at]}) if told else [])
        assert tables.members[tables.member_offsets[at] : tables.member_offsets[at + 1]].tolist() == [*layout.lists[at]]
    for at, one in enumerate(layout.maps):
        row = tables.maps[tables.map_offsets[at] : tables.map_offsets[at + 1]]
        assert [row[atom] for atom in atoms[one.fine]] == [atoms[one.coarse][part] for part in one.part]
    moved = moved_tensors(case.template)
    for at, one in enumerate(layout.tensors):
        held, homes = by_hand(layout, one, atoms)
        mine = range(*cells_of(tables, at).indices(len(tables.cell_bytes)))
        assert [tables.cell_bytes[cell] for cell in mine] == held
        found = [slice(*tables.home_offsets[cell : cell + 2].tolist()) for cell in mine]
        told = [dict(zip(tables.homes[rows].tolist(), tables.home_bytes[rows].tolist(), strict=True)) for rows in found]
        assert told == (homes if at in moved else [{}] * len(homes))
        assert all(rows.stop - rows.start == len(places) for rows, places in zip(found, told, strict=True))
        assert (NATURES[tables.nature[at]], tables.layered[at]) == (one.nature, one.layers != "none")


def moved_tensors(template: Template) -> set[int]:
    """The tensors that collectives move or contracts have at home."""
    found = {row[1] for row in template.operations.table.tolist() if row[0] in (GATHER, REDUCE)}
    return found | {row[0] for row in template.needs.rows() + template.leaves.rows() if row[2] == AT_HOME}


def by_hand(layout: StepLayout, one: Tensor, atoms: dict[str, list[int]]) -> tuple[list[int], list[dict[int, int]]]:
    """The bytes of every cell of atoms of a tensor, and those at every place that is a home of some of it."""
    sides: list[list[int]] = [*(atoms[axis] for axis in one.axes), [0], [0]][:2]
    width = max(sides[1]) + 1
    cells = (max(sides[0]) + 1) * width
    held, homes, each = [0] * cells, [dict[int, int]() for _ in range(cells)], one.cell_bytes(layout.index)
    for number, (size, home) in enumerate(zip(each.tolist(), one.home.tolist(), strict=True)):
        cell = sides[0][number // len(sides[1])] * width + sides[1][number % len(sides[1])]
        held[cell] += size
        homes[cell][home] = homes[cell].get(home, 0) + size
    return held, homes


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6), st.data())
def test_positions_of_several_rows(rows: list[list[int]], data: st.DataObject) -> None:
    offsets: Ints = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    flat = np.array([one for row in rows for one in row], np.int64)
    which = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    positions, sizes = row_positions(offsets, np.array(which, np.int64))
    assert flat[positions].tolist() == [one for number in which for one in rows[number]]
    assert sizes.tolist() == [len(rows[number]) for number in which]
