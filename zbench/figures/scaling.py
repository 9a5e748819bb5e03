"""Throughput, in tokens a second, by number of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import GREY, SYSTEMS, WIDTH, early_label, end_labels

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("scaling", "scaling_large")
PANELS = (1, 1)
SIZE = (WIDTH, 4.6)
PUBLISHED = 128  # GPUs: where the paper's figure ends


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A point of the figure: a system on some number of GPUs. tokens_per_second: None where a step ran out of
    memory."""

    system: str
    gpus: int
    tokens_per_second: float | None


def table(records: Records) -> list[ScalingPoint]:
    """Returns the points."""
    both = zip(records.runs, records.rows, strict=True)
    return [ScalingPoint(group_choice(run, "system"), row["num_ranks"], row["tokens_per_second"]) for run, row in both]


def draw(axes: Sequence[Axes], table: Sequence[ScalingPoint]) -> None:
    """Draws the points."""
    (panel,) = axes
    sizes = sorted({one.gpus for one in table})
    ends = {}
    for name in dict.fromkeys(one.system for one in table):
        points = [one for one in table if one.system == name]
        mine = [(one.gpus, one.tokens_per_second / 1e3) for one in points if one.tokens_per_second is not None]
        colour, marker = SYSTEMS[name]
        panel.loglog(*zip(*mine, strict=True), marker=marker, color=colour, lw=1.5, ms=5)
        if mine[-1][0] == sizes[-1]:
            ends[name] = mine[-1]
        else:
            full = len(mine) < len(points)
            early_label(panel, f"{name},\nthen out of memory" if full else name, mine[-1], colour)
    panel.axvline(PUBLISHED, color=GREY, ls="--", lw=1)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.minorticks_off()
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.05)
    panel.set_xlabel("GPUs, 4,096 tokens of a batch each")
    panel.set_ylabel("1,000 tokens/s")
    panel.yaxis.set_major_formatter("{x:,g}")
    panel.grid()
    words: dict[str, Any] = {"fontsize": 7.5, "rotation": 90, "ha": "right", "va": "top", "color": "#444444"}
    panel.text(PUBLISHED / 1.04, 0.98, "published up to here", transform=panel.get_xaxis_transform(), **words)
    end_labels(panel, ends, {name: SYSTEMS[name][0] for name in ends})
