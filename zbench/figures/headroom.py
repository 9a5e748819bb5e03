"""The headroom of every system on every workload: how near the fastest possible step it comes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("headroom",)
PANELS = (1, 1)
SIZE = (WIDTH + 0.6, 6.4)


@dataclass(frozen=True, slots=True)
class BoundRatios:
    """The table that is drawn. ratio: [len(systems), len(workloads)] of bound over step; nan where a step ran out of
    memory or there is no run. Systems by their mean over workloads, the best first; one that misses a workload after
    those that do not."""

    systems: list[str]
    workloads: list[str]
    ratio: np.ndarray


def table(records: Records) -> BoundRatios:
    """Returns the bound's share of the step, of every system on every workload."""
    found = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        ratio = row["bound_ratio"]
        found[group_choice(run, "system"), group_choice(run, "workload")] = np.nan if ratio is None else ratio
    workloads = list(dict.fromkeys(workload for _, workload in found))
    systems = list(dict.fromkeys(system for system, _ in found))
    ratio = np.array([[found.get((system, workload), np.nan) for workload in workloads] for system in systems])
    missing, mean = np.isnan(ratio).sum(axis=1), np.nan_to_num(ratio).sum(axis=1) / ratio.shape[1]
    order = np.lexsort((-mean, missing))
    return BoundRatios([systems[index] for index in order], workloads, ratio[order])


def draw(axes: Sequence[Axes], table: BoundRatios) -> None:
    """Draws the table."""
    (panel,) = axes
    panel.imshow(table.ratio, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    for row, column in np.ndindex(table.ratio.shape):
        value = table.ratio[row, column]
        word = "-" if np.isnan(value) else f"{100 * value:.0f}"
        colour = "white" if value < 0.5 else "black"  # on nan, which is drawn white, too
        panel.text(column, row, word, ha="center", va="center", fontsize=8, color=colour)
    panel.set_xticks(range(len(table.workloads)), table.workloads, rotation=55, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(table.systems)), table.systems)
    panel.tick_params(length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_title("bound / step, %; -: out of memory", fontsize=8.5)
