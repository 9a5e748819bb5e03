"""executor=torch where CPUs update with gradients of the step before: what it trains is what updates as
gradients come train, to the bit, also from a checkpoint on, and every byte is the steps' own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.steps import pipeline_plans
from tests.runtime.test_conformance import DEVICE
from tests.runtime.test_conformance import MODEL as MINI
from tests.runtime.test_step_executor import CHECKS
from tests.runtime.test_step_pipelines import whole
from tests.step.test_optimizer_on_hosts import HOST
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME
from zbench.describe.model import Model
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.runtime import step_executor
from zbench.runtime.step_executor import Torch
from zbench.systems.zeppelin.planner import Zeppelin

LENGTHS = ([30, 9, 6, 1], [2, 1], [17, 5, 5], [40])  # in the second step some ranks have no token
MODEL = replace(MINI, num_layers=4, hidden=36)
EXPERTS = replace(MODEL, ffn_hidden=16, num_experts=4, experts_per_token=2, dense_layers=1, dense_ffn_hidden=20)
CASES: Mapping[str, tuple[Model, dict[str, Any]]] = {
    "ZeRO-1": (MODEL, {"sharding": "zero1"}),
    "ZeRO-2, one of three layers, groups": (
        MODEL,
        {"sharding": "zero2", "optimizer_layers": 3, "carried_layers": 1, "tensor_parallel": 2},
    ),
    "ZeRO-3, inputs and parameters on hosts": (
        MODEL,
        {
            "sharding": "zero3", "recompute": "full", "offload": "inputs_and_optimizer", "offload_layers": 2,
            "parameter_layers": 3, "carried_layers": 2, "micro_batches": 2,
        },
    ),
    "ZeRO-3, activations on hosts, tied embeddings": (
        replace(MODEL, tied_embeddings=True),
        {"sharding": "zero3", "offload": "activations_and_optimizer", "carried_layers": 3},
    ),
    "stages": (MODEL, {"sharding": "zero1", "pipeline_parallel": 2, "micro_batches": 2, "carried_layers": 3}),
    "stages, tied embeddings": (
        replace(MODEL, tied_embeddings=True),
        {"sharding": "zero2", "pipeline_parallel": 2, "micro_batches": 2, "carried_layers": 3},
    ),
    "pipelines": (MODEL, {"sharding": "zero1"}),
    "pipelines that change": (MODEL, {"sharding": "zero1", "optimizer_layers": 3, "carried_layers": 2}),
    "experts after a dense layer": (EXPERTS, {"sharding": "zero2", "carried_layers": 3}),
}  # fmt: skip
SHAPES = {  # of pipelines, by step, counted round; where there are none, plans are ordinary ones
    "pipelines": [[(2, 1), (1, 2)]],
    "pipelines that change": [[(2, 1), (1, 2)], [], [(1, 1)] * 4, [(2, 2)]],
}


@dataclass(frozen=True)
class Uneven:
    """Batches of other numbers of tokens in every step."""

    seed: int = 0
    tokens: int = 46

    def batch(self, step: int) -> Batch:
        return Batch(np.array(LENGTHS[step % len(LENGTHS)], np.int64), self.seed, step)


@pytest.fixture(autouse=True)
def resting_ranks(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_executor, "RANK", "tests.runtime.resting:RestingRank")


def cost_of(case: str, updates: str = ACROSS_STEPS) -> Cost:
    model, strategy = CASES[case]
    cluster = replace(Cluster("test", 2, 2, 1, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE), **HOST)
    if updates != ACROSS_STEPS:
        strategy = {name: one for name, one in strategy.items() if name != "carried_layers"}
    given = {"offload": "optimizer", "host_updates": updates, **strategy}
    return make_cost(cluster, replace(model, **given), pipelines=False)


def plans_of(case: str, cost: Cost, batch: Batch) -> tuple[Plan, ...]:
    shapes = SHAPES.get(case, [[]])
    if not (mine := shapes[batch.step % len(shapes)]):
        parts = CASES[case][1].get("micro_batches", 1)
        return (Zeppelin(cost) if parts == 1 else Dealt(Zeppelin(cost), parts)).plan(batch)
    dealt = [(int(length), at % len(mine)) for at, length in enumerate(batch.lengths)]
    half = (len(dealt) + 1) // 2
    return tuple(pipeline_plans(mine, [one for one in (dealt[:half], dealt[half:]) if one], 4))


@dataclass
class Trained:
    """A run's results. steps: of each of its steps. rests: by parameter's name, the parameter and its two moments after
    the last step, each put together from all ranks, of all layers. last: what the executor tells when it ends, as the
    record's end has it; {} where nothing is updated behind the last step."""

    steps: list[StepResult]
    rests: Mapping[str, Sequence[Tensor]]
    last: dict[str, Any]


def trained(case: str, updates: str = ACROSS_STEPS, steps: Sequence[int] = range(4), **settings: Any) -> Trained:
    cost = cost_of(case, updates)
    executor = Torch(cost, Uneven(), seed=3, check=CHECKS, timeout=60.0, **settings)
    try:
        assert executor.start().first_step == steps[0]
        found = []
        for step in steps:
            batch = Uneven().batch(step)
            found.append(executor.step(batch, plans_of(case, cost, batch)))
        last = executor.finish()
        assert executor._fleet is not None
        assert executor._left is not None
        every = [one for rank in executor._fleet.call("rests") for one in rank]
        return Trained(found, whole(executor._left.layouts[0], cost.gpus.model, every), last)
    finally:
        executor.stop()


@cache
def usual(case: str) -> Trained:
    """Trains a case with memory.host_updates=as_gradients_come, once for all tests, which compare other ways to update
    with it."""
    return trained(case, AS_GRADIENTS_COME, warmup=0)


def assert_same(found: Trained, wanted: Trained) -> None:
    assert [one.loss for one in found.steps] == [one.loss for one in wanted.steps[-len(found.steps) :]]
    assert list(found.rests) == list(wanted.rests)
    for name, fields in wanted.rests.items():
        assert all(torch.equal(mine, one) for mine, one in zip(found.rests[name], fields, strict=True)), name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_updates_do_that_are_made_as_gradients_come(case: str) -> None:
    found = trained(case, warmup=1)
    assert_same(found, usual(case))
    assert max(one.checks["exact"] for one in found.steps) < 1e-12
    assert usual(case).last == {}
    assert found.last["last_update"]["seconds"] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "case",
    ["ZeRO-2, one of three layers, groups", "ZeRO-3, inputs and parameters on hosts", "pipelines that change"],
)
def test_a_checkpoint_has_gradients_and_is_gone_on_from_to_the_bit(case: str, tmp_path: Path) -> None:
    """Also behind the first step, and with another number of passes before it."""
    folder = str(tmp_path / "checkpoint")
    assert_same(trained(case, warmup=1, checkpoint_every=3, checkpoint=folder), usual(case))
    assert_same(trained(case, steps=[3], warmup=2, resume=folder), usual(case))
    trained(case, steps=[0], warmup=0, checkpoint_every=1, checkpoint=folder)
    assert_same(trained(case, steps=[1, 2, 3], warmup=0, resume=folder), usual(case))
