"""Entries of parameters and optimizer state where a step begins and where it ends: which GPU has which part."""

from collections.abc import Callable

from zbench.describe.arrays import Ints
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.parameter_rows import moved_entries

Rows = list[list[int]]


def resting_entries(rows: GradientRows, version: int, last: int) -> Ints:
    """Returns the entries of all parameters and their optimizer state before a step, or after it.

    version: 0 before the step, 1 after it. last: the first place of the last stage, which has what is after the layers.
    """

    def of(weight: str) -> Rows:
        state = rows.held(f"s{weight}", weight, rows.of.degrees.optimizer, version=version)
        return rows.resting(weight, version) + state

    return rows.kept(("resting", version, last), lambda: [entries_of_stages(rows, last, of)])[0]


def entries_of_stages(rows: GradientRows, last: int, of: Callable[[str], Rows]) -> Rows:
    """Returns the entries that `of` has of every parameter, each on the stage that has it. last: as of
    `resting_entries`."""
    found: Rows = []
    for weight in (*rows.of.of_layers, *rows.of.outside):
        after = last and weight in rows.of.of_head
        found += moved_entries(of(weight), rows.layout, rows.lists, last) if after else of(weight)
    return found
