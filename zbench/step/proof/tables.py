"""Makes the tables that a walk reads, of a step's layouts."""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.proof.item_rules import (
    BASE,
    COUNTS,
    FIRST_CELL,
    HIGHEST,
    LAYERED,
    LOWEST,
    NATURE,
    SHAPE0,
    SHAPE1,
    WalkTables,
)
from zbench.step.template import Step


def whole_counts(step: Step) -> list[Ints]:
    """Returns, by layout, the contributions that make each cell of a sum complete, int64 [cells of all tensors].

    What is of a micro-batch is completed by its formulas, and what is of the step by those of all micro-batches.
    """
    if len(step.layouts) == 1:
        return [step.layouts[0].contributions]
    totals: dict[str, Ints] = {}
    of_step = [_cells_of_step(layout) for layout in step.layouts]
    for layout, cells in zip(step.layouts, of_step, strict=True):
        for name, (begin, end) in cells.items():
            totals[name] = totals.get(name, 0) + layout.contributions[begin:end]
    found = [layout.contributions.copy() for layout in step.layouts]
    for count, cells in zip(found, of_step, strict=True):
        for name, (begin, end) in cells.items():
            count[begin:end] = totals[name]
    return found


def _cells_of_step(layout: StepLayout) -> dict[str, tuple[int, int]]:
    """Returns where the cells of a layout's tensors of the step begin and end, by name."""
    ends, of_batch = layout.first_cells.tolist(), layout.form.of_batch
    return {one.name: (ends[at], ends[at + 1]) for at, one in enumerate(layout.form.tensors) if not of_batch[at]}


def walk_tables(step: Step, layout: StepLayout, counts: Ints) -> WalkTables:
    """Makes the tables of a layout, with all layers of tensors that a template may name. counts: of whole_counts."""
    bound, form = layout.bound, layout.form
    tensors = np.zeros((len(layout.tensors), 9), np.int64)
    tensors[:, SHAPE0 : SHAPE1 + 1] = layout.shapes
    tensors[:, NATURE], tensors[:, LAYERED], tensors[:, COUNTS] = form.natures, form.layered, form.counts
    tensors[:, FIRST_CELL] = layout.first_cells[:-1]
    tables = WalkTables(
        layout.lists.offsets,
        layout.lists.parts,
        bound.offsets,
        bound.rows,
        bound.relation,
        tensors,
        np.stack([counts, layout.homes], axis=1),
        layout.map_tables,
        np.array([one.lossy for one in step.encodings], bool),
        step.num_places,
    )
    farthest = step.num_layers * form.layered
    return with_layers(tables, -farthest, farthest + form.layered)


def with_layers(tables: WalkTables, lowest: Ints, highest: Ints, base: Ints | None = None) -> WalkTables:
    """Returns tables for some layers of each tensor, of which there are those from the lowest to the highest. base:
    where keys of each begin (one tensor's after another's if it is not given)."""
    tensors = tables.tensors.copy()
    if base is None:
        room = tensors[:, SHAPE0] * tensors[:, SHAPE1] * tables.num_places * (highest - lowest + 1)
        base = np.cumsum(room) - room
    tensors[:, LOWEST], tensors[:, HIGHEST], tensors[:, BASE] = lowest, highest, base + 1  # 0 is no item
    return tables._replace(tensors=tensors)
