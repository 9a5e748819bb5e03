"""Tokens a second of a GPU by the local steps of a round, beside synchronous training, and the steps that follow from
CO2's published table."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.describe.sync import EVERY_STEP
from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREY, VERMILLION, WIDTH
from zbench.record.record import Run

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("sync_scaling", "sync_scaling_every")
PANELS = (1, 2)
SIZE = (WIDTH, 3.2)
HIDDEN = {16: 9.6, 128: 11.9}  # steps, by GPUs: words/s of one node over those of AdamW, less 1 (arXiv 2401.16265)
FAST = "200 Gbit/s"  # a NIC, of four


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """Tokens a second of a GPU, of the last round. steps: of a round; 0: every step is synchronous. is_fast: with 800
    Gbit/s a node, and not 80."""

    gpus: int
    steps: int
    is_fast: bool
    per_second: float


def table(records: Records) -> list[SyncPoint]:
    """Returns the points, in the order of the record."""
    found = []
    for run in records.runs:
        config, gpus = run.start["config"], int(run.start["facts"]["num_gpus"])
        steps = 0 if group_choice(run, "sync") == EVERY_STEP else int(config["sync"]["steps"])
        found.append(
            SyncPoint(gpus, steps, config["cluster"]["nic_bandwidth"] == FAST, _per_second(run, steps or 1) / gpus)
        )
    return found


def _per_second(run: Run, steps: int) -> float:
    """Returns the tokens a second of the last steps: the first round of a late average has none to wait for."""
    last = run.steps[-steps:]
    return float(sum(one["tokens"] for one in last) / sum(one["seconds"] for one in last))


def draw(axes: Sequence[Axes], table: Sequence[SyncPoint]) -> None:
    """Draws a panel for each number of GPUs."""
    most = 1.08 * max(one.per_second for one in table)
    for panel, gpus in zip(axes, dict.fromkeys(one.gpus for one in table), strict=False):
        mine = [one for one in table if one.gpus == gpus]
        rounds = sorted((one.steps, one.per_second) for one in mine if one.steps)
        panel.plot(*zip(*rounds, strict=True), color=VERMILLION, marker="o", lw=1.6, ms=4)
        for one in (one for one in mine if not one.steps):
            panel.axhline(one.per_second, color=BLUE if one.is_fast else BLACK, lw=1.2)
        panel.axvline(HIDDEN[gpus], color=GREY, lw=1, ls=(0, (2, 1)))
        panel.set_ylim(0, most)
        panel.set_xlim(0, 13)
        panel.set_xlabel("local steps a round")
        panel.set_title(f"{gpus} GPUs")
        panel.grid()
    axes[0].set_ylabel("tokens/s a GPU")
    handles = [
        Line2D([], [], color=VERMILLION, marker="o", lw=1.6, ms=4, label="co2, 80 Gbit/s"),
        Line2D([], [], color=BLACK, lw=1.2, label="every step, 80"),
        Line2D([], [], color=BLUE, lw=1.2, label="every step, 800"),
        Line2D([], [], color=GREY, lw=1, ls=(0, (2, 1)), label="hidden, by CO2"),
    ]
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=0.9)
