"""Weights on their way from training to generation: what each engine saves over gathering all from all GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from zbench.cost.cost import Cost
from zbench.figures.records import Records, cost_of_run
from zbench.figures.stamp import simulated as where
from zbench.figures.style import BLUE, GREY, ORANGE, WIDTH
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, HYBRIDFLOW_V
from zbench.rollouts.reshard import played_resharding

__all__ = ["EXPERIMENTS", "PANELS", "SIZE", "draw", "table", "where"]
EXPERIMENTS = ("resharding",)
PANELS = (1, 1)
SIZE = (WIDTH, 3.2)
# HybridFlow (arXiv 2409.19256), read in the paper; its degrees were not found.
PUBLISHED: Mapping[str, float] = {"published mean": 0.552, "published, at most": 0.712}
TRAIN = TrainDegrees(1, 8, 2)
GENERATE: Mapping[str, GenerateDegrees] = {  # the degree that is best for a model there
    "llama_7b": GenerateDegrees(1, 2),
    "llama_13b": GenerateDegrees(1, 4),
}
_SHOWN = {HYBRIDFLOW_V: ORANGE, HYBRIDFLOW: BLUE}


@dataclass(frozen=True, slots=True)
class ReshardingBar:
    """A bar of the figure: an engine and a model. received: bytes of the GPU that has most. saved: of DS_CHAT's
    seconds, a share."""

    model: str
    engine: str
    received: int
    saved: float


def table(records: Records) -> list[ReshardingBar]:
    """Returns the bars, played with the constants of the records' clusters and models."""
    found = []
    for run in records.runs:
        own = cost_of_run(run).gpus
        cost = Cost(cluster=own.cluster, model=own.model)
        generate = GENERATE[cost.model.name]
        played = {engine: played_resharding(engine, TRAIN, generate, cost) for engine in (DS_CHAT, *_SHOWN)}
        for engine in _SHOWN:
            one = played[engine]
            saved = 1 - one.seconds / played[DS_CHAT].seconds
            found.append(ReshardingBar(cost.model.name, engine, int(one.bytes.received.max()), saved))
    return found


def draw(axes: Sequence[Axes], table: Sequence[ReshardingBar]) -> None:
    """Draws the bars."""
    (panel,) = axes
    models = list(dict.fromkeys(one.model for one in table))
    high = 0.8 / len(_SHOWN)
    for turn, (engine, colour) in enumerate(_SHOWN.items()):
        mine = [one for one in table if one.engine == engine]
        at = np.arange(len(models)) + high * (turn - (len(_SHOWN) - 1) / 2)
        panel.barh(at, [100 * one.saved for one in mine], 0.92 * high, color=colour, label=engine)
        for y, one in zip(at.tolist(), mine, strict=True):
            word = f"{100 * one.saved:.0f} %, {one.received / 2**30:.1f} GiB received"
            panel.text(100 * max(one.saved, 0) + 1, y, word, va="center", fontsize=7.5)
    for side, (words, share) in zip(("right", "left"), PUBLISHED.items(), strict=True):
        panel.axvline(100 * share, color=GREY, ls="--", lw=1)
        panel.text(100 * share + (1 if side == "left" else -1), -0.62, words, fontsize=7, ha=side, va="center")
    panel.set_yticks(range(len(models)), [f"{name}, {TRAIN} to {GENERATE[name]}" for name in models])
    panel.set_ylim(-0.75, len(models) - 0.5)
    panel.set_xlim(0, 130)
    panel.set_xlabel("of ds_chat's seconds saved, %")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
