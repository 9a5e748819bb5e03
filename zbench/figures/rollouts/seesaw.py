"""Seesaw's generation beside engines with one layout, on nodes without NVLink, and over the length of responses.

Lengths are made up by what is known of the published ones: means, medians and a spread (docs/seesaw.md says which).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.job import CHUNKED, CONTINUOUS, GENERATION_ENGINES, SEESAW
from zbench.figures.records import Records, cost_of_run
from zbench.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, WIDTH
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.generate import MEMORY_SHARE
from zbench.rollouts.generation_engines import EngineLimits, EnginePlay, every_layout, layout_cost, played_engines

EXPERIMENTS = ("seesaw",)
PANELS = (3, 1)
SIZE = (WIDTH, 9.6)
PUBLISHED = {"a10_1x8": 1.45, "l4_1x8": 1.29}  # geometric means over the best static one (arXiv 2503.06433)
FOUR_GPUS = ("llama3_15b",)  # models that the paper has on four, all others on eight
SETS = ("sharegpt", "arxiv")
STUDIED = ("a10_1x8", "llama2_70b")  # the paper's study of lengths: prompts of 3,000 tokens
PROMPT, REQUESTS = 3000, 100
RESPONSES = (1, 75, 150, 300, 450, 600, 900)
STATIC = {"8-1": PURPLE, "4-2": GREEN, "2-4": ORANGE, "1-8": SKY}
PAIR = ("8-1", "2-4")  # the published one
TICKS = (0.1, 0.2, 0.5, 1)  # requests a second
LIGHT = "#f2c5a7"  # of seesaw's colour


@dataclass(frozen=True, slots=True)
class SeesawGain:
    """The fastest play of each engine on a cluster, for a model and a set of lengths, by engine."""

    cluster: str
    model: str
    lengths: str
    best: Mapping[str, EnginePlay]

    def over(self, *engines: str) -> float:
        """Returns the speed-up of seesaw over the fastest of some engines."""
        return min(self.best[one].seconds for one in engines) / self.best[SEESAW].seconds


@dataclass(frozen=True, slots=True)
class ResponsePoint:
    """Requests a second with responses of so many tokens. layouts: p-t of one layout, or of two."""

    layouts: str
    response: int
    per_second: float


@dataclass(frozen=True, slots=True)
class SeesawTable:
    """The figure's numbers."""

    gains: Sequence[SeesawGain]
    points: Sequence[ResponsePoint]


def table(records: Records) -> SeesawTable:
    """Plays generation on one node of every recorded cluster, with every recorded model."""
    gains, points = list[SeesawGain](), list[ResponsePoint]()
    for run in records.runs:
        cost = cost_of_run(run)
        gpus = 4 if cost.model.name in FOUR_GPUS else 8
        node = replace(cost, cluster=cost.cluster.part(1, gpus, 1))
        for lengths in SETS:
            best = _best(node, *set_lengths(lengths))
            gains.append(SeesawGain(cost.cluster.name, cost.model.name, lengths, best))
        if (cost.cluster.name, cost.model.name) == STUDIED:
            points += _points(node)
    return SeesawTable(gains, points)


def set_lengths(name: str) -> tuple[Ints, Ints]:
    """Returns prompts and responses of a set, tokens of each: as many requests as the paper has."""
    rng = np.random.default_rng([len(name), *name.encode()])
    if name == "sharegpt":
        return _lognormal(rng, 2000, 161.31, 1.2), _lognormal(rng, 2000, 337.99, 1.0)
    spread = np.log(371 / 208) / 1.2816  # from median to ninth decile of a normal distribution
    return np.full(500, PROMPT), _lognormal(rng, 500, 208 * np.exp(spread**2 / 2), spread)


def _lognormal(rng: np.random.Generator, count: int, mean: float, spread: float) -> Ints:
    drawn = np.exp(rng.normal(np.log(mean) - spread**2 / 2, spread, count))
    return np.clip(np.rint(drawn), 1, 2048).astype(np.int64)


