"""Degrees of sharding by micro-batches a step, and from few nodes to many, beside what three levels were published to
gain."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLACK, BLUE, GREEN, PURPLE, VERMILLION, WIDTH

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("sharding", "sharding_scaling")
PANELS = (1, 2)
SIZE = (WIDTH, 3.4)
COLOURS = {
    "zero3": (BLACK, "o"),
    "hpz": (GREEN, "D"),
    "hsdp": (PURPLE, "v"),
    "zeropp": (BLUE, "P"),
    "three_level": (VERMILLION, "X"),
}
SCALED = 4  # micro-batches a step, of both experiments: where they meet, on all nodes, a run is of the first
OVER_ZERO3, SCALING = 2.40, 0.94  # three levels on 384 GCDs (arXiv 2501.04266, abstract); 1.71 over ZeRO++
PUBLISHED = {"three_level": OVER_ZERO3, "zeropp": OVER_ZERO3 / 1.71}


@dataclass(frozen=True, slots=True)
class ShardingPoint:
    """A choice of sharding. over: the panel, "micro-batches" or "GCDs", and where it is on it. value: times as fast as
    zero3; or tokens/s of a GCD over those on the fewest nodes that it fits."""

    sharding: str
    over: str
    at: int
    value: float


def table(records: Records) -> list[ShardingPoint]:
    """Returns the points: speed-ups over zero3, then scaling."""
    speed: dict[tuple[str, int], float] = {}
    scaled: dict[tuple[str, int], float] = {}
    for run, row in zip(records.runs, records.rows, strict=True):
        config, name, gpus = run.start["config"], group_choice(run, "sharding"), run.start["facts"]["num_gpus"]
        count = config["tokens_per_gpu"] // config["workload"]["length"]
        if group_choice(run, "experiment") == EXPERIMENTS[0]:
            speed[name, count] = row["tokens_per_second"]
        if count == SCALED and row["tokens_per_second"] is not None:  # else it does not fit so few
            scaled[name, gpus] = row["tokens_per_second"] / gpus
    fewest = {name: min(gpus for one, gpus in scaled if one == name) for name, _ in scaled}
    most = max(gpus for _, gpus in scaled)
    found = [ShardingPoint(name, "micro-batches", at, one / speed["zero3", at]) for (name, at), one in speed.items()]
    return found + [
        ShardingPoint(name, "GCDs", at, one / scaled[name, fewest[name]])
        for (name, at), one in scaled.items()
        if fewest[name] < most
    ]


def draw(axes: Sequence[Axes], table: Sequence[ShardingPoint]) -> None:
    """Draws the points, and what was published."""
    for panel, over in zip(axes, ("micro-batches", "GCDs"), strict=True):
        mine = [one for one in table if one.over == over]
        for name, (colour, marker) in COLOURS.items():
            points = sorted((one.at, one.value) for one in mine if one.sharding == name)
            if points:
                panel.plot(*zip(*points, strict=True), marker=marker, color=colour, lw=1.5, ms=5)
        ticks = sorted({one.at for one in mine})
        panel.set_xscale("log")
        panel.minorticks_off()
        panel.set_xticks(ticks, [f"{tick}" for tick in ticks])
        panel.grid()
    for name, value in PUBLISHED.items():
        axes[0].axhline(value, color=COLOURS[name][0], lw=1, ls=(0, (2, 1)))
    axes[0].set_title("times as fast as zero3")
    axes[0].set_xlabel("micro-batches of 512 tokens a GCD")
    axes[1].axhline(SCALING, color=VERMILLION, lw=1, ls=(0, (2, 1)))
    axes[1].set_title("tokens/s a GCD, scaled")
    axes[1].set_xlabel("GCDs, four micro-batches")
    handles = [
        Line2D([], [], color=colour, marker=marker, lw=1.5, ms=5, label=name)
        for name, (colour, marker) in COLOURS.items()
    ]
    handles.append(Line2D([], [], color=VERMILLION, lw=1, ls=(0, (2, 1)), label="published"))
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=6, handlelength=1.2, columnspacing=0.9)
