"""The gains of a tensor-parallel group's exchanges beside matmuls over collectives by themselves, by workload and
degree."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from zbench.describe.exchanges import NONE
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREY, ORANGE, VERMILLION, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("overlap",)
PANELS = (1, 2)
SIZE = (WIDTH, 3.2)
COLOURS = {"sliced": ORANGE, "async_tp": BLUE, "commfuse": VERMILLION}
BAR = 0.26


@dataclass(frozen=True, slots=True)
class OverlapGain:
    """The gain of a method: how many times as fast it is as none. degree: of tensor parallelism."""

    degree: int
    workload: str
    method: str
    gain: float


def table(records: Records) -> list[OverlapGain]:
    """Returns the gains of methods over none, in the order of the record."""
    seconds = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        degree = int(run.start["config"]["parallel"]["tensor_parallel"])
        seconds[degree, group_choice(run, "workload"), group_choice(run, "overlap")] = row["step_seconds"]
    return [
        OverlapGain(degree, workload, method, seconds[degree, workload, NONE] / mine)
        for (degree, workload, method), mine in seconds.items()
        if method != NONE
    ]


def draw(axes: Sequence[Axes], table: Sequence[OverlapGain]) -> None:
    """Draws a panel for each degree, with a group of bars for each workload."""
    workloads = list(dict.fromkeys(one.workload for one in table))
    most = max(one.gain for one in table)
    for panel, degree in zip(axes, dict.fromkeys(one.degree for one in table), strict=False):
        for number, (method, colour) in enumerate(COLOURS.items()):
            mine = [one for one in table if (one.degree, one.method) == (degree, method)]
            at = [workloads.index(one.workload) + (number - 1) * BAR for one in mine]
            panel.bar(at, [one.gain for one in mine], BAR, color=colour, label=method)
            for x, one in zip(at, mine, strict=True):
                panel.text(x, one.gain + 0.004, f"{one.gain:.2f}", ha="center", fontsize=6.5, color=BLACK)
        panel.axhline(1, color=GREY, lw=1)
        panel.set_ylim(0.9, most + 0.05)
        panel.set_xticks(range(len(workloads)), workloads, fontsize=6.5)
        panel.set_title(f"TP {degree}")
        panel.grid(axis="y")
    axes[0].set_ylabel("times as fast as none")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1.2)
