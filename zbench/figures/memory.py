"""A step's time against the memory of a GPU, where recomputation is chosen for every batch: three systems.

The GPUs are of a size that each run says; all else of them is the cluster's. Where a batch does not fit with all layers
recomputed in full, a system has no point.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREY, ORANGE, VERMILLION, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("memory_curve",)
PANELS = (1, 3)
SIZE = (WIDTH, 3.2)
COLOURS = {"zeppelin": BLUE, "ring": ORANGE, "local_packing": VERMILLION}
LEVELS = {"full": "v", "selective": "s", "none": "o"}  # of recomputation, and their markers
OWN = 80e9 / 2**30  # GiB of the cluster's own GPUs
TICKS = (16, 64, 256)


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A step on GPUs of a size. gib: of each; seconds: mean of the steps; level: the most that a step recomputes, of
    LEVELS."""

    system: str
    gib: float
    seconds: float
    level: str


def table(records: Records) -> list[MemoryPoint]:
    """Returns the points of runs that are not out of memory, system by system and the smallest GPUs first."""
    found, order = list[MemoryPoint](), list(LEVELS)
    for run, row in zip(records.runs, records.rows, strict=True):
        if row["step_seconds"] is None:
            continue
        level = min((step["recompute"]["level"] for step in run.steps), key=order.index)
        gib = run.steps[0]["capacity_bytes"] / 2**30
        found.append(MemoryPoint(group_choice(run, "system"), gib, row["step_seconds"], level))
    systems = list(dict.fromkeys(one.system for one in found))
    return sorted(found, key=lambda one: (systems.index(one.system), one.gib))


def draw(axes: Sequence[Axes], table: Sequence[MemoryPoint]) -> None:
    """Draws a panel for each system, with a marker for what is recomputed."""
    systems = dict.fromkeys(one.system for one in table)
    ends = min(one.gib for one in table) / 1.15, max(one.gib for one in table) * 1.15
    for panel, system in zip(axes, systems, strict=False):
        mine, colour = [one for one in table if one.system == system], COLOURS[system]
        panel.plot([one.gib for one in mine], [one.seconds for one in mine], color=colour, lw=1.6)
        for one in mine:
            panel.plot(one.gib, one.seconds, LEVELS[one.level], color=colour, ms=5)
        panel.axvline(OWN, color=GREY, lw=1, ls=(0, (2, 1)))
        panel.set_xscale("log")
        panel.set_xlim(ends)
        panel.set_xticks(TICKS, [f"{tick}" for tick in TICKS])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_ylim(0, 1.1 * max(one.seconds for one in mine))
        panel.set_title(system)
        panel.set_xlabel("memory of a GPU, GiB")
        panel.grid()
    axes[0].set_ylabel("step, s")
    handles = [
        Line2D([], [], color=BLACK, ls="", marker=marker, ms=5, label=f"recompute {level}")
        for level, marker in LEVELS.items()
    ]
    handles.append(Line2D([], [], color=GREY, lw=1, ls=(0, (2, 1)), label="80 GB"))
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2)
