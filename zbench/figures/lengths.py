"""Sequences and tokens by length, for every workload."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.figures.records import Records, group_choice
from zbench.figures.stamp import simulated
from zbench.figures.style import BLUE, ORANGE, WIDTH, tokens

EXPERIMENTS = ("lengths",)
PANELS = (7, 2)
SIZE = (WIDTH, 9.4)


@dataclass(frozen=True, slots=True)
class LengthShares:
    """A workload's batches together: shares of sequences and of tokens, entry i of lengths from 2^i on; mean length."""

    workload: str
    sequences: list[float]
    tokens: list[float]
    mean: float


def table(records: Records) -> list[LengthShares]:
    """Returns the shares of every recorded workload."""
    out = []
    for run in records.runs:
        width = max(len(step["octaves"]["tokens"]) for step in run.steps)
        sums = {name: np.zeros(width) for name in ("sequences", "tokens")}
        for step in run.steps:
            for name, sum_ in sums.items():
                sum_[: len(step["octaves"][name])] += step["octaves"][name]
        shares = {name: (sum_ / sum_.sum()).tolist() for name, sum_ in sums.items()}
        mean = float(sums["tokens"].sum() / sums["sequences"].sum())
        out.append(LengthShares(group_choice(run, "workload"), shares["sequences"], shares["tokens"], mean))
    return out


def draw(axes: Sequence[Axes], table: Sequence[LengthShares]) -> None:
    """Draws the shares."""
    most = max(len(one.tokens) for one in table)
    for index, (panel, one) in enumerate(zip(axes, table, strict=True)):
        at = np.arange(len(one.tokens))
        panel.bar(at - 0.2, 100 * np.array(one.sequences), 0.4, color=ORANGE, label="share of sequences")
        panel.bar(at + 0.2, 100 * np.array(one.tokens), 0.4, color=BLUE, label="share of tokens")
        panel.set_title(f"{one.workload}, mean {one.mean:,.0f}", fontsize=8.5)
        panel.set_xlim(3.4, most - 0.4)
        ticks = np.arange(4, most, 4)
        panel.set_xticks(ticks, [tokens(2.0**tick) for tick in ticks] if index >= len(table) - 2 else [])
        panel.grid(axis="y")
        if index % 2 == 0:
            panel.set_ylabel("%")
        if index >= len(table) - 2:
            panel.set_xlabel("length from, tokens")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside upper left", ncols=2, handlelength=1)


def where(records: Records) -> str:
    """Says for the stamp where the numbers come from."""
    return f"drawn by the workloads in runs {simulated(records)}"
