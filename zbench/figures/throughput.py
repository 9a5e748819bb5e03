"""Systems on Zeppelin's data sets, models and clusters, as speed-up over ring attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.figures.records import Records
from zbench.figures.stamp import simulated as where
from zbench.figures.style import SYSTEMS, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("throughput",)
PANELS = (3, 1)
SIZE = (WIDTH, 11.5)
CLUSTERS = {"a800_4x8": "A", "h800_4x8": "B", "h200_4x8": "C"}  # the paper's names
# published: Zeppelin over Transformer Engine's ring (arXiv 2509.21841)
LINES = ((1.0, "-", "ring"), (2.80, "--", "published\nmean 2.80"), (6.60, ":", "published\nmost 6.60"))


@dataclass(frozen=True, slots=True)
class Gain:
    """A bar of the figure: a system's speed-up on a workload. speedup: over ring on the same batches; None where either
    ran out of memory."""

    cluster: str
    model: str
    workload: str
    system: str
    speedup: float | None


def table(records: Records) -> list[Gain]:
    """Returns the speed-ups."""
    return [Gain(*(row[key] for key in ("cluster", "model", "workload", "system", "speedup"))) for row in records.rows]


def draw(axes: Sequence[Axes], table: Sequence[Gain]) -> None:
    """Draws the speed-ups."""
    systems = [name for name in dict.fromkeys(one.system for one in table) if name != "ring"]
    clusters = sorted({one.cluster for one in table}, key=list(CLUSTERS).index)
    furthest = max(one.speedup for one in table if one.speedup is not None)
    for panel, cluster in zip(axes, clusters, strict=True):
        mine = [one for one in table if one.cluster == cluster]
        kinds = list(dict.fromkeys((one.model, one.workload) for one in mine))
        for at, kind in enumerate(kinds):
            if at % 2 == 0:
                panel.axhspan(at - 0.5, at + 0.5, color="#f3f3f3", lw=0, zorder=0.5)
            for turn, system in enumerate(systems):
                place = at + 0.8 * ((turn + 0.5) / len(systems) - 0.5)
                for one in mine:
                    if (one.model, one.workload, one.system) == (*kind, system):
                        _mark(panel, one.speedup, place, system)
        for line, style, word in LINES:
            panel.plot([line, line], [-0.5, len(kinds) - 0.4], ls=style, color="#555555", lw=1, zorder=0.6)
            beside = "right" if line == 1 else "center"
            panel.text(line, len(kinds) - 0.3, word, fontsize=7, ha=beside, va="top", color="#444444")
        panel.set_yticks(range(len(kinds)), [f"{_short(model)} {workload}" for model, workload in kinds], fontsize=8)
        panel.set_ylim(len(kinds) + 1.0, -0.5)  # a row more, for words
        panel.set_xlim(0, 1.04 * furthest)
        panel.set_title(f"{CLUSTERS[cluster]}, {cluster}: zeppelin {_words(mine)}")
        panel.grid(axis="x")
    axes[-1].set_xlabel("speed-up over ring (1)")
    handles = [Line2D([], [], ls="", marker=SYSTEMS[name][1], color=SYSTEMS[name][0], label=name) for name in systems]
    figure = axes[0].figure
    figure.legend(handles=handles, loc="outside upper left", ncols=3, handletextpad=0.2, columnspacing=1)


def _mark(panel: Axes, speedup: float | None, place: float, system: str) -> None:
    colour, marker = SYSTEMS[system]
    if speedup is None:
        panel.text(0.1, place, "out of memory", fontsize=6, color=colour, va="center")
    else:
        panel.plot([speedup], [place], marker, color=colour, ms=4.5, mew=0)


def _short(model: str) -> str:
    return model.removeprefix("llama_").replace("_tp", ", tp ").replace("moe_8x550m", "MoE")


def _words(mine: Sequence[Gain]) -> str:
    found = [one.speedup for one in mine if one.system == "zeppelin" and one.speedup is not None]
    return f"mean {mean(found):.2f}, most {max(found):.2f}" if found else "out of memory"
