"""Makes the tables that a walk reads, of a step's layouts, and expands contracts into items."""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.item_rules import WalkTables
from zbench.step.template import AT_HOME, Items, Step
from zbench.step.tensor import NATURES


class ItemRows(NamedTuple):
    """The items of a contract, one a row, by tensor, layer, place and cell. entry: the contract's that names it."""

    tensor: Ints
    layer: Ints
    place: Ints
    cell: Ints
    contributions: Ints
    version: Ints
    hops: Ints
    entry: Ints


def offsets_of(rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets, all rows one after another)."""
    sizes = np.array([len(row) for row in rows], np.int64)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.concatenate([*rows, np.zeros(0, np.int64)])


def whole_counts(step: Step) -> list[tuple[Ints, ...]]:
    """Returns, by layout and tensor, the contributions that make each cell of a sum complete.

    What is of a micro-batch is completed by its formulas, and what is of the step by those of all micro-batches.
    """
    totals: dict[str, Ints] = {}
    for layout in step.layouts:
        for at, tensor in enumerate(layout.tensors):
            if not layout.of_batch(at):
                totals[tensor.name] = totals.get(tensor.name, 0) + layout.contributions[at]
    return [
        tuple(
            layout.contributions[at] if layout.of_batch(at) else totals[tensor.name]
            for at, tensor in enumerate(layout.tensors)
        )
        for layout in step.layouts
    ]


def walk_tables(
    step: Step, layout: StepLayout, counts: tuple[Ints, ...], layers: tuple[Ints, Ints], base: Ints | None = None
) -> WalkTables:
    """Makes the tables of a layout. layers: the lowest and the highest of each tensor; base: where keys of each begin
    (one tensor's after another's if it is not given)."""
    shapes = np.array([layout.shape(at) for at in range(len(layout.tensors))], np.int64).reshape(-1, 2)
    cells = shapes.prod(axis=1)
    lowest, highest = layers
    if base is None:
        room = cells * step.num_places * (highest - lowest + 1)
        base = np.cumsum(room) - room
    map_offsets, maps = offsets_of([one.part for one in layout.maps])
    sides = [side for one in layout.relations for side in (one.first_group, one.second_group)]
    group_offsets, groups = offsets_of(sides)
    leads = np.zeros(len(groups), bool)
    for at, side in enumerate(sides):
        leads[group_offsets[at] + np.unique(side, return_index=True)[1]] = True
    row_begin, partner_offsets, partners = _partner_rows(layout)
    bound = layout.bound
    return WalkTables(
        layout.lists.offsets, layout.lists.parts, bound.offsets, bound.rows, bound.relation,
        shapes[:, 0].copy(), shapes[:, 1].copy(),
        np.array([NATURES.index(one.nature) for one in layout.tensors], np.int64),
        base, np.cumsum(cells) - cells,
        np.array([int(one.layers != "none") for one in layout.tensors], np.int64), lowest, highest,
        np.concatenate([*counts, np.zeros(0, np.int64)]),
        np.concatenate([*(one.home for one in layout.tensors), np.zeros(0, np.int64)]),
        map_offsets, maps, group_offsets, groups, leads, row_begin, partner_offsets, partners,
        np.array([one.lossy for one in step.encodings], bool), step.num_places,
    )  # fmt: skip


def _partner_rows(layout: StepLayout) -> tuple[Ints, Ints, Ints]:
    """Returns the rows of all relations one below another: (where each begins, offsets, partners)."""
    begin, offsets, partners, count = [], [np.zeros(1, np.int64)], [], 0
    for one in layout.relations:
        begin.append(sum(len(rows) for rows in offsets) - 1)
        offsets.append(one.offsets[1:] + count)
        partners.append(one.partners)
        count += len(one.partners)
    return (
        np.array(begin, np.int64),
        np.concatenate(offsets).astype(np.int64),
        np.concatenate([*partners, np.zeros(0, np.int64)]).astype(np.int64),
    )


def item_rows(layout: StepLayout, items: Items, tables: WalkTables) -> ItemRows:
    """Returns the items of a contract, sorted; COMPLETE stays as it is."""
    table = items.table()
    rows = _expanded(table, tables.list_offsets, tables.parts, tables.shape1, tables.first_cell, tables.home)
    order = np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))
    return ItemRows(*np.ascontiguousarray(rows[order].T))


@nb.njit(cache=True)
def _expanded(entries, offsets, parts, shape1, first_cell, home):  # type: ignore[no-untyped-def]
    """Returns the items of contract entries, int64 [items, 8], in the columns of ItemRows."""
    total = 0
    for entry in range(len(entries)):
        total += _times(entries[entry], offsets)
    found, count = np.empty((total, 8), np.int64), 0
    for entry in range(len(entries)):
        row = entries[entry]
        count0 = 1 if row[3] < 0 else offsets[row[3] + 1] - offsets[row[3]]
        count1 = 1 if row[4] < 0 else offsets[row[4] + 1] - offsets[row[4]]
        places = 1 if row[2] == AT_HOME else offsets[row[2] + 1] - offsets[row[2]]
        for i in range(count0):
            cell0 = 0 if row[3] < 0 else parts[offsets[row[3]] + i]
            for j in range(count1):
                cell = cell0 * shape1[row[0]] + (0 if row[4] < 0 else parts[offsets[row[4]] + j])
                for at in range(places):
                    place = home[first_cell[row[0]] + cell] if row[2] == AT_HOME else parts[offsets[row[2]] + at]
                    found[count, 0], found[count, 1], found[count, 2], found[count, 3] = row[0], row[1], place, cell
                    found[count, 4], found[count, 5], found[count, 6], found[count, 7] = row[5], row[6], row[7], entry
                    count += 1
    return found


@nb.njit(cache=True)
def _times(row, offsets):  # type: ignore[no-untyped-def]
    """Counts the items of a contract entry."""
    product = 1
    for column in range(2, 5):
        if row[column] >= 0:
            product *= offsets[row[column] + 1] - offsets[row[column]]
    return product
