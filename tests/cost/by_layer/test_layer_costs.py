"""A layer's seconds and bytes with a strategy, against what the cost model has of whole jobs."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.api.parts import cluster_named, model_named
from zbench.cost.bound import bound_seconds
from zbench.cost.by_layer.decision_tree import DATA, SHARDED, TENSOR, LayerStrategy, TreeLevel, decision_tree
from zbench.cost.by_layer.layer_costs import LayerCosts, strided_gather_seconds
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.gathers import run_seconds
from zbench.cost.memory.needs import moments_of_stages
from zbench.cost.memory.state import ADAM_BYTES
from zbench.cost.recompute import again_activation_bytes, layer_activation_bytes
from zbench.describe.batch import Batch
from zbench.describe.model import RecomputeLevel

COST = Cost(cluster=cluster_named("a800_2x8", {}), model=model_named("llama_3b", {}))
LENGTHS = np.full(32, 4096)


def strategy(*levels: tuple[str, int], recompute: str = "none") -> LayerStrategy:
    return LayerStrategy(tuple(TreeLevel(*one) for one in levels), recompute)


def costs_of(*strategies: LayerStrategy, micro_batches: int = 1, cost: Cost = COST) -> LayerCosts:
    return LayerCosts.of(cost, LENGTHS, strategies[0].tensor * strategies[0].groups, micro_batches, strategies)


@pytest.mark.parametrize("degree", [1, 2, 8, 16])
def test_a_gather_of_consecutive_gpus_is_a_runs(degree: int) -> None:
    assert strided_gather_seconds(COST, 1e9, degree, 1) == pytest.approx(run_seconds(COST, 1e9, degree))


def test_gpus_of_different_nodes_gather_over_nics_that_all_groups_share() -> None:
    apart = strided_gather_seconds(COST, 1e9, 2, 8)
    each = 8 * 1e9 / 2 / COST.cluster.nics_per_node
    assert apart == pytest.approx(COST.nic_transfer_seconds(each) + COST.cluster.nic_latency)
    assert apart > strided_gather_seconds(COST, 1e9, 2, 4)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_layers_sharded_over_all_gpus_have_the_bytes_of_zero3(recompute: RecomputeLevel) -> None:
    """At the loss with the head and a gathered layer, or with a layer that is made again and two that are gathered,
    whose gradients this search does not count."""
    costs = costs_of(strategy((SHARDED, 16), recompute=recompute))
    table, (_, outside, loss) = costs.table(1), costs.outside(True, True)
    stays = COST.model.num_layers * int(table.bytes[0]) + outside
    model = replace(COST.model, sharding="zero3", recompute=recompute)
    (of,) = moments_of_stages(replace(COST, model=model))
    (line,), tokens = of.at_loss, LENGTHS.sum() / 16
    state = model.total_params * (model.element_bytes + GRADIENT_BYTES + ADAM_BYTES) / 16  # norms' gains like others
    assert stays == pytest.approx(state + of.kept * tokens, rel=1e-4)
    layer = model.layer_params * model.element_bytes
    own = layer / 16  # of a gathered layer, which this search counts twice
    assert loss + int(table.at_loss[0]) == pytest.approx(line.token * tokens + line.constant + own, rel=1e-4)
    again = {"none": 0, "selective": again_activation_bytes(model), "full": layer_activation_bytes(model)}[recompute]
    assert int(table.working[0]) == pytest.approx(again * tokens + 2 * layer, rel=1e-4)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_layers_whose_gathers_are_hidden_take_the_bounds_seconds(recompute: RecomputeLevel) -> None:
    fast = replace(COST.cluster, nic_bandwidth=1e15, nvlink_bandwidth=1e15, nic_latency=0.0, nvlink_latency=0.0)
    cost = replace(COST, cluster=fast)
    costs = costs_of(strategy((SHARDED, 16), recompute=recompute), cost=cost)
    seconds = COST.model.num_layers * float(costs.table(1).seconds[0]) + costs.outside(True, True).seconds
    whole = replace(cost, model=replace(COST.model, sharding="zero3", recompute=recompute))
    # To the starts of kernels that selective recomputation has besides.
    assert seconds == pytest.approx(bound_seconds(Batch(LENGTHS, 0, 0), whole), rel=1e-3)


def test_a_sharded_layer_gathers_for_every_micro_batch_and_another_reduces_once() -> None:
    narrow = replace(COST, cluster=replace(COST.cluster, nic_bandwidth=1e8))
    both = strategy((SHARDED, 16)), strategy((DATA, 16))
    sharded, whole = costs_of(*both, micro_batches=2, cost=narrow).table(1).seconds * 2
    params, e = narrow.model.layer_params, narrow.model.element_bytes
    gather, reduce = (strided_gather_seconds(narrow, params * size, 16, 1) for size in (e, 4))
    assert sharded == pytest.approx(2 * (2 * gather + reduce), rel=1e-2)
    assert whole == pytest.approx(2 * reduce, rel=0.2)


def test_each_stage_holds_what_is_under_way() -> None:
    costs = costs_of(strategy((SHARDED, 16)), micro_batches=2)
    one, two, three = (int(costs.table(count).bytes[0]) for count in (1, 2, 3))
    assert three - two == pytest.approx(two - one, abs=2)
    assert two > one


def test_strategies_need_heads_to_cut_and_a_sequence_for_every_group() -> None:
    costs = LayerCosts.of(COST, LENGTHS, 16, 4, decision_tree(16))
    assert {one.groups for one in costs.usable} == {1, 2, 4, 8} - {
        16 // tensor for tensor in (2, 4, 8, 16) if COST.model.num_heads % tensor
    }


def test_tokens_lie_alike_with_either_kind_of_data_parallelism() -> None:
    layout = costs_of(
        strategy((SHARDED, 8), (TENSOR, 2)), strategy((DATA, 8), (TENSOR, 2)), strategy((TENSOR, 2), (DATA, 8))
    ).table(1)
    assert layout.layout[0] == layout.layout[1] != layout.layout[2]
    assert layout.change > 0


def test_the_head_is_on_the_last_stage() -> None:
    costs = costs_of(strategy((SHARDED, 16)))
    first, last = costs.outside(True, False), costs.outside(False, True)
    assert last.seconds > first.seconds > 0
    assert last.bytes == first.bytes > 0  # a head is as large as the table
    assert last.loss > first.loss == 0
    assert costs.outside(False, False) == (0.0, 0, 0)
