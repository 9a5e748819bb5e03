"""Ordering: the same operations in a valid order, and no slower worth speaking of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import REAL, batches, costs, forwards
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.passes import order, remap, reverse, route
from zbench.passes.order import scheduled
from zbench.passes.reverse import MODES
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import COLUMNS, Ops, Plan
from zbench.proof.verify import verify
from zbench.simulator.attention import programs
from zbench.simulator.estimate.layers import ClockState, Layers
from zbench.simulator.estimate.step import StepEstimate, layer_seconds


def rows(ops: Ops) -> list[tuple]:
    return sorted(zip(*(getattr(ops, name).tolist() for name in COLUMNS), strict=True))


@settings(max_examples=60)
@given(st.data(), costs(), st.sampled_from(MODES), st.booleans())
def test_never_invalid_and_the_same_operations(data: st.DataObject, cost: Cost, mode: str, moved: bool) -> None:
    plan = data.draw(forwards(cost))
    plan = route(reverse(remap(plan, cost, 0) if moved else plan, mode), cost)
    found = order(plan, cost)
    verify(found)
    assert rows(found.forward) == rows(plan.forward)
    assert rows(found.backward) == rows(plan.backward)
    assert found.blocks is plan.blocks
    assert found.backward_mode == plan.backward_mode


def mixed(seed: int, routed: bool = True) -> tuple[Plan, Cost]:
    """Rings over all ranks, rings inside nodes and local sequences, laid one after another."""
    cluster = Cluster("c", 4, 8, 4, 25e9, 0.8, 15e-6, 2e11, 0.6, 1e-5, REAL)
    cost = Cost(cluster, Model("m", 4, 4096, 32, 32, 128, 11008, 32000))
    rng = np.random.default_rng(seed)
    tokens = np.minimum(rng.lognormal(6.1, 1.6, 3000).astype(np.int64) + 1, 131072)
    tokens = tokens[: int(np.searchsorted(np.cumsum(tokens), 200_000)) + 1]
    builder = Builder(tokens, 32, 32)
    outer, inner = np.flatnonzero(tokens >= 16000), np.flatnonzero((tokens < 16000) & (tokens >= 3000))
    short = np.flatnonzero(tokens < 3000)
    ring(builder, outer, 0 * outer, np.arange(32)[None])
    ring(builder, inner, rng.integers(0, 4, len(inner)), np.arange(32).reshape(4, 8))
    local(builder, short, rng.integers(0, 32, len(short)))
    plan = reverse(builder.build(), "carry")
    return route(plan, cost) if routed else plan, cost


@pytest.mark.parametrize("routed", [False, True])
def test_layers_get_faster_on_average_and_none_much_slower(routed: bool) -> None:
    """One layer is never slower; layers in a row, whose ranks start unevenly, hardly."""
    ratios = []
    for seed in range(8):
        plan, cost = mixed(seed, routed)
        found = order(plan, cost)
        assert layer_seconds(found, cost, 1) <= layer_seconds(plan, cost, 1) * (1 + 1e-9)
        ratios.append(layer_seconds(found, cost, 4) / layer_seconds(plan, cost, 4))
    assert np.mean(ratios) <= 1.0
    assert max(ratios) < 1.02


@given(st.data(), costs(), st.sampled_from(MODES))
def test_the_prediction_is_what_the_clock_plays(data: st.DataObject, cost: Cost, mode: str) -> None:
    plan = route(reverse(data.draw(forwards(cost)), mode), cost)
    found, predicted, _ = scheduled(plan, cost, programs(plan, cost))
    ends = []
    for linear, part in zip((cost.linear_seconds, cost.backward_linear_seconds), programs(found, cost), strict=True):
        state = ClockState.zero(cost.cluster)
        Layers(part, linear(plan.tokens_per_rank), 1).one(state)
        ends.append(float(state.ready.max()))
    assert predicted == pytest.approx(sum(ends), rel=1e-12)


def test_random_plans_are_no_slower_on_average() -> None:
    """Over random clusters, patterns and modes: at most 2 % on average, whole steps of several layers."""
    ratios: list[float] = []

    @settings(max_examples=80)
    @given(st.data(), costs(), st.sampled_from(MODES), batches())
    def collect(data: st.DataObject, cost: Cost, mode: str, batch: Batch) -> None:
        plan = route(reverse(data.draw(forwards(cost)), mode), cost)
        play = StepEstimate(cost)
        ratios.append(play.seconds((order(plan, cost),)) / play.seconds((plan,)))

    collect()
    assert np.mean(ratios) < 1.02


def test_ordering_twice_gains_nothing_to_speak_of() -> None:
    plan, cost = mixed(0)
    once = order(plan, cost)
    assert layer_seconds(order(once, cost), cost, 2) < 1.02 * layer_seconds(once, cost, 2)


def test_the_order_is_a_function_of_the_plan() -> None:
    plan, cost = mixed(1)
    one, two = order(plan, cost), order(plan, cost)
    for name in COLUMNS:
        assert (getattr(one.forward, name) == getattr(two.forward, name)).all()
        assert (getattr(one.backward, name) == getattr(two.backward, name)).all()
