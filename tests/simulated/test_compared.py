"""Steps of candidates for a run: the run's own seconds and room, with nothing proven."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import H100, small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.sync import RoundSync
from zbench.plans.alike import plans_digests
from zbench.plans.plan import Plan
from zbench.simulated.compared import NOTE, ComparedSteps, FastestPlans, by_fastest_way
from zbench.simulated.executor import Simulated
from zbench.step.proof.prove import Proven, StepError
from zbench.step.template import Step
from zbench.systems.dp_balanced import DpBalanced
from zbench.systems.nodewise.planner import Nodewise
from zbench.systems.zeppelin.planner import Zeppelin

BATCH = Batch(np.array([5000, 1800, 900, 400, 300, 220, 120, 77]), seed=0, step=0)


def cost_of(**model: Any) -> Cost:
    one = small(2, 4)
    return make_cost(one.cluster, replace(one.model, num_layers=14, **model), pipelines=False)


def refused(_: Step) -> Proven:
    raise StepError("not proven")


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ({"sharding": "zero3"}, {}),
        ({"sharding": "zero1", "tensor_parallel": 2}, {}),
        ({"sharding": "zero1", "tensor_parallel": 2}, {"exchanges": ExchangeOverlap("async_tp", transfers="direct")}),
        ({"sharding": "zero3", "recompute": "full"}, {"adaptive_recompute": True}),
    ],
)
def test_seconds_and_room_are_the_run_s(
    model: dict[str, Any], strategy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = cost_of(**model)
    plans = tuple(Zeppelin(cost).plan(BATCH))
    executor = Simulated(cost, **strategy)
    compared, result = ComparedSteps(executor), executor.step(BATCH, plans)
    monkeypatch.setattr("zbench.step.passes.proven.prove_step", refused)
    assert compared.compared_seconds(BATCH, plans) == result.seconds
    assert compared.fits(BATCH, plans)
    assert compared.least_seconds(BATCH) == (result.ceiling_seconds or result.bound_seconds)
    assert compared.least_seconds(BATCH) <= result.seconds
    with pytest.raises(StepError):
        executor.step(BATCH, plans)
    less = replace(cost.gpus.cluster.device, memory_bytes=max(result.peak_bytes) - 1)
    full = ComparedSteps(Simulated(make_cost(replace(cost.gpus.cluster, device=less), cost.gpus.model), **strategy))
    if "adaptive_recompute" not in strategy:  # which recomputes more then
        assert not full.fits(BATCH, plans)
        assert full.compared_seconds(BATCH, plans) == float("inf")


def test_rounds_are_played() -> None:
    """A step of workers that wait for each other some steps later takes what the slowest has not taken before."""
    cost = cost_of(sharding="zero3")
    executor = Simulated(cost, sync=RoundSync("local_sgd", steps=2))
    plans: tuple[Plan, ...] = tuple(DpBalanced(cost).plan(BATCH))
    compared, result = ComparedSteps(executor), executor.step(BATCH, plans)
    executor.start()
    assert compared.compared_seconds(BATCH, plans) == result.seconds
    executor.start()
    assert compared.fits(BATCH, plans)
    assert compared.least_seconds(BATCH) == 0


def routed(**changed: Any) -> Cost:
    """Four nodes, each of which holds all experts."""
    one = small(4, 4, H100)
    model = replace(one.model, num_layers=8, sharding="zero2", num_experts=16, experts_per_token=2, ffn_hidden=2048)
    cluster = replace(one.cluster, nics_per_node=4)
    return make_cost(cluster, replace(model, **changed), pipelines=False, expert_gpus=4)


def test_a_system_that_plans_in_several_ways_takes_the_one_whose_step_is_fastest() -> None:
    """Whichever of nodewise's two ways is the first."""
    cost, strategy = routed(), StepStrategy(expert_parallel=4)
    own = Nodewise(cost, play_steps=True)
    system = by_fastest_way(own, lambda keys: replace(own, **keys), cost, strategy)
    executor, rng, taken = ComparedSteps(Simulated(cost, **strategy.arguments)), np.random.default_rng(5), 0
    for step in range(3):
        batch = Batch(np.exp(rng.uniform(np.log(256), np.log(32768), 12)).astype(np.int64), 0, step)
        ways = {name: replace(own, **keys).plan(batch) for name, keys in own.ways().items()}
        seconds = {name: executor.compared_seconds(batch, plans) for name, plans in ways.items()}
        found = system.plan(batch)
        assert executor.compared_seconds(batch, found) == min(seconds.values())
        digests = {name: plans_digests(plans) for name, plans in ways.items()}
        if len(set(digests.values())) == 1:
            assert NOTE not in found[0].notes
            continue
        best = str(found[0].notes[NOTE])
        assert plans_digests(found) == digests[best]
        assert {name: found[0].notes[f"{NOTE}_{name}_seconds"] for name in seconds} == seconds
        backwards = dict(reversed(ways.items()))
        assert plans_digests(FastestPlans(cost, strategy).best(batch, backwards)) == digests[best]
        taken += 1
    assert taken


def test_a_system_that_plans_in_one_way_is_itself() -> None:
    """Nodewise where experts are at home, or is told to play no steps; a system that has no ways."""
    dense = small(2, 2)
    for cost, system in (
        (dense, Nodewise(dense)),
        (routed(), Nodewise(routed())),
        (routed(), Nodewise(routed(), play_experts=False, play_steps=True)),
        (dense, Zeppelin(dense)),
    ):
        assert by_fastest_way(system, lambda _: pytest.fail("made again"), cost, StepStrategy()) is system


def test_plans_without_room_are_not_taken() -> None:
    """What has no room takes for ever, whatever its layers take; where nothing has, the first way's plans are left."""
    cost, strategy = routed(), StepStrategy(expert_parallel=4)
    batch = Batch(np.array([5000, 1800, 900, 400]), seed=0, step=0)
    ways = {"one": Zeppelin(cost).plan(batch), "other": DpBalanced(cost).plan(batch)}
    assert FastestPlans(cost, strategy).best(batch, ways)[0].notes[NOTE] in ways
    device = replace(cost.cluster.device, memory_bytes=1e6)
    none = make_cost(replace(cost.cluster, device=device), cost.model, pipelines=False, expert_gpus=4)
    left = FastestPlans(none, strategy).best(batch, ways)
    assert plans_digests(left) == plans_digests(ways["one"])
    assert {key for key in left[0].notes if key.startswith(NOTE)} == {NOTE}
