"""Makes the tables that a walk reads, of a step's layouts, and expands contracts into items."""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.item_rules import BASE, COUNTS, FIRST_CELL, HIGHEST, HOME, LOWEST, SHAPE0, SHAPE1, WalkTables
from zbench.step.template import AT_HOME, Items, Step
from zbench.step.tensor import NATURES


class ItemRows(NamedTuple):
    """The items of a contract, one a row, by tensor, layer, place and cell, which is the order of their keys."""

    tensor: Ints
    layer: Ints
    place: Ints
    cell: Ints
    contributions: Ints
    version: Ints
    hops: Ints
    key: Ints


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


def walk_tables(step: Step, layout: StepLayout, counts: tuple[Ints, ...]) -> WalkTables:
    """Makes the tables of a layout, for the layers of which with_layers says what there is."""
    cells = layout.shapes.prod(axis=1)
    sides = [side for one in layout.relations for side in one.groups]
    group_offsets, groups = offsets_of(sides)
    leads = np.zeros(len(groups), np.int64)
    for begin, side in zip(group_offsets[:-1], sides, strict=True):
        leads[begin + np.unique(side, return_index=True)[1]] = 1
    tensors = np.zeros((len(layout.tensors), 9), np.int64)
    tensors[:, SHAPE0 : SHAPE1 + 1] = layout.shapes
    tensors[:, 2] = [NATURES.index(one.nature) for one in layout.tensors]
    tensors[:, FIRST_CELL] = np.cumsum(cells) - cells
    tensors[:, 5] = layout.layered
    tensors[:, COUNTS] = layout.counts
    homes = np.concatenate([*(one.home for one in layout.tensors), np.zeros(0, np.int64)])
    bound = layout.bound
    return WalkTables(
        layout.lists.offsets,
        layout.lists.parts,
        bound.offsets,
        bound.rows,
        bound.relation,
        tensors,
        np.stack([np.concatenate([*counts, np.zeros(0, np.int64)]), homes], axis=1),
        *offsets_of([one.part for one in layout.maps]),
        group_offsets,
        np.stack([groups, leads], axis=1),
        *_partner_rows(layout),
        np.array([one.lossy for one in step.encodings], bool),
        step.num_places,
    )


def with_layers(tables: WalkTables, lowest: Ints, highest: Ints, base: Ints | None = None) -> WalkTables:
    """Returns tables for some layers of each tensor, of which there are those from the lowest to the highest. base:
    where keys of each begin (one tensor's after another's if it is not given)."""
    tensors = tables.tensors.copy()
    if base is None:
        room = tensors[:, SHAPE0] * tensors[:, SHAPE1] * tables.num_places * (highest - lowest + 1)
        base = np.cumsum(room) - room
    tensors[:, LOWEST], tensors[:, HIGHEST], tensors[:, BASE] = lowest, highest, base + 1  # 0 is no item
    return tables._replace(tensors=tensors)


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


def item_rows(items: Items, tables: WalkTables) -> ItemRows:
    """Returns the items of a contract, sorted; COMPLETE stays as it is."""
    rows = ItemRows(*_expanded(items.table, tables))
    if (rows.key[1:] < rows.key[:-1]).any():
        order = np.argsort(rows.key, kind="stable")
        rows = ItemRows(*(column[order] for column in rows))
    return rows


@nb.njit(cache=True)
def _expanded(entries, t):  # type: ignore[no-untyped-def]
    """Returns the items of contract entries, int64 [8, items]: the columns of ItemRows, each in one piece."""
    ends, total = np.empty((len(entries), 3), np.int64), 0
    for entry in range(len(entries)):
        product = 1
        for at in range(3):
            which = entries[entry, 2 + at]
            ends[entry, at] = 1 if which < 0 else t.list_offsets[which + 1] - t.list_offsets[which]
            product *= ends[entry, at]
        total += product
    found, count = np.empty((8, total), np.int64), 0
    for entry in range(len(entries)):
        row = entries[entry]
        about = t.tensors[row[0]]
        cells = about[SHAPE0] * about[SHAPE1]
        for at in range(ends[entry, 0]):
            for i in range(ends[entry, 1]):
                cell0 = 0 if row[3] < 0 else t.parts[t.list_offsets[row[3]] + i]
                for j in range(ends[entry, 2]):
                    cell = cell0 * about[SHAPE1] + (0 if row[4] < 0 else t.parts[t.list_offsets[row[4]] + j])
                    if row[2] == AT_HOME:
                        place = t.cells[about[FIRST_CELL] + cell, HOME]
                    else:
                        place = t.parts[t.list_offsets[row[2]] + at]
                    found[0, count], found[1, count], found[2, count], found[3, count] = row[0], row[1], place, cell
                    found[4, count], found[5, count], found[6, count] = row[5], row[6], row[7]
                    found[7, count] = about[BASE] + ((row[1] - about[LOWEST]) * t.num_places + place) * cells + cell
                    count += 1
    return found