def _best(node: Cost, prompts: Ints, responses: Ints) -> dict[str, EnginePlay]:
    layouts = every_layout(node, MEMORY_SHARE, int((prompts + responses).max()))
    found = played_engines(prompts, responses, layouts, GENERATION_ENGINES, EngineLimits())
    return {one.engine: one for one in sorted(found, key=lambda one: -one.seconds)}


def _points(node: Cost) -> Iterator[ResponsePoint]:
    prompts = np.full(REQUESTS, PROMPT)
    costs = {name: layout_cost(node, GenerateDegrees.of(name), MEMORY_SHARE) for name in STATIC}
    for response in RESPONSES:
        responses = np.full(REQUESTS, response)
        for one in played_engines(prompts, responses, list(costs.values()), [CONTINUOUS], EngineLimits()):
            yield ResponsePoint(str(one.prefill), response, REQUESTS / one.seconds)
        pair = [costs[name] for name in PAIR]
        both = played_engines(prompts, responses, pair, [SEESAW], EngineLimits())
        here = next(one for one in both if str(one.prefill) == PAIR[0])
        yield ResponsePoint(" to ".join(PAIR), response, REQUESTS / here.seconds)


def draw(axes: Sequence[Axes], table: SeesawTable) -> None:
    """Draws speed-ups by cluster, and requests a second by the length of responses."""
    clusters = list(dict.fromkeys(one.cluster for one in table.gains))
    furthest = max(one.over(CONTINUOUS) for one in table.gains)
    for panel, cluster in zip(axes, clusters, strict=False):
        mine = [one for one in table.gains if one.cluster == cluster]
        at = np.arange(len(mine))
        for shift, colour, engines, label in (
            (-0.2, LIGHT, (CONTINUOUS,), "over whole prompts"),
            (0.2, VERMILLION, (CONTINUOUS, CHUNKED), "over chunked prefill, too"),
        ):
            gains = [one.over(*engines) for one in mine]
            panel.barh(at + shift, gains, 0.36, color=colour, label=label)
            for y, one, gain in zip((at + shift).tolist(), mine, gains, strict=True):
                seesaw = one.best[SEESAW]
                over = min((one.best[engine] for engine in engines), key=lambda play: play.seconds)
                words = f"{gain:.2f}: {seesaw.prefill} to {seesaw.decode} over {over.prefill}"
                panel.text(0.04, y, words, va="center", fontsize=7.5)
        panel.axvline(1, color=GREY, lw=1)
        panel.axvline(PUBLISHED[cluster], color=BLACK, lw=1.6, ls=(0, (2, 1)))
        panel.set_yticks(at, [f"{one.model}\n{one.lengths}" for one in mine], fontsize=7.5)
        panel.set_ylim(len(mine) - 0.5, -0.5)
        panel.set_xlim(0, 1.06 * max(furthest, PUBLISHED[cluster]))
        panel.set_title(cluster)
        panel.grid(axis="x")
    axes[len(clusters) - 1].set_xlabel("speed-up of seesaw over the fastest single layout (p-t)")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=BLACK, lw=1.6, ls=(0, (2, 1))))
    axes[0].figure.legend(handles, [*labels, "published mean"], loc="outside upper left", ncols=3, handlelength=1.2)
    _draw_points(axes[-1], table.points)


def _draw_points(panel: Axes, points: Sequence[ResponsePoint]) -> None:
    for layouts in dict.fromkeys(one.layouts for one in points):
        mine = [one for one in points if one.layouts == layouts]
        colour = STATIC.get(layouts, BLUE)
        x, y = [one.response / PROMPT for one in mine], [one.per_second for one in mine]
        panel.plot(x, y, color=colour, lw=1.8, marker="o", ms=3, label=layouts)
    panel.set_yscale("log")
    panel.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    panel.minorticks_off()
    panel.set_title(f"{STUDIED[1]} on {STUDIED[0]}, prompts of {PROMPT:,} tokens")
    panel.set_xlabel("length of a response over that of its prompt")
    panel.set_ylabel("requests/s")
    panel.grid()
    panel.legend(ncols=5, fontsize=7.5, handlelength=1.2, columnspacing=1, loc="upper right")


def where(records: Records) -> str:
    """Says for the stamp where the numbers come from."""
    return f"generation, simulated on one node of {', '.join(records.clusters)}; the commands record their constants"
