"""The search over stages, micro-batches, cuts and strategies, against trying everything."""

from dataclasses import replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest

from tests.cost.by_layer.test_programme import bytes_of, seconds_of
from tests.cost.by_layer.test_stage_cuts import every_cut
from zbench.api.parts import cluster_named, model_named
from zbench.cost.by_layer.decision_tree import SHARDED, LayerStrategy, TreeLevel
from zbench.cost.by_layer.search import UNIT, CutPipeline, LayerPlan, LayerSearch
from zbench.cost.by_layer.stage_cuts import pipeline_seconds
from zbench.cost.cost import Cost

FOUR = replace(cluster_named("a800_2x8", {}), num_nodes=2, gpus_per_node=2, nics_per_node=1, nic_bandwidth=2e8)
MODEL = replace(model_named("llama_7b", {}), num_layers=3)


def search_of(gib: float, layers: int = 3) -> LayerSearch:
    """A search for 16 sequences of 4,096 tokens on two nodes of two GPUs with so much memory and a narrow network."""
    device = replace(FOUR.device, memory_bytes=gib * 2**30)
    cost = Cost(cluster=replace(FOUR, device=device), model=replace(MODEL, num_layers=layers))
    return LayerSearch(cost, np.full(16, 4096))


def tried(pipeline: CutPipeline, room: int) -> float:
    """Returns the least seconds over all cuts and strategies of every layer."""
    best: dict[tuple[int, int], float] = {}
    for stage, layers in product(range(pipeline.stages), range(1, MODEL.num_layers + 2 - pipeline.stages)):
        table, (seconds, taken, loss) = pipeline.programme(stage).table, pipeline.outside(stage)
        every = product(range(len(table.seconds)), repeat=layers)
        fitting = (seconds + seconds_of(table, one) for one in every if taken + bytes_of(table, one, loss) <= room)
        best[stage, layers] = min(fitting, default=inf)
    cuts = every_cut(MODEL.num_layers, pipeline.stages)
    return min(
        pipeline_seconds([best[stage, count] for stage, count in enumerate(cut)], pipeline.costs.micro_batches)
        for cut in cuts
    )


def seconds_or_inf(plan: LayerPlan | None) -> float:
    return inf if plan is None else plan.seconds


@pytest.mark.parametrize("gib", [2.0, 4.5, 5.0, 6.0, 8.0])
def test_the_search_finds_what_trying_everything_finds(gib: float) -> None:
    """But for what memory is rounded by, at most a unit a layer: between what there is with that less, and all."""
    search = search_of(gib)
    found = seconds_or_inf(search.balanced())
    room = int(gib * 2**30)
    least, most = (
        min(tried(pipeline, size) for pipeline in search.pipelines()) for size in (room, room - MODEL.num_layers * UNIT)
    )
    assert least * (1 - 1e-12) <= found <= most * (1 + 1e-12)


def test_a_strategy_by_layer_is_no_slower_than_one_for_all_and_moves_are_no_slower_than_even_stages() -> None:
    gains = []
    for gib in (8.0, 8.5, 9.0, 10.0, 11.0):
        search = search_of(gib, 7)
        alike, even, balanced = map(seconds_or_inf, (search.alike(), search.even(), search.balanced()))
        assert balanced <= even <= alike
        gains.append((even < alike, balanced < even))
    assert all(any(column) for column in zip(*gains, strict=True))


def test_more_memory_is_never_slower() -> None:
    found = [seconds_or_inf(search_of(gib).balanced()) for gib in np.arange(2.0, 9.0, 0.5).tolist()]
    assert all(after <= before for before, after in pairwise(found))
    assert found[0] == inf
    assert found[-1] < inf


def test_a_plan_fits_and_has_a_strategy_for_every_layer() -> None:
    plan = search_of(7.5, 6).balanced()
    assert plan is not None
    assert tuple(map(len, plan.strategies)) == plan.cut
    assert sum(plan.cut) == 6
    assert max(plan.room) <= 7.5 * 2**30
    assert plan.seconds == pipeline_seconds(plan.stages, plan.micro_batches)


def test_the_best_that_whole_steps_have_is_one_that_they_have() -> None:
    search = search_of(20.0)
    plan = search.alike(search.is_played_even)
    assert plan is not None
    assert search.is_played(len(plan.cut), plan.strategies[0][0])
    sharded = LayerStrategy((TreeLevel(SHARDED, 2),), "none")
    assert search.is_played(1, sharded)
    assert not search.is_played(2, sharded)


def test_of_each_stage_as_few_layers_are_recomputed_as_have_to_be() -> None:
    search = search_of(10.0, 6)
    plan = search.recomputed()
    assert plan is not None
    pipeline = next(one for one in search.pipelines() if one.stages == len(plan.cut))
    for kept, again in pipeline.pairs:
        for stage, layers in product(range(pipeline.stages), (1, 3)):
            every = [(again,) * count + (kept,) * (layers - count) for count in range(layers + 1)]
            fitting = [one for one in every if pipeline.bytes(stage, one) <= pipeline.room]
            assert pipeline.fewest(stage, layers, kept, again) == (fitting[0] if fitting else ())


@pytest.mark.parametrize("gib", [7.5, 8.0, 9.0, 10.0])
def test_recomputation_by_layer_is_between_one_for_all_and_the_whole_search(gib: float) -> None:
    search = search_of(gib, 6)
    alike, some = map(seconds_or_inf, (search.alike(search.is_played_even), search.recomputed()))
    assert seconds_or_inf(search.balanced()) <= some <= alike


def test_nodes_that_are_no_power_of_two_are_refused() -> None:
    cost = Cost(cluster=replace(FOUR, num_nodes=3), model=MODEL)
    with pytest.raises(ValueError, match=r"cluster\.num_nodes is 3; strategies by layer take a power of two"):
        LayerSearch(cost, np.full(4, 512))
