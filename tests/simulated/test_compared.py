"""Steps of candidates for a run: the run's own seconds and room, with nothing proven."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.sync import RoundSync
from zbench.plans.plan import Plan
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.step.proof.prove import Proven, StepError
from zbench.step.template import Step
from zbench.systems.dp_balanced import DpBalanced
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
