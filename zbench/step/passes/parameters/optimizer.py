"""The optimizer: every parameter is updated where its state is, and kept there alone where that is its home."""

import numpy as np

from zbench.describe.arrays import Ints
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
        ops += _updates(formula, weight, of, lists)
        state, everywhere = f"s{weight}", of.stage == "none"
        rests = rows.everywhere if everywhere else rows.at_home
        needs += (rows.at_home if of.gathered else rows.everywhere)(weight, weight) + rests(state, weight)
        needs += rows.gradients(weight, totals[weight], True)
        leaves += rests(state, weight, version=1) + rows.resting(weight, version=1)
    return Template(name, layout[0], Operations.of(ops), tuple(formulas), Items.of(needs), Items.of(leaves))


def _updates(formula: int, weight: str, of: ShardedParameters, lists: ListTable) -> list[list[int]]:
    """Returns the updates of a parameter: of every cell at home, or of all cells on every GPU."""
    if weight in WHOLE:
        places = (of.members(weight)[0][1] if of.stage == "none" else of.home(weight)).tolist()
        return [operation_row(COMPUTE, formula, (place, -1), [], "compute") for place in places]
    found = []
    index, count = of.slices(weight)
    home = of.home(weight).reshape(count, -1)
    for share, members in of.members(weight):
        slices = lists.number(index, [share])
        for place in members.tolist():
            shards = np.flatnonzero(home[share] == place) if of.stage != "none" else np.arange(home.shape[1])
            if len(shards):
                cells = [slices, lists.number(f"z{weight}", shards)]
                found.append(operation_row(COMPUTE, formula, (place, -1), cells, "compute"))
    return found
