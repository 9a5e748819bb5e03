"""Zeppelin's parts one by one, as published and as improved here, beside the published ablation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLUE, ORANGE, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("ablation",)
PANELS = (2, 1)
SIZE = (WIDTH, 8.4)
# (partitioner, routed_transfers) of each panel
FORMS: Mapping[str, tuple[str, str]] = {
    "published partitioner, routed legs one after another": ("published", "serial"),
    "searched partitions, legs overlapped (the default)": ("search", "overlapped"),
}
SWITCHES = ("partition", "route", "remap")
# SWITCHES of each bar; published: over Transformer Engine's ring, ArXiv (arXiv 2509.21841, ablation)
PARTS: Mapping[tuple[bool, bool, bool], tuple[str, float]] = {
    (False, True, False): ("ring\nwith routing", 1.6),
    (True, False, False): ("partitioner\nand engine", 3.2),
    (True, True, False): ("and routing", 3.51),
    (True, True, True): ("and remapping", 3.64),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the figure: the speed-up of some of Zeppelin's parts. gpus: None for the published value, whose number
    of GPUs is not known."""

    form: str
    parts: str
    gpus: int | None
    speedup: float


def table(records: Records) -> list[Bar]:
    """Returns the figure's bars. Raises ValueError where a combination is missing or has no speed-up."""
    found = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        if group_choice(run, "system") == "zeppelin":
            system = run.start["config"]["system"]
            form, switches = (system["partitioner"], system["routed_transfers"]), tuple(system[key] for key in SWITCHES)
            found[form, switches, row["num_ranks"]] = row["speedup"]
    sizes = sorted({gpus for *_, gpus in found})
    bars = []
    for title, form in FORMS.items():
        for switches, (name, published) in PARTS.items():
            bars.append(Bar(title, name, None, published))
            for gpus in sizes:
                speedup = found.get((form, switches, gpus))
                if speedup is None:
                    raise ValueError(f"figure ablation has no speed-up of {name!r} on {gpus} GPUs in its record")
                bars.append(Bar(title, name, gpus, speedup))
    return bars


def draw(axes: Sequence[Axes], table: Sequence[Bar]) -> None:
    """Draws the bars."""
    most = max(bar.speedup for bar in table)
    for panel, form in zip(axes, FORMS, strict=True):
        _draw(panel, [bar for bar in table if bar.form == form])
        panel.set_title(form)
        panel.set_xlim(0, 1.1 * most)
    axes[-1].set_xlabel("speed-up over ring (1)")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=3, columnspacing=1, handlelength=1.4)


def _draw(panel: Axes, table: Sequence[Bar]) -> None:
    parts = list(dict.fromkeys(bar.parts for bar in table))
    series = list(dict.fromkeys(bar.gpus for bar in table))
    looks = [("#d9d9d9", "//"), (ORANGE, ""), (BLUE, "")]
    high = 0.8 / len(series)
    for turn, gpus in enumerate(series):
        values = [bar.speedup for bar in table if bar.gpus == gpus]
        at = np.arange(len(parts)) + high * (turn - (len(series) - 1) / 2)
        colour, hatch = looks[turn]
        label = "published, GPUs not told" if gpus is None else f"{gpus} GPUs"
        panel.barh(at, values, 0.92 * high, color=colour, hatch=hatch, edgecolor="#666666", lw=0.5, label=label)
        for y, value in zip(at.tolist(), values, strict=True):
            panel.text(value + 0.1, y, f"{value:.2f}", va="center", fontsize=8)
    panel.axvline(1, color="black", lw=1)
    panel.set_yticks(range(len(parts)), parts)
    panel.set_ylim(len(parts) - 0.5, -0.5)
    panel.grid(axis="x")
