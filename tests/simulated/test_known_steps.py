"""Steps that were proven before are played as if anew on machines of other speeds, and built no second time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.worlds import Machine, World
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulated.known_steps import KnownSteps
from zbench.step.proof.prove import Proven, StepError
from zbench.step.template import Step
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

BATCH = Batch(np.array([5000, 1800, 900, 400, 300, 220, 120, 77]), seed=0, step=0)
WORLDS = (
    World(nic_bandwidth=0.1, latency=3.0),
    World(nvlink_bandwidth=0.02, port_order="longest_waiting"),
    World(nic_bandwidth=0.3, port_order="shared"),
    World(attention_rate=0.05, matmul_rate=0.1),
    World(compute_slowdown=1.3),
)


def cost_of(world: World | None = None, **model: Any) -> Cost:
    one = small(2, 4)
    machine = Machine(one.cluster, replace(one.model, num_layers=14, **model))
    return make_cost(*(machine if world is None else world.of(machine)), pipelines=False)


def refused(_: Step) -> Proven:
    raise StepError("not proven")


@pytest.mark.parametrize(
    "model", [{"sharding": "zero3"}, {"sharding": "zero1", "tensor_parallel": 2, "recompute": "full"}]
)
def test_in_other_worlds_a_step_and_its_forwards_are_as_if_built_there(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KnownSteps(2)
    first = Simulated(cost_of(**model), known=known)
    plans = tuple(Zeppelin(first.cost).plan(BATCH))
    costs = [first.cost, *(cost_of(world, **model) for world in WORLDS)]
    anew = [(one.step(BATCH, plans), one.forwards(plans)) for one in map(Simulated, costs)]
    assert first.step(BATCH, plans) == anew[0][0]
    assert first.forwards(plans).seconds == anew[0][1].seconds
    monkeypatch.setattr("zbench.step.passes.proven.prove_step", refused)
    for cost, (step, forwards) in zip(costs, anew, strict=True):
        again = tuple(replace(one) for one in plans)  # as a planner that is asked anew gives them
        here = Simulated(cost, known=known)
        assert here.step(BATCH, again) == step
        assert here.forwards(again).seconds == forwards.seconds
        np.testing.assert_array_equal(here.forwards(again).memory.peak, forwards.memory.peak)
    assert len({step.seconds for step, _ in anew}) == len(costs)  # the worlds are others


@pytest.mark.parametrize("other", ["plans", "batch", "strategy", "sharding", "full"])
def test_what_is_another_step_is_proven(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cost, known = cost_of(sharding="zero3"), KnownSteps(0 if other == "full" else 8)
    batch, plans = BATCH, tuple(Zeppelin(cost).plan(BATCH))
    one = Simulated(cost, known=known)
    one.step(batch, plans)
    if other == "plans":
        plans = tuple[Plan, ...](Ring(cost).plan(batch))
    elif other == "batch":
        batch = replace(batch, step=1)
    elif other == "strategy":
        one = replace(one, window=2)
    elif other == "sharding":
        one = replace(one, cost=cost_of(sharding="zero2"))
    monkeypatch.setattr("zbench.step.passes.proven.prove_step", refused)
    with pytest.raises(StepError):
        one.step(batch, plans)
