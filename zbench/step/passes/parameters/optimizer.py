"""The optimizer: every parameter is updated where its state is, and kept there alone where that is its home."""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import COMPUTE, Operations, operation_row
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.zero import WHOLE, ShardedParameters
from zbench.step.template import Items, Template


def optimizer_template(
    name: str, weights: tuple[str, ...], totals: dict[str, Ints], rows: GradientRows, layout: tuple[int, StepLayout]
) -> Template:
    """Returns the template that updates parameters once: version 0 becomes version 1.

    totals: contributions of every GPU to each gradient when it is complete. layout: its number and itself.
    """
    of, lists = rows.of, rows.lists
    ops: list[list[int]] = []
    needs: list[list[int]] = []
    leaves: list[list[int]] = []
    formulas = []
    for weight in weights:
        formula = layout[1].labels.index(weight)
        formulas.append(formula)
        ops += updates_of(formula, weight, of, lists)
        state, cut = f"s{weight}", of.degrees
        needs += rows.held(weight, weight, cut.weights) + rows.held(state, weight, cut.optimizer)
        needs += rows.gradients(weight, totals[weight], True)
        leaves += rows.held(state, weight, cut.optimizer, version=1) + rows.resting(weight, version=1)
    return Template(name, layout[0], Operations.of(ops), tuple(formulas), Items.of(needs), Items.of(leaves))


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
        ends = np.cumsum(np.bincount(groups, minlength=of.num_gpus)).tolist()
        for place in members.tolist():
            group = place if degree == WORLD else place % every if degree > 1 else 0
            shards = order[ends[group - 1] if group else 0 : ends[group]]
            if shards:
                cells = [slices, lists.number(f"z{weight}", shards)]
                found.append(operation_row(COMPUTE, formula, (place, -1), cells, "compute"))
    return found
