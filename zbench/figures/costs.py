"""The costs of a sequence by its length, and Zeppelin's zones, which begin where these curves cross."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.figures.records import Records, cost_of_run
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLUE, GREEN, GREY, ORANGE, VERMILLION, WIDTH, end_labels, tokens
from zbench.plans.plan import Ints
from zbench.systems.zeppelin.zones import SequenceSeconds, curves, zones

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("costs",)
PANELS = (3, 1)
SIZE = (WIDTH, 8.2)
_KV_MOVES = 3  # kv forward, kv and its gradient backward: zeppelin's `received_kv: carry`
_LENGTHS = np.unique(np.geomspace(256, 131072, 60).astype(np.int64))
_LINES = {"attention": BLUE, "linear": GREEN, "intra-node": ORANGE, "inter-node": VERMILLION}


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of sequences on one cluster and model. lengths [n]; seconds of a layer, forward and backward. zones:
    first lengths of the intra-node zone, and of the inter-node zone with transfers over all of a node's NICs and over
    one."""

    cluster: str
    model: str
    nics: int
    lengths: Ints
    curves: SequenceSeconds
    intra: int
    routed: int
    direct: int


def table(records: Records) -> list[Costs]:
    """Returns the curves and zones of every recorded run's cluster and model."""
    out = []
    for run in records.runs:
        cost = cost_of_run(run)
        nics = cost.cluster.nics_per_node
        (intra, routed), (_, direct) = (zones(cost, _KV_MOVES, lanes) for lanes in (nics, 1))
        found = curves(_LENGTHS, cost, _KV_MOVES)
        out.append(Costs(cost.cluster.name, cost.model.name, nics, _LENGTHS, found, intra, routed, direct))
    return out


def draw(axes: Sequence[Axes], table: Sequence[Costs]) -> None:
    """Draws the curves and where zones begin."""
    for panel, one in zip(axes, table, strict=True):
        of = {
            "attention": one.curves.attention,
            "linear": one.curves.linear,
            "intra-node": one.curves.inside,
            "inter-node": one.curves.across,
        }
        for name, seconds in of.items():
            panel.loglog(one.lengths, 1e3 * seconds, color=_LINES[name], lw=1.8)
        panel.set_xlim(256, 131072)
        panel.set_ylim(0.003, 4000)
        panel.minorticks_off()
        panel.yaxis.set_major_formatter("{x:g}")
        ticks = 4.0 ** np.arange(4, 9)
        panel.set_xticks(ticks, [tokens(tick) for tick in ticks])
        panel.grid()
        panel.set_title(f"{one.cluster}, {one.model}")
        panel.set_ylabel("ms a layer")
        words = (
            (one.intra, f"intra-node zone\nfrom {one.intra:,}", "right"),
            (one.routed, f"inter-node,\n{one.nics} NICs:\n{one.routed:,}", "left"),
            (one.direct, f"inter-node,\n1 NIC:\n{one.direct:,}", "left"),
        )
        for at, word, side in words:
            panel.axvline(at, color=GREY, lw=1, ls="--")
            left = side == "right"
            panel.text(at * (0.93 if left else 1.07), 0.004, word, fontsize=7.5, ha=side, va="bottom", color="#444444")
        end_labels(panel, {name: (131072, 1e3 * seconds[-1]) for name, seconds in of.items()}, _LINES)
    axes[-1].set_xlabel("length of a sequence, tokens")
