"""The price of a change of pipelines, beside the law of its bytes and beside the change as it is played."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.helpers.elements import held_once
from tests.helpers.steps import MODEL, pipeline_plans, plan_of
from tests.simulated.test_executor import small
from zbench.cost.cost import Cost
from zbench.describe.layers.on_hosts import ACROSS_STEPS
from zbench.plans.pipelines import Layout
from zbench.simulator.steps.play import play_step
from zbench.step.elements import elements_held
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.parameters.switch import switch_step
from zbench.step.switch_law import host_link_bytes, switch_bytes
from zbench.step.template import Step
from zbench.systems.hydraulis.changes import ChangePrices

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4)
SHAPES = {
    "": [],
    "single": [(1, 1)] * 8,
    "nodes": [(4, 1)] * 2,
    "mixed": [(4, 1), (2, 1), (1, 1), (1, 1)],
    "stages": [(2, 2), (1, 4)],
    "wide": [(2, 4)],
}


def cost_of(sharding: str) -> Cost:
    one = small(2, 4)
    return replace(one, model=replace(FOUR, sharding=sharding))


def steps_of(cost: Cost) -> dict[str, tuple[Layout, Step]]:
    found: dict[str, tuple[Layout, Step]] = {}
    zero = {"none": "none", "zero1": "1", "zero3": "3"}[str(cost.model.sharding)]
    for name, shapes in SHAPES.items():
        plans = pipeline_plans(shapes, [[(8, 0)]], 8) if shapes else [plan_of([9], 8, 4)]
        pipelines = plans[0].pipelines
        found[name] = () if pipelines is None else pipelines.layout, whole_step(cost.model, plans, zero=zero)
    return found


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_every_gpu_sends_and_receives_what_the_law_says(monkeypatch: pytest.MonkeyPatch, sharding: str) -> None:
    """But for norms' gains, which a GPU may send to all seven others."""
    cost = cost_of(sharding)
    prices, gains = ChangePrices(cost), 14 * FOUR.hidden * (2 * FOUR.num_layers + 1)
    every = steps_of(cost).values()
    held_once([step for _, step in every], monkeypatch)
    for (before, one), (after, other) in permutations(every, 2):
        moves, law = prices.moves(before, after), np.array(switch_bytes(one, other))
        mine = np.stack([np.bincount(column, moves.size, 8) for column in (moves.src, moves.dst)], axis=1)
        assert (np.abs(mine - law).max(axis=0) <= (7 * gains, gains)).all()


@pytest.mark.parametrize("sharding", ["none", "zero3"])
def test_the_price_is_near_the_change_as_it_is_played(sharding: str) -> None:
    """Latencies left out, which are most of so small a model's: of parameters and their state, priced together."""
    cost = cost_of(sharding)
    cluster = replace(cost.cluster, nic_latency=0.0, nvlink_latency=0.0)
    cost = replace(cost, cluster=cluster, model=replace(cost.model, hidden=512, ffn_hidden=1024, head_dim=128))
    prices, ratios = ChangePrices(cost), []
    for (before, one), (after, other) in permutations(steps_of(cost).values(), 2):
        step = switch_step(elements_held(one, one.ends), elements_held(other, other.begins))
        price = prices.seconds(before, after)
        if step is not None:
            ratios.append(price / play_step(step, (), cost).seconds)
    print(f"price / played change, {len(ratios)} pairs: {min(ratios):.3f} to {max(ratios):.3f}")
    assert len(ratios) >= 20
    assert 0.75 < min(ratios) <= max(ratios) < 1.3
    assert np.median(ratios) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("layers", "carried"), [("all", 0), (1, 0), (3, 0), ("all", 4), ("all", 1), (3, 2)])
def test_state_on_hosts_is_priced_by_the_busiest_link(
    monkeypatch: pytest.MonkeyPatch, layers: int | str, carried: int
) -> None:
    """By the law of bytes between GPUs, but for gains; with a slow link to hosts by the law's busiest one, which no
    change as it is played is quicker than. carried: of so many layers gradients wait there for the next step."""
    cost, rate = cost_of("zero1"), 1e8
    model = replace(cost.model, hidden=512, ffn_hidden=1024, head_dim=128, offload="optimizer", optimizer_layers=layers)
    hosts = {"host_bandwidth": rate, "host_efficiency": 1.0, "host_latency": 0.0, "host_memory": 1e12}
    cluster = replace(cost.cluster, nic_latency=0.0, nvlink_latency=0.0, **hosts)
    if carried:
        model = replace(model, host_updates=ACROSS_STEPS, carried_layers=carried)
    cost, each = replace(cost, cluster=cluster, model=model), 18 if carried else 14
    gains = each * 512 * (2 * model.num_layers + 1)
    resting, prices, moved = HostLayers(4, model.layers_updated_on_hosts, carried=carried), ChangePrices(cost), 0
    when = model.host_updates
    every = [(layout, with_optimizer_on_hosts(step, 4, resting, when)) for layout, step in steps_of(cost).values()]
    held = held_once([step for _, step in every], monkeypatch)
    for (before, one), (after, other) in permutations(every, 2):
        moves, law = prices.moves(before, after), np.array(switch_bytes(one, other, 4))
        mine = np.stack([np.bincount(column, moves.size, 8) for column in (moves.src, moves.dst)], axis=1)
        assert (np.abs(mine - law).max(axis=0) <= (7 * gains, gains)).all()
        price, busiest = prices.seconds(before, after), max(map(max, host_link_bytes(one, other, 4)))
        step = switch_step(held(one, one.ends), held(other, other.begins), 4)
        if step is None or busiest <= gains:
            continue
        moved += 1
        assert price == pytest.approx(busiest / rate, abs=gains / rate)
        assert price <= play_step(step, (), cost).seconds + gains / rate
    assert moved >= 15


def test_what_stays_costs_nothing_and_a_pair_is_priced_once() -> None:
    prices = ChangePrices(cost_of("zero3"))
    layout = steps_of(prices.cost)["nodes"][0]
    assert prices.seconds(layout, layout) == 0
    first = prices.seconds(layout, ())
    assert first > 0
    prices.known[layout, ()] = 7.0
    assert prices.seconds(layout, ()) == 7.0


def test_single_gpus_without_zero_have_all_that_pipelines_want() -> None:
    prices, every = ChangePrices(cost_of("none")), steps_of(cost_of("none"))
    assert prices.seconds(every["single"][0], every["stages"][0]) == 0
    assert prices.seconds((), every["mixed"][0]) == 0
