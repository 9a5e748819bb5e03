"""An iteration of rollouts: what its stages take, by the system that trains, and what schedules gain on the tail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, WIDTH
from zbench.record.iterations import STAGES

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("rlhf", "rlhf_schedules")
PANELS = (2, 1)
SIZE = (WIDTH, 6.4)
PUBLISHED = (2.03, 2.56)  # RollPacker over verl (arXiv 2509.21009), with all that it does besides tail batching
_TAIL = "rl_traces_tail"
_COLOURS = dict(zip(STAGES, (PURPLE, BLUE, ORANGE, GREEN), strict=True))


@dataclass(frozen=True, slots=True)
class IterationFigure:
    """The tables that are drawn. seconds: of each stage by itself, by the system that trains. speedups: tokens/s of a
    schedule over the synchronous one's, by its name."""

    seconds: Mapping[str, Mapping[str, float]]
    speedups: Mapping[str, float]


def table(records: Records) -> IterationFigure:
    """Returns what stages take and what schedules gain."""
    systems, schedules = EXPERIMENTS
    seconds, rates = dict[str, dict[str, float]](), dict[str, float]()
    for run, row in zip(records.runs, records.rows, strict=True):
        if group_choice(run, "experiment") == systems:
            seconds[group_choice(run, "system")] = {stage: row[f"{stage}_seconds"] for stage in STAGES}
        if group_choice(run, "experiment") == schedules:
            rates[_schedule(run.start["config"]["job"]["schedule"], group_choice(run, "workload"))] = row[
                "tokens_per_second"
            ]
    first = rates[_schedule("synchronous", "")]
    return IterationFigure(seconds, {name: rate / first for name, rate in rates.items()})


def _schedule(schedule: str, workload: str) -> str:
    told = schedule.replace("_", " ")
    return f"{told}, tail batching" if workload == _TAIL else told


def draw(axes: Sequence[Axes], table: IterationFigure) -> None:
    """Draws both."""
    stages, schedules = axes
    systems = list(table.seconds)
    left = np.zeros(len(systems))
    for stage in sorted(STAGES, key=lambda one: -sum(of[one] for of in table.seconds.values())):
        values = np.array([table.seconds[system][stage] for system in systems])
        stages.barh(systems, values, 0.7, left=left, color=_COLOURS[stage], label=stage)
        left += values
    stages.invert_yaxis()
    stages.set_xlabel("seconds of an iteration's stages")
    stages.grid(axis="x")
    stages.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(STAGES), columnspacing=1, handlelength=1.2)
    names = list(table.speedups)
    schedules.barh(names, list(table.speedups.values()), 0.7, color=BLUE)
    for at, value in enumerate(table.speedups.values()):
        schedules.text(value + 0.02, at, f"{value:.2f}", va="center", fontsize=8)
    schedules.axvspan(*PUBLISHED, color=GREY, alpha=0.35, lw=0)
    schedules.text(sum(PUBLISHED) / 2, 0, "RollPacker over verl,\npublished", fontsize=7, ha="center", va="center")
    schedules.set_xlim(0, 2.9)
    schedules.invert_yaxis()
    schedules.set_xlabel("tokens/s over the synchronous schedule's")
    schedules.grid(axis="x")
