"""Maps and relations of a layout as tables, and the contributions that formulas make to every cell; compiled."""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, INNER
from zbench.step.index import PartMap, Relation


class MapTables(NamedTuple):
    """Maps and relations, each one after another, int64.

    map_offsets, maps: the coarser part of every part. groups: [parts, 2], of parts, the group and whether the part is
    the first of it; group_offsets: where those of the first and the second index of each relation begin. row_begin:
    where a relation's rows begin in partner_offsets, and where those of the last one end; partners: of all rows.
    """

    map_offsets: Ints
    maps: Ints
    group_offsets: Ints
    groups: Ints
    row_begin: Ints
    partner_offsets: Ints
    partners: Ints

    @staticmethod
    def of(maps: Sequence[PartMap], relations: Sequence[Relation]) -> "MapTables":
        """Makes the tables; groups and rows have to be as zbench.step.index says."""
        group_offsets, groups = offsets_of([side for one in relations for side in one.groups])
        offsets = [np.zeros(1, np.int64), *(one.offsets[1:] for one in relations)]
        partner_begin, partners = offsets_of([one.partners for one in relations])
        row_begin = np.cumsum([len(one) for one in offsets]) - 1
        more = np.repeat(partner_begin[:-1], np.diff(row_begin))
        partner_offsets = np.concatenate(offsets).astype(np.int64)
        partner_offsets[1:] += more
        return MapTables(
            *offsets_of([one.part for one in maps]),
            group_offsets,
            _with_leads(group_offsets, groups),
            row_begin,
            partner_offsets,
            partners,
        )


def offsets_of(rows: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (offsets, all rows one after another)."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)


@nb.njit(**ENTERED)
def _with_leads(offsets, groups):  # type: ignore[no-untyped-def]
    """Returns the groups of parts, and whether each part is the first one of its group."""
    found, met = np.zeros((len(groups), 2), np.int64), np.full(len(groups) + 1, -1, np.int64)
    for side in range(len(offsets) - 1):
        for part in range(offsets[side], offsets[side + 1]):
            found[part, 0] = groups[part]
            found[part, 1] = met[groups[part]] != side
            met[groups[part]] = side
    return found


@nb.njit(**ENTERED)
def contributions_of(rows, slots, relations, shapes, cells, maps):  # type: ignore[no-untyped-def]
    """Returns the contributions that formulas make to each cell of each tensor, int64 [cells of all tensors].

    rows: those that count, with their formulas, int64 [rows, 8] (FormulaRows.rows after the formula). slots: the parts
    of every formula's slots, 0 where there is none; relations: FormulaRows.relation. shapes: the parts along both axes
    of every tensor; cells: where each tensor's begin, and one more. maps: MapTables.
    """
    found = np.zeros(cells[-1], np.int64)
    for row in rows:
        formula, tensor = row[0], row[2]
        into = found[cells[tensor] : cells[tensor + 1]].reshape(shapes[tensor, 0], shapes[tensor, 1])
        relation, first, second = relations[formula]
        seen = row[4], row[6]
        both = relation >= 0 and first in seen and second in seen
        times = 1
        for slot in range(3):
            if slot not in seen and slot != first and slot != second and slots[formula, slot] > 0:
                times *= slots[formula, slot]
        if both:
            _add_pairs(into, row, slots[formula], relations[formula], times, maps)
            continue
        if relation >= 0 and first not in seen and second not in seen:
            times *= maps.partner_offsets[maps.row_begin[relation + 1]] - maps.partner_offsets[maps.row_begin[relation]]
        one = _along(row, 0, shapes[tensor, 0], slots[formula], relations[formula], maps)
        two = _along(row, 1, shapes[tensor, 1], slots[formula], relations[formula], maps)
        for i in range(len(one)):
            for j in range(len(two)):
                into[i, j] += times * one[i] * two[j]
    return found


@nb.njit(**INNER)
def _coarser(maps, which, part):  # type: ignore[no-untyped-def]
    """Returns the part of a tensor's axis that a slot's part lies in. which: the map, -1: they are of one index."""
    return part if which < 0 else maps.maps[maps.map_offsets[which] + part]


@nb.njit(**INNER)
def _along(row, axis, size, slots, relation, maps):  # type: ignore[no-untyped-def]
    """Returns the contributions along an axis of a tensor: how many parts of its slot fall on each, and, where the slot
    is of a relation, how many groups of the other slot these meet."""
    slot, which = row[4 + 2 * axis], row[5 + 2 * axis]
    if slot < 0 or (axis == 1 and slot == row[4]):
        return np.ones(size, np.int64)
    found, weights = np.zeros(size, np.int64), np.ones(slots[slot], np.int64)
    if slot == relation[1] or slot == relation[2]:
        side = 1 if slot == relation[2] else 0
        begin = maps.group_offsets[2 * relation[0] + side]
        met = _partners(relation[0], side, slots[slot], maps)
        for part in range(slots[slot]):
            weights[part] = met[maps.groups[begin + part, 0]]
    for part in range(slots[slot]):
        found[_coarser(maps, which, part)] += weights[part]
    return found


@nb.njit(**INNER)
def _partners(relation, side, most, maps):  # type: ignore[no-untyped-def]
    """Returns how many groups every group of a side of a relation meets; there are at most `most`."""
    found = np.zeros(most, np.int64)
    for row in range(maps.row_begin[relation], maps.row_begin[relation + 1]):
        for at in range(maps.partner_offsets[row], maps.partner_offsets[row + 1]):
            found[maps.partners[at] if side else row - maps.row_begin[relation]] += 1
    return found


@nb.njit(**INNER)
def _add_pairs(into, row, slots, relation, times, maps):  # type: ignore[no-untyped-def]
    """Adds the pairs of parts that meet to the cells of a tensor that has both slots of a relation."""
    turned = row[4] != relation[1]
    ones, others = (6, 4) if turned else (4, 6)  # columns of the relation's first and second slot
    begin, second = maps.group_offsets[2 * relation[0]], maps.group_offsets[2 * relation[0] + 1]
    size = slots[relation[2]]
    starts, order = np.zeros(size + 2, np.int64), np.empty(size, np.int64)  # parts of the second index by their groups
    for part in range(size):
        starts[maps.groups[second + part, 0] + 2] += 1
    for group in range(size):
        starts[group + 1] += starts[group]
    for part in range(size):
        group = maps.groups[second + part, 0]
        order[starts[group + 1]] = part
        starts[group + 1] += 1
    for part in range(slots[relation[1]]):
        line = maps.row_begin[relation[0]] + maps.groups[begin + part, 0]
        one = _coarser(maps, row[ones + 1], part)
        for at in range(maps.partner_offsets[line], maps.partner_offsets[line + 1]):
            for place in range(starts[maps.partners[at]], starts[maps.partners[at] + 1]):
                other = _coarser(maps, row[others + 1], order[place])
                if turned:
                    into[other, one] += times
                else:
                    into[one, other] += times
