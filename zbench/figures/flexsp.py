"""FlexSP's comparison: systems on its data sets with its context lengths, over Ulysses groups of one degree.

The groups of one degree, for all batches and for each, are packed as FlexSP's public code packs them; the latter also
by predicted time, as flexsp itself is here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import GREY, SYSTEMS, WIDTH, tokens
from zbench.record.record import Run
from zbench.record.speedup import speedup

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("flexsp", "flexsp_published", "flexsp_static")
PANELS = (2, 1)
SIZE = (WIDTH, 7.0)
PUBLISHED = {"github": 1.63, "commoncrawl": 1.77, "wikipedia": 1.98}  # at most, over any baseline (arXiv 2412.01523)
AS_PUBLISHED = "one degree a batch, as published"
NAMES = {"flexsp_batch_ada": "one degree a batch, by time"}
LIGHT = "#c6e3f5"  # of flexsp_batch_ada's colour
DASHES = (0, (2, 1))
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}


@dataclass(frozen=True, slots=True)
class DegreeGain:
    """A bar of the figure: a system's speed-up on a workload. system: its name, or AS_PUBLISHED. speedup: over one
    degree for all batches; None where either ran out of memory."""

    context: int
    workload: str
    system: str
    speedup: float | None


def table(records: Records) -> list[DegreeGain]:
    """Returns the speed-ups. Raises ValueError where the baseline is missing."""
    static = {_kind(run): run for run in records.runs if _is_static(run)}
    out = []
    for run in records.runs:
        if _is_static(run):
            continue
        if _kind(run) not in static:
            raise ValueError(f"figure flexsp has no run of one degree on {_kind(run)[1]} in its record")
        gain = speedup(run.steps, static[_kind(run)].steps)
        published = run.start["config"]["system"].get("packing") == "published"
        out.append(DegreeGain(*_kind(run), AS_PUBLISHED if published else group_choice(run, "system"), gain))
    return out


def _kind(run: Run) -> tuple[int, str]:
    return int(run.start["config"]["workload"]["context_limit"]), group_choice(run, "workload")


def _is_static(run: Run) -> bool:
    return group_choice(run, "system") == "flexsp_batch_ada" and run.start["config"]["system"]["degree"] is not None


def draw(axes: Sequence[Axes], table: Sequence[DegreeGain]) -> None:
    """Draws the speed-ups."""
    systems = sorted(dict.fromkeys(one.system for one in table), key=lambda system: system != AS_PUBLISHED)
    high = 0.84 / len(systems)
    furthest = max(one.speedup for one in table if one.speedup is not None)
    for panel, context in zip(axes, sorted({one.context for one in table}), strict=True):
        mine = {(one.workload, one.system): one.speedup for one in table if one.context == context}
        workloads = list(dict.fromkeys(workload for workload, _ in mine))
        for turn, system in enumerate(systems):
            at = np.arange(len(workloads)) + high * (turn - (len(systems) - 1) / 2)
            values = [mine[workload, system] for workload in workloads]
            colour = LIGHT if system == AS_PUBLISHED else SYSTEMS[system][0]
            panel.barh(
                at, [value or 0.0 for value in values], 0.92 * high, color=colour, label=NAMES.get(system, system)
            )
            for y, value in zip(at.tolist(), values, strict=True):
                word = "out of memory" if value is None else f"{value:.2f}"
                panel.text((value or 0.0) + 0.03, y, word, va="center", fontsize=8, bbox=_BEHIND)
        for y, workload in enumerate(workloads):
            panel.plot([PUBLISHED[workload]] * 2, [y - 0.48, y + 0.48], color="black", lw=1.6, ls=DASHES)
        panel.axvline(1, color=GREY, lw=1)
        panel.set_yticks(range(len(workloads)), workloads)
        panel.set_ylim(len(workloads) - 0.5, -0.5)
        panel.set_xlim(0, 1.12 * furthest)
        panel.set_title(f"documents to {tokens(context)}")
        panel.grid(axis="x")
    axes[-1].set_xlabel("speed-up over groups of 64 GPUs (1)")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color="black", lw=1.6, ls=DASHES))
    labels.append("published, FlexSP at most")
    axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=2, handlelength=1.2, columnspacing=1)
