"""The longest context by the number of GPUs, and what was published of two systems that chunk feed-forward and loss.

A record has constants of a job's strategies, and steps of a few tokens; the lengths are looked for when the figure is
drawn, in accounts of whole steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from zbench.cost.job import make_cost
from zbench.figures.records import Records, cost_of_run
from zbench.figures.style import BLACK, BLUE, GREY, ORANGE, VERMILLION, WIDTH
from zbench.record.record import Run
from zbench.simulated.executor import Simulated
from zbench.simulated.longest import FIRST, ROUND, LongestSequence
from zbench.systems.ring import Ring

EXPERIMENTS = ("contexts", "contexts_chunks")
PANELS = (2, 1)
SIZE = (WIDTH, 8.2)
GPUS = (1, 2, 4, 8, 16, 32)
OF_NODE = 8
SHARE = 50  # lengths are known to such a part
PLAIN, AGAIN, CHUNKS, INPUTS = "nothing made again", "layers made again", "by chunks, too", "inputs on hosts, too"
COLOURS = {PLAIN: GREY, AGAIN: ORANGE, CHUNKS: BLUE, INPUTS: VERMILLION}
STRATEGIES = {  # by level of recomputation, whether feed-forward and loss are by chunks, and what is on hosts
    ("none", (False, False), "optimizer"): PLAIN,
    ("full", (False, False), "optimizer"): AGAIN,
    ("full", (True, True), "optimizer"): CHUNKS,
    ("full", (True, True), "inputs_and_optimizer"): INPUTS,
}
TICKS = {1e4: "10K", 1e5: "100K", 1e6: "1M", 1e7: "10M"}
MARKERS = {"MsT": "*", "ALST": "D"}


@dataclass(frozen=True, slots=True)
class PublishedContext:
    """A published length. tokens: as it is told, a K of 1,000; strategy: of COLOURS, or the words of what is none of
    them; is_read: whether what its authors wrote was read for this figure; the others are hollow marks."""

    paper: str
    model: str
    strategy: str
    gpus: int
    tokens: float
    is_read: bool


# Mini-Sequence Transformer (arXiv 2407.15892), A100 of 80 GB; ALST (arXiv 2506.13996) and its authors' blog, H100, all
# of Llama 3 8B but for what is of Llama 2 7B.
PUBLISHED = (
    PublishedContext("MsT", "llama3_8b", PLAIN, 1, 5e3, False),
    PublishedContext("MsT", "llama3_8b", AGAIN, 1, 14e3, False),
    PublishedContext("MsT", "llama3_8b", CHUNKS, 1, 60e3, True),
    PublishedContext("MsT", "llama3_8b", CHUNKS, 8, 480e3, False),
    PublishedContext("MsT", "llama_7b", PLAIN, 1, 7e3, False),
    PublishedContext("MsT", "llama_7b", AGAIN, 1, 45e3, False),
    PublishedContext("MsT", "llama_7b", CHUNKS, 1, 84e3, False),
    PublishedContext("ALST", "llama3_8b", "without ALST", 1, 32e3, True),
    PublishedContext("ALST", "llama3_8b", INPUTS, 1, 500e3, True),
    PublishedContext("ALST", "llama3_8b", INPUTS, 8, 3.7e6, True),
    PublishedContext("ALST", "llama3_8b", INPUTS, 32, 15e6, True),
)


@dataclass(frozen=True, slots=True)
class ContextPoint:
    """The longest context of a model on some GPUs. tokens: 0 where there is no room for any; at_host: hosts have no
    room for more."""

    model: str
    strategy: str
    gpus: int
    tokens: int
    at_host: bool


def table(records: Records) -> list[ContextPoint]:
    """Looks for the longest contexts of every recorded model and strategy, on one GPU to four nodes of 8.

    Raises:
        ValueError: a run recomputes, chunks or offloads otherwise than the figure shows.
    """
    found = list[ContextPoint]()
    for run in records.runs:
        own, first = cost_of_run(run).gpus, FIRST
        for gpus in GPUS:
            nodes, here = max(gpus // OF_NODE, 1), min(gpus, OF_NODE)
            cost = make_cost(own.cluster.part(nodes, here, here), own.model)
            longest = LongestSequence(Simulated(cost), Ring(cost)).longest(first, SHARE)
            first = max(longest.tokens // gpus // ROUND, FIRST)
            first += 2 * first // SHARE  # a GPU of more has about as much room, so that this is likely too long
            found.append(ContextPoint(own.model.name, _strategy(run), gpus, longest.tokens, longest.at_host))
    return found


def _strategy(run: Run) -> str:
    """Returns which of STRATEGIES a run is of."""
    config = run.start["config"]
    memory, level = config["memory"], config["recompute"]["granularity"]
    cut = memory["mlp_chunk_tokens"] != "whole", memory["loss_chunk_tokens"] != "whole"
    named = STRATEGIES.get((level, cut, memory["offload"]))
    if named is None:
        keys = ("mlp_chunk_tokens", "loss_chunk_tokens", "offload")
        words = ", ".join([f"recompute={level}", *(f"memory.{key}={memory[key]}" for key in keys)])
        raise ValueError(f"figure contexts has no line for {words}; it takes the runs of {' and '.join(EXPERIMENTS)}")
    return named


def draw(axes: Sequence[Axes], table: Sequence[ContextPoint]) -> None:
    """Draws a panel for each model, tokens by GPUs, and published lengths beside them."""
    models = list(dict.fromkeys(one.model for one in table))
    for panel, model in zip(axes, models, strict=False):
        for name, colour in COLOURS.items():
            mine = [one for one in table if (one.model, one.strategy) == (model, name) and one.tokens]
            panel.plot([one.gpus for one in mine], [one.tokens for one in mine], color=colour, lw=1.6, marker=".", ms=5)
            ended = [one for one in mine if one.at_host]
            panel.plot([one.gpus for one in ended], [one.tokens for one in ended], "_", color=colour, ms=15, mew=1.6)
        for one in PUBLISHED:
            if one.model == model:
                _mark(panel, one)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlim(0.75, 43)
        panel.set_ylim(3e3, 6e7)
        panel.set_xticks(GPUS, [f"{gpus}" for gpus in GPUS])
        panel.set_yticks(list(TICKS), list(TICKS.values()))
        panel.minorticks_off()
        panel.set_title(model)
        panel.set_ylabel("longest context, tokens")
        panel.grid()
    axes[len(models) - 1].set_xlabel("GPUs of 80 GB")
    handles = [Line2D([], [], color=colour, marker=".", lw=1.6, label=name) for name, colour in COLOURS.items()]
    handles.append(Line2D([], [], color=BLACK, marker="_", ls="", ms=12, mew=1.6, label="host memory ends it"))
    handles += [
        Line2D([], [], color=BLACK, marker=MARKERS["MsT"], ls="", ms=9, label="MsT, published"),
        Line2D([], [], color=BLACK, marker=MARKERS["MsT"], ls="", ms=9, mfc="white", label="the same, not verified"),
        Line2D([], [], color=BLACK, marker=MARKERS["ALST"], ls="", ms=6, label="ALST, published"),
    ]
    axes[0].figure.legend(handles=handles, loc="outside upper left", ncols=2, handlelength=1.6, columnspacing=1.2)


def _mark(panel: Axes, one: PublishedContext) -> None:
    colour, size = COLOURS.get(one.strategy, BLACK), 10 if one.paper == "MsT" else 6.5
    face = colour if one.is_read else "white"
    panel.plot(one.gpus, one.tokens, MARKERS[one.paper], color=colour, mfc=face, mew=1.2, ms=size, zorder=3)
    if one.strategy not in COLOURS:
        at = one.gpus, one.tokens
        panel.annotate(one.strategy, at, (7, 0), textcoords="offset points", fontsize=7.5, va="center")


def where(records: Records) -> str:
    """Says for the stamp where the numbers come from."""
    return (
        f"one sequence, ring, ZeRO-3, optimizer state on hosts, simulated on nodes of {', '.join(records.clusters)}, "
        "by accounts of whole steps; the commands record their constants"
    )
