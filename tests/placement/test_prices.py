"""The prices of models on parts of a cluster: what they are made of, and that none beats what it takes at least."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest

from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.rollouts.stages import ALGORITHMS
from zbench.placement.layout import ModelLayout
from zbench.placement.mapping import MappingSearch, set_partitions
from zbench.placement.offers import PlacementOffers
from zbench.placement.prices import TRAINED, PackedModel, PlacedWork, PlacementPrices
from zbench.rollouts.generate import GenerationCost, generate
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import play_step
from zbench.systems.mesh import Mesh


@dataclass
class Priced:
    """The offer of a layout with its price."""

    known: ModelLayout
    parts: tuple[()] = ()

    def least(self) -> tuple[float, ...]:
        return self.known.seconds

    def layout(self) -> ModelLayout:
        return self.known


SIZES = np.array([300, 500, 40, 900, 64, 700, 128, 256])


def prices(algorithm: str = "ppo", nodes: int = 2, **work: int) -> PlacementPrices:
    actor, small = (replace(model_named(name, {}), recompute="full") for name in ("llama_3b", "desk"))
    stages = ALGORITHMS[algorithm]
    models = {role: small if role == "critic" else actor for role in stages.models}
    cluster = cluster_named("a800_4x8", {"num_nodes": nodes})
    return PlacementPrices(stages, models, cluster, PlacedWork(SIZES, 2 * SIZES, **work))


def layouts(of: PlacementPrices, role: str, gpus: int) -> list[ModelLayout]:
    """All layouts of a model that have room by themselves, each with its price."""
    found = []
    for one in PlacementOffers(of).of(role, gpus):
        least = one.least()
        for part in one.parts:
            part()
            assert all(a <= b * (1 + 1e-12) for a, b in zip(least, one.least(), strict=True))
            least = one.least()
        if (layout := one.layout()) is not None:
            assert all(a <= b * (1 + 1e-12) for a, b in zip(least, layout.seconds, strict=True)), layout.words
            found.append(layout)
    return found


def test_a_layout_has_the_seconds_of_a_step_a_forward_and_generation() -> None:
    of = prices("ppo", updates=2)
    found = next(one for one in layouts(of, "actor", 8) if "zero3; generates with 2 GPUs and 0.6" in one.words)
    model = replace(of.models["actor"], sharding="zero3")
    cost = make_cost(replace(of.cluster, num_nodes=1), model, False, True)
    batch = Batch(np.sort(3 * SIZES)[1::2], 0, 0)
    plans = Mesh(cost, "ring", 1, "balanced", 16384).plan(batch)
    assert found.seconds[3] == pytest.approx(2 * Simulated(cost).step(batch, plans).seconds, rel=1e-12)
    played = generate(SIZES, 2 * SIZES, GenerationCost(Cost(cluster=cost.cluster, model=model), 2, 0.6), 4)
    assert found.seconds[1] == pytest.approx(float(played.seconds.max()), rel=1e-12)
    assert found.seconds[2] == 0.0
    reference = next(one for one in layouts(of, "reference", 8) if one.words == "zero3")
    whole = Mesh(cost, "ring", 1, "balanced", 16384).plan(Batch(3 * SIZES, 0, 0))
    forward = play_step(Simulated(cost).steps.forwards(whole), whole, cost.gpus).seconds
    assert reference.seconds == pytest.approx((0, 0, forward, 0), rel=1e-12)


def test_no_layout_beats_what_its_stages_take_at_least() -> None:
    of = prices("remax", updates=2)
    for role in of.models:
        for gpus in (4, 16):
            least, kept = of.least(role, gpus), of.keeps(role)
            for one in layouts(of, role, gpus):
                assert all(a <= b for a, b in zip(least, one.seconds, strict=True)), one.words
                assert one.kept * gpus >= kept * (1 - 1e-12)
    assert of.least("actor", 8)[1] > 0 < of.least("reward", 8)[2]
    assert of.least("reward", 8)[2] == 2 * of.least("reference", 8)[2]


def test_sets_have_whole_nodes_or_halves_of_halves() -> None:
    assert prices(nodes=2).sizes == [1, 2, 4, 8, 16]


def test_the_search_prices_no_more_than_it_has_to() -> None:
    of, bare = prices("grpo", nodes=2), prices("grpo", nodes=2)
    memory, partitions = of.cluster.device.memory_bytes, list(set_partitions(tuple(of.models)))
    every = {
        (role, gpus): [Priced(one) for one in layouts(bare, role, gpus)] for role in of.models for gpus in of.sizes
    }
    search = MappingSearch(16, of.sizes, memory, PlacementOffers(of).of, of.least, of.keeps)
    plain = MappingSearch(16, of.sizes, memory, lambda *key: every[key], lambda role, gpus: (0.0,) * 4, of.keeps)
    found, best = search.best(partitions), plain.best(partitions)
    assert found is not None
    assert best is not None
    assert found.seconds == best.seconds < inf
    assert len(of._known) < len(bare._known) / 2


def test_stages_have_micro_batches_to_fill_them() -> None:
    of = replace(prices("grpo", nodes=2), trained=TRAINED)
    words = {one.words.partition(";")[0] for one in layouts(of, "actor", 16) if one.words.startswith("2 stages")}
    cuts = ("", *(f"tensor {tensor}, " for tensor in (2, 4, 8)))
    assert {one.partition(", micro")[0] for one in words} == {
        f"2 stages, {cut}{sharding}" for cut in cuts for sharding in TRAINED
    }
    assert len(words) > 4 * len(TRAINED)  # of several sizes
    assert not any("stages" in one.words for one in layouts(of, "reference", 8))  # of one node


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_stage_in_shards_has_the_seconds_of_its_step(sharding: str) -> None:
    """A stage in shards is no fuller than one in slices, and with shards of weights less full; all GPUs gather weights
    alike, of stages or of one."""
    of = prices("grpo", nodes=2)
    staged, one, slices = (
        PackedModel(replace(of.models["actor"], sharding=how, pipeline_parallel=stages), 16, 2700)
        for how, stages in ((sharding, 2), (sharding, 1), ("zero1", 2))
    )
    cost = make_cost(of.cluster, staged.model, False, True)
    batch = Batch(of.work.part, 0, 0)
    plans = Mesh(cost, "ring", 1, "balanced", 2700).plan(batch)
    seconds, peak = of.update(staged)
    result = Simulated(cost).step(batch, plans)
    assert seconds == pytest.approx(result.seconds, rel=1e-12)
    assert peak == max(result.peak_bytes) <= of.update(slices)[1]  # of one micro-batch, reduced as it is made
    assert of.least_update(staged) <= seconds
    if sharding == "zero3":
        assert peak < of.update(slices)[1]
        assert of.reshard(staged, 4) == of.reshard(one, 2)


def test_more_updates_than_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^updates is 9; there are 8 sequences, so it takes at most that$"):
        PlacedWork(SIZES, SIZES, 9)


def test_models_with_experts_are_refused() -> None:
    of = prices()
    with pytest.raises(
        ValueError, match=r"^model mixtral_8x7b has num_experts=8 and tied_embeddings=false; placements"
    ):
        replace(of, models={**of.models, "critic": model_named("mixtral_8x7b", {})})
