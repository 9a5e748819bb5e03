"""Zeppelin's parts measured on emulated nodes: routing of one long sequence, and every combination of its switches."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from zbench.figures.ablation import PARTS
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import measured_stamp as where
from zbench.figures.style import BLUE, ORANGE, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("desk_routing", "desk_ablation")
PANELS = (3, 1)
SIZE = (WIDTH, 7.4)


@dataclass(frozen=True, slots=True)
class PartGain:
    """A bar of the figure: a measured speed-up. speedup: over ring on the same batches; None: no step counts. goal: of
    routing alone, a node's NICs, which it cannot pass."""

    panel: str
    parts: str
    speedup: float | None
    goal: int | None = None


def table(records: Records) -> list[PartGain]:
    """Returns the recorded speed-ups."""
    out = []
    for run, row in zip(records.runs, records.rows, strict=True):
        if group_choice(run, "system") != "zeppelin":
            continue
        system, nics = run.start["config"]["system"], run.start["facts"]["nics_per_node"]
        parts = tuple(system[key] for key in ("partition", "route", "remap"))
        if group_choice(run, "experiment") == "desk_routing":
            out.append(PartGain("routing one long sequence", f"{nics} NICs a node", row["speedup"], nics))
        elif parts in PARTS:
            out.append(PartGain(group_choice(run, "workload"), PARTS[parts][0], row["speedup"]))
    return out


def draw(axes: Sequence[Axes], table: Sequence[PartGain]) -> None:
    """Draws the speed-ups."""
    furthest = max(max(one.speedup or 1, one.goal or 0) for one in table)
    for panel, title in zip(axes, dict.fromkeys(one.panel for one in table), strict=True):
        mine = [one for one in table if one.panel == title]
        for at, one in enumerate(mine):
            panel.barh(at, one.speedup or 0, 0.7, color=BLUE if one.goal is None else ORANGE)
            told = "too busy" if one.speedup is None else f"{one.speedup:.2f}"
            panel.text(max(one.speedup or 1, one.goal or 0) + 0.04, at, told, va="center", fontsize=8)
            if one.goal is not None:
                panel.plot([one.goal], [at], "|", color="black", ms=14, mew=1.6)
        panel.axvline(1, color="black", lw=1)
        panel.set_yticks(range(len(mine)), [one.parts for one in mine])
        panel.set_ylim(len(mine) - 0.5, -0.5)
        panel.set_xlim(0, 1.08 * furthest)
        panel.set_title(f"{title}{'' if mine[0].goal is None else ' (line: all NICs as one)'}")
        panel.grid(axis="x")
    axes[-1].set_xlabel("measured speed-up over ring (1), whole training steps")
