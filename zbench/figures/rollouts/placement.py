"""Models of a job with rollouts on the same GPUs, or on sets of their own: tokens a second by number of GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from zbench.describe.rollouts.stages import COLOCATE, SPLIT, STANDALONE
from zbench.figures.records import Records
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLUE, GREEN, GREY, ORANGE, WIDTH, end_labels

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("placement_32", "placement_64", "placement")
PANELS = (1, 1)
SIZE = (WIDTH, 4.2)
# GPUs on which another placement than colocate was best for 13B (HybridFlow, arXiv 2409.19256, read in the paper).
PUBLISHED: Mapping[str, int] = {SPLIT: 96, STANDALONE: 128}
_LOOKS = {COLOCATE: (BLUE, "o"), SPLIT: (ORANGE, "s"), STANDALONE: (GREEN, "^")}


@dataclass(frozen=True, slots=True)
class PlacementPoint:
    """A point of the figure: a placement on some number of GPUs. tokens_per_second: None where a step ran out of
    memory."""

    placement: str
    gpus: int
    tokens_per_second: float | None


def table(records: Records) -> list[PlacementPoint]:
    """Returns the points, by placement and number of GPUs."""
    found = [
        PlacementPoint(
            run.start["config"]["job"]["placement"], run.start["facts"]["num_gpus"], row["tokens_per_second"]
        )
        for run, row in zip(records.runs, records.rows, strict=True)
    ]
    return sorted(found, key=lambda one: (list(_LOOKS).index(one.placement), one.gpus))


def draw(axes: Sequence[Axes], table: Sequence[PlacementPoint]) -> None:
    """Draws the points."""
    (panel,) = axes
    sizes = sorted({one.gpus for one in table})
    ends = {}
    for name, (colour, marker) in _LOOKS.items():
        mine = [
            (one.gpus, one.tokens_per_second / 1e3)
            for one in table
            if one.placement == name and one.tokens_per_second is not None
        ]
        panel.loglog(*zip(*mine, strict=True), marker=marker, color=colour, lw=1.5, ms=5)
        ends[name] = mine[-1]
    for name, gpus in PUBLISHED.items():
        panel.axvline(gpus, color=GREY, ls="--", lw=1)
        words = f"published: {name} is best"
        at = panel.get_xaxis_transform()
        panel.text(gpus / 1.02, 0.02, words, transform=at, fontsize=7, rotation=90, ha="right", va="bottom")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.minorticks_off()
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.05)
    panel.set_xlabel("GPUs; 1,024 prompts and responses of 1,024 tokens in an iteration")
    panel.set_ylabel("1,000 tokens/s")
    panel.yaxis.set_major_formatter("{x:,g}")
    panel.grid()
    end_labels(panel, ends, {name: colour for name, (colour, _) in _LOOKS.items()})
