"""The optimizer: every parameter is updated where its state is, and kept there alone where that is its home."""

from functools import partial

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, Operations, operation_row
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.weights import WHOLE
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.template import ITEM_COLUMNS, Items, Template


def optimizer_template(
    name: str, weights: tuple[str, ...], totals: dict[str, Ints], rows: GradientRows, layout: tuple[int, StepLayout]
) -> Template:
    """Returns the template that updates parameters once: version 0 becomes version 1.

    totals: contributions of every GPU to each gradient when it is complete. layout: its number and itself.
    """
    ops, needs, leaves, formulas = list[Ints](), list[Ints](), list[Ints](), list[int]()
    for weight in weights:
        formulas.append(layout[1].labels.index(weight))
        made = partial(_kept_rows, formulas[-1], weight, rows)
        updates, before, after = rows.kept(("updates", weight), made)
        gradients = np.array(rows.gradients(weight, totals[weight], True), np.int64).reshape(-1, len(ITEM_COLUMNS))
        ops.append(updates)
        needs += [before, gradients]
        leaves.append(after)
    sides = Items.of_tables(needs), Items.of_tables(leaves)
    return Template(name, layout[0], Operations.of_tables(ops), tuple(formulas), *sides)


def _kept_rows(formula: int, weight: str, rows: GradientRows) -> list[list[list[int]]]:
    """Returns the updates of a parameter, and the entries of it and its state before and after them."""
    state, cut = f"s{weight}", rows.of.degrees
    before = rows.held(weight, weight, cut.weights) + rows.held(state, weight, cut.optimizer)
    after = rows.held(state, weight, cut.optimizer, version=1) + rows.resting(weight, version=1)
    return [updates_of(formula, weight, rows.of, rows.lists), before, after]


def updates_of(formula: int, weight: str, of: ShardedParameters, lists: ListTable) -> list[list[int]]:
    """Returns the updates of a parameter: of the cells that each GPU has, as its optimizer state is cut."""
    degree, found = of.degrees.optimizer, []
    # Where state is everywhere or at home alone no run of GPUs says who has what: in pipelines a slice has any GPUs.
    every, home = of.every(weight, degree), of.home(weight)
    if weight in WHOLE:
        mine = [place for place in of.members(weight)[0][1].tolist() if degree == 1 or place % every == home[0] % every]
        places = home.tolist() if degree == WORLD else mine
        return [operation_row(COMPUTE, formula, (place, -1), [], "compute") for place in places]
    index, count = of.slices(weight)
    table = home.reshape(count, -1)
    for share, members in of.members(weight):
        slices, groups = lists.number(index, [share]), table[share] if degree == WORLD else table[share] % every
        groups = np.zeros_like(groups) if degree == 1 else groups  # all cells are everywhere
        order = np.argsort(groups, kind="stable").tolist()
        ends = np.cumsum(np.bincount(groups, minlength=max(of.num_gpus, int(members.max()) + 1))).tolist()
        for place in members.tolist():
            group = place if degree == WORLD else place % every if degree > 1 else 0
            shards = order[ends[group - 1] if group else 0 : ends[group]]
            if shards:
                cells = [slices, lists.number(f"z{weight}", shards)]
                found.append(operation_row(COMPUTE, formula, (place, -1), cells, "compute"))
    return found
