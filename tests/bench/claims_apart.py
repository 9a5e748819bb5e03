"""Papers' ratios in every world that no run's record has: one feed-forward, generation, weights on their way to it,
strategies by layer, longest contexts. All simulated; tests.bench.claims_worlds tells them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import geometric_mean

import numpy as np

from tests.bench.claims_ratio import Ratio
from tests.bench.contexts import longest
from tests.simulator.steps.test_exchanges import (
    COLUMNS,
    DIRECT,
    EXPOSED,
    GPUS,
    HIDDEN,
    RING,
    TOKENS,
    VANILLA,
    feed_forward,
    sliced,
)
from tests.simulator.steps.test_small_steps import DEVICE
from zbench.anchors.presets import cluster as preset_cluster
from zbench.anchors.presets import world as preset
from zbench.api.parts import model_named
from zbench.api.played_layers import played_layers
from zbench.cost.by_layer.search import LayerPlan, LayerSearch
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.job import CHUNKED, CONTINUOUS, GENERATION_ENGINES, SEESAW
from zbench.describe.model import Model
from zbench.describe.worlds import Machine
from zbench.figures.rollouts.seesaw import FOUR_GPUS, SETS, set_lengths
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW
from zbench.rollouts.generate import MEMORY_SHARE
from zbench.rollouts.generation_engines import EngineLimits, every_layout, played_engines
from zbench.rollouts.reshard import played_resharding
from zbench.simulator.steps.play import play_step
from zbench.step.passes.overlap.overlapped import with_exchanges
from zbench.step.reading.read import read_step


def feed_forward_ratios(worlds: Sequence[str]) -> list[Ratio]:
    """Returns those of CommFuse's feed-forward, from the one rate of links that its table gives in the nominal world
    (docs/overlap.md). A message has the latency of a800_4x8's NVLink, 10 us."""
    compute, exchange = (VANILLA - EXPOSED) / 1e3, EXPOSED / 2e3
    device = replace(DEVICE, matmul_flops=4 * TOKENS * HIDDEN * COLUMNS / GPUS / compute)
    rate = 2 * TOKENS * HIDDEN * (GPUS - 1) / GPUS / exchange
    cluster = Cluster("c", 1, GPUS, GPUS, 1e9, 1.0, 0.0, rate, 1.0, 1e-5, device)
    names = (("over none", "1.59"), ("over eight slices", "1.09"), ("straight messages, over none", ""))
    found = [Ratio(*name) for name in names]
    for world, cost in _costs(cluster, Model("m", 1, HIDDEN, 8, 8, 128, COLUMNS, 1000), worlds):

        def seconds(how: ExchangeOverlap, of: Cost = cost) -> float:
            return play_step(with_exchanges(read_step(feed_forward()), how, [np.ones(4, np.int64)]), (), of).seconds

        none, ring = seconds(WHOLE), seconds(RING)
        values = none / ring, seconds(sliced(8)) / ring, none / seconds(DIRECT)
        for ratio, value in zip(found, values, strict=True):
            ratio.by[world] = value
    return found


def seesaw_ratios(worlds: Sequence[str]) -> list[Ratio]:
    """Returns the geometric means of docs/seesaw.md's six rows of a node, over whole prompts and over both engines."""
    found = []
    for node, published in (("a10_1x8", "1.45"), ("l4_1x8", "1.29")):
        whole, both = Ratio(f"{node}, over whole prompts", published), Ratio(f"{node}, over both", "likewise")
        gains: dict[str, list[tuple[float, float]]] = {}
        for name in ("llama3_15b", "codellama_34b", "llama2_70b"):
            part = preset_cluster(node).part(1, 4 if name in FOUR_GPUS else 8, 1)
            for world, cost in _costs(part, model_named(name), worlds):
                gains.setdefault(world, []).extend(_seesaw_gains(cost))
        for world, mine in gains.items():
            whole.by[world], both.by[world] = (geometric_mean(column) for column in zip(*mine, strict=True))
        found += [whole, both]
    return found


