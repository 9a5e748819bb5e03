"""Templates of a layout side by side, for loops that look at all of them; a rule tells the first one that breaks it."""

from collections.abc import Sequence
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED
from zbench.step.proof.item_rules import BASE, FIRST_CELL, HOME, LOWEST, SHAPE0, SHAPE1, WalkTables
from zbench.step.template import AT_HOME, Items, Template


class TemplateRows(NamedTuple):
    """Operations, formulas and contracts of templates, one template after another, int64.

    ops: rows of operations, those of a template from op_ends[template] on; formulas likewise. entries: rows of what
    contracts name; contract 2 * template is what a template needs, the next one what it leaves.
    """

    ops: Ints
    op_ends: Ints
    formulas: Ints
    formula_ends: Ints
    entries: Ints
    entry_ends: Ints

    @staticmethod
    def of(templates: Sequence[Template]) -> "TemplateRows":
        """Puts templates of a layout side by side."""
        contracts = [items for one in templates for items in (one.needs, one.leaves)]
        return TemplateRows(
            *one_below_another([one.operations.table for one in templates]),
            np.array([formula for one in templates for formula in one.formulas], np.int64),
            _ends([one.formulas for one in templates]),
            *one_below_another([items.table for items in contracts]),
        )

    def first(self, count: int) -> "TemplateRows":
        """Returns the first templates alone."""
        ends = self.op_ends[: count + 1], self.formula_ends[: count + 1], self.entry_ends[: 2 * count + 1]
        return self._replace(op_ends=ends[0], formula_ends=ends[1], entry_ends=ends[2])


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


def item_rows(items: Items, tables: WalkTables) -> ItemRows:
    """Returns the items of a contract, sorted; COMPLETE stays as it is."""
    return items_of_contracts(*one_below_another([items.table]), tables)[0]


def items_of_contracts(entries: Ints, ends: Ints, tables: WalkTables) -> tuple[ItemRows, Ints]:
    """Returns the items of contracts, those of each sorted, and where each contract's begin, with one more for the end.
    entries, ends: as of TemplateRows."""
    found, ends = _expanded(entries, ends, tables)
    order = found[7] + (int(found[7].max(initial=0)) + 1) * np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    if (order[1:] < order[:-1]).any():
        found = np.take(found, np.argsort(order, kind="stable"), axis=1)
    return ItemRows(*found), ends


def _ends(rows: Sequence[Sequence[object] | Ints]) -> Ints:
    return np.cumsum([0, *map(len, rows)])


def one_below_another(tables: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns tables one below another, and where each begins, with one more for the end."""
    return np.concatenate(tables), _ends(tables)


@nb.njit(**ENTERED)
def _expanded(entries, entry_ends, t):  # type: ignore[no-untyped-def]
    """Returns the items of contracts, int64 [8, items]: the columns of ItemRows, each in one piece; and where those of
    each contract begin."""
    sizes, ends = np.empty((len(entries), 3), np.int64), np.zeros(len(entry_ends), np.int64)
    for contract in range(len(entry_ends) - 1):
        total = ends[contract]
        for entry in range(entry_ends[contract], entry_ends[contract + 1]):
            product = 1
            for at in range(3):
                which = entries[entry, 2 + at]
                sizes[entry, at] = 1 if which < 0 else t.list_offsets[which + 1] - t.list_offsets[which]
                product *= sizes[entry, at]
            total += product
        ends[contract + 1] = total
    found, count = np.empty((8, ends[-1]), np.int64), 0
    for entry in range(entry_ends[-1]):
        row = entries[entry]
        about = t.tensors[row[0]]
        cells = about[SHAPE0] * about[SHAPE1]
        for at in range(sizes[entry, 0]):
            for i in range(sizes[entry, 1]):
                cell0 = 0 if row[3] < 0 else t.parts[t.list_offsets[row[3]] + i]
                for j in range(sizes[entry, 2]):
                    cell = cell0 * about[SHAPE1] + (0 if row[4] < 0 else t.parts[t.list_offsets[row[4]] + j])
                    if row[2] == AT_HOME:
                        place = t.cells[about[FIRST_CELL] + cell, HOME]
                    else:
                        place = t.parts[t.list_offsets[row[2]] + at]
                    found[0, count], found[1, count], found[2, count], found[3, count] = row[0], row[1], place, cell
                    found[4, count], found[5, count], found[6, count] = row[5], row[6], row[7]
                    found[7, count] = about[BASE] + ((row[1] - about[LOWEST]) * t.num_places + place) * cells + cell
                    count += 1
    return found, ends
