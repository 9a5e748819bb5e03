"""Planners' seconds, and how near the bound their plans come, by number of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated
from zbench.figures.style import SYSTEMS, WIDTH, early_label, end_labels

EXPERIMENTS = ("planning", "planning_large")
PANELS = (2, 1)
SIZE = (WIDTH, 7.4)


@dataclass(frozen=True, slots=True)
class PlanningPoint:
    """A point of the figure: a planner on some number of GPUs. plan_seconds: median of the steps, as measured.
    bound_ratio: None where memory did not suffice."""

    system: str
    gpus: int
    plan_seconds: float
    bound_ratio: float | None


def table(records: Records) -> list[PlanningPoint]:
    """Returns the points."""
    return [
        PlanningPoint(group_choice(run, "system"), row["num_ranks"], row["plan_seconds"], row["bound_ratio"])
        for run, row in zip(records.runs, records.rows, strict=True)
    ]


def draw(axes: Sequence[Axes], table: Sequence[PlanningPoint]) -> None:
    """Draws the points."""
    time, quality = axes
    sizes = sorted({one.gpus for one in table})
    names = list(dict.fromkeys(one.system for one in table))
    times: dict[str, tuple[float, float]] = {}
    qualities: dict[str, tuple[float, float]] = {}
    for name in names:
        colour, marker = SYSTEMS[name]
        mine = [one for one in table if one.system == name]
        spent = [(one.gpus, 1e3 * one.plan_seconds) for one in mine]
        reached = [(one.gpus, one.bound_ratio) for one in mine if one.bound_ratio is not None]
        time.loglog(*zip(*spent, strict=True), color=colour, marker=marker, lw=1.5, ms=5)
        if reached:
            quality.semilogx(*zip(*reached, strict=True), color=colour, marker=marker, lw=1.5, ms=5)
        for panel, ends, line in ((time, times, spent), (quality, qualities, reached)):
            if line and line[-1][0] == sizes[-1]:
                ends[name] = line[-1]
            elif line:
                early_label(panel, name, line[-1], colour)
    for panel in axes:
        panel.xaxis.minorticks_off()
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.1)
        panel.grid()
    time.set_ylabel("planning a step, ms")
    time.yaxis.set_major_formatter("{x:,g}")
    quality.set_ylabel("fastest possible / simulated step")
    quality.set_ylim(0, 1)
    quality.set_xlabel("GPUs, 4,096 tokens of a batch each")
    colours = {name: SYSTEMS[name][0] for name in names}
    end_labels(time, times, colours)
    end_labels(quality, qualities, colours)


def where(records: Records) -> str:
    """Says for the stamp where the numbers come from: measured seconds, simulated bounds."""
    prints = [run.start["fingerprint"] for run in records.runs]
    machines = dict.fromkeys(f"{one['processor']}, {one['cores']} cores" for one in prints)
    return f"above: measured on {', '.join(machines)}\nbelow: {simulated(records)}"