def _seesaw_gains(cost: Cost) -> Iterator[tuple[float, float]]:
    for lengths in SETS:
        prompts, responses = set_lengths(lengths)
        layouts = every_layout(cost, MEMORY_SHARE, int((prompts + responses).max()))
        plays = played_engines(prompts, responses, layouts, GENERATION_ENGINES, EngineLimits())
        least = {name: min(one.seconds for one in plays if one.engine == name) for name in GENERATION_ENGINES}
        yield least[CONTINUOUS] / least[SEESAW], min(least[CONTINUOUS], least[CHUNKED]) / least[SEESAW]


def resharding_ratios(worlds: Sequence[str]) -> list[Ratio]:
    """Returns DeepSpeed-Chat's seconds over HybridFlow's, of weights on their way to generation (docs/rollouts.md); of
    eight layers, which are gathered one after another."""
    found = []
    for name, nodes, train, generate, published in (
        ("llama_7b", 2, "1-8-2", "1-2", "2.23 in the mean"),
        ("llama_13b", 2, "1-8-2", "1-4", "at most 3.47"),
        ("llama2_70b", 8, "4-8-2", "1-8", "9.17"),
    ):
        ratio = Ratio(f"{name}, {train} to {generate}", published)
        cluster = preset_cluster("a100_80g_16x8", nodes)
        degrees = TrainDegrees.of(train), GenerateDegrees.of(generate)
        for world, cost in _costs(cluster, replace(model_named(name), num_layers=8), worlds):
            all_, own = (played_resharding(engine, *degrees, cost).seconds for engine in (DS_CHAT, HYBRIDFLOW))
            ratio.by[world] = all_ / own
        found.append(ratio)
    return found


def layer_ratios(worlds: Sequence[str]) -> list[Ratio]:
    """Returns what recomputing some layers gains over one strategy for all, played: row 3 of docs/layers.md."""
    lengths = np.full(64, 8192, np.int64)
    found = Ratio("recomputed by layer, over one strategy for all layers", "")
    for world, cost in _costs(preset_cluster("a100_8x8", 2), model_named("llama_13b"), worlds):
        search = LayerSearch(cost, lengths, ("none", "full"))

        def seconds(plan: LayerPlan | None, of: Cost = cost) -> float:
            assert plan is not None
            return played_layers(plan, of.cluster, of.model, lengths).seconds

        found.by[world] = seconds(search.alike(search.is_played_even)) / seconds(search.recomputed())
    return [found]


def context_ratios(worlds: Sequence[str]) -> list[Ratio]:
    """Returns how many times as long a context is, of llama3_8b on eight H100, with other windows and in two worlds
    (docs/memory/contexts.md); an account of memory knows no seconds, so other worlds are not played."""
    chunks = Ratio("MsT: chunks over recomputation alone, 8 GPUs", "4 on one GPU")
    alst = Ratio("ALST: over its tiles without host memory, 8 GPUs", "")
    causes = {"nominal": "", "window 0": "sharding.window=0", "window 2": "sharding.window=2"}
    causes |= {world: f"world={world}" for world in ("nvlink_3", "matmul_minus_20") if world in worlds}
    for cause, words in causes.items():
        job = f"model=llama3_8b cluster=h100_4x8 system=ring recompute=full {words}"
        full, cut, hosts = (longest(f"{job} memory={memory}", 8).tokens for memory in ("none", "chunks", "alst"))
        chunks.by[cause], alst.by[cause] = cut / full, hosts / cut
    return [chunks, alst]


def _costs(cluster: Cluster, model: Model, worlds: Sequence[str]) -> Iterator[tuple[str, Cost]]:
    """Yields the worlds that such a machine has, the nominal one first."""
    machine = Machine(cluster, model)
    for world in worlds:
        if world == "nominal" or preset(world).missing(machine) is None:
            there = preset(world).of(machine)
            yield world, Cost(cluster=there.cluster, model=there.model)


APART = {
    "commfuse_layer": feed_forward_ratios,
    "seesaw": seesaw_ratios,
    "resharding": resharding_ratios,
    "layers": layer_ratios,
    "contexts": context_ratios,
}
