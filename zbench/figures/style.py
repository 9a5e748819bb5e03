"""The style of all figures: sizes, colours, labels, and files that are the same bytes for the same numbers. An edge.

Figures are narrow, so that a phone shows them 1:1. Colours are Okabe and Ito's (2008, "Color Universal Design"), which
colour-blind readers can tell apart; where lines cross, markers differ too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zbench.record.kinds import PICTURE
from zbench.record.outputs import whole_file

WIDTH = 5.2  # inches
STAMPED = 17.5  # letters of a stamp, an inch
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, GREY = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#f0e442",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#8c8c8c",
)
SYSTEMS: Mapping[str, tuple[str, str]] = {  # colour and marker
    "ring": (BLACK, "o"),
    "allgather": (GREY, "s"),
    "hybrid_dp": (ORANGE, "^"),
    "ulysses": (GREEN, "D"),
    "usp": (GREEN, "D"),
    "flexsp": (PURPLE, "v"),
    "flexsp_batch_ada": (SKY, "s"),
    "zeppelin": (BLUE, "P"),
    "nodewise": (VERMILLION, "X"),
    "bytescale": (SKY, "s"),
    "wlb_llm": (GREY, "<"),
    "hydraulis": (BLACK, ">"),
}
SETTINGS: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "zbench",  # ids in the file, which are random otherwise
    "svg.fonttype": "path",  # the same on every screen
    "savefig.dpi": 160,
}


def panels(size: tuple[float, float], shape: tuple[int, int]) -> tuple[Figure, list[Axes]]:
    """Makes an empty figure of `shape` panels, row by row, with room for its stamp below."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    return figure, [one for row in axes for one in row]


def stamped(figure: Figure, words: str) -> None:
    """Writes the stamp below the panels, in lines as long as the figure is wide."""
    lines = [part for line in words.splitlines() for part in wrap(line, int(STAMPED * figure.get_figwidth()))]
    figure.supxlabel("\n".join(lines), fontsize=7, color="#555555", x=0.01, ha="left")


def save_figure(figure: Figure, path: Path) -> None:
    """Saves a figure as SVG and PNG beside each other, without dates and versions.

    Raises:
        ValueError: one cannot be written, or is a file of another kind.
    """
    kinds: Mapping[str, Mapping[str, None]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    for kind, metadata in kinds.items():
        with whole_file("picture", path.with_suffix(f".{kind}"), PICTURE) as stream:
            figure.savefig(stream, format=kind, metadata=metadata)
        figure.set_layout_engine("none")  # all is where it belongs: the next one needs no layout of its own


def looks() -> Any:
    """Returns a context with all settings; what the user's matplotlibrc says does not count."""
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **SETTINGS, "backend": "agg"}
    return mpl.rc_context(settings)


def spread_labels(values: Sequence[float], least: float) -> list[float]:
    """Returns places as near to `values` as can be, in the same order, `least` apart: of labels that would overlap."""
    order = np.argsort(values, kind="stable")
    groups: list[list[float]] = []  # [mean of places, number of labels]
    for value in np.asarray(values, float)[order].tolist():
        groups.append([value, 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < least * (groups[-1][1] + groups[-2][1]) / 2:
            mean, count = groups.pop()
            before = groups[-1]
            before[0] = (before[0] * before[1] + mean * count) / (before[1] + count)
            before[1] += count
    placed = [mean + least * (i - (count - 1) / 2) for mean, count in groups for i in range(int(count))]
    out = [0.0] * len(placed)
    for index, place in zip(order.tolist(), placed, strict=True):
        out[index] = place
    return out


def end_labels(axes: Axes, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Writes names of lines right of where they end, {name: (x, y)}, moved apart and tied to it. After limits are
    set."""
    if not ends:
        return
    right = axes.get_xlim()[1]
    points = {name: axes.transAxes.inverted().transform(axes.transData.transform(end)) for name, end in ends.items()}
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    places = spread_labels([float(y) for _, y in points.values()], 11 / height)
    edge = axes.transAxes.inverted().transform(axes.transData.transform((right, 1)))[0]
    for (name, (x, y)), place in zip(points.items(), places, strict=True):
        axes.plot([x, edge + 0.03], [y, place], color=colours[name], lw=0.6, transform=axes.transAxes, clip_on=False)
        axes.text(edge + 0.04, place, name, color=colours[name], fontsize=8.5, va="center", transform=axes.transAxes)


def early_label(axes: Axes, words: str, end: tuple[float, float], colour: str) -> None:
    """Writes a name beside the end of a line that does not reach the right edge."""
    axes.annotate(words, end, (6, 3), textcoords="offset points", color=colour, fontsize=8.5, va="bottom")


def tokens(value: float) -> str:
    """Writes a number of tokens: 4096 as 4K."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
