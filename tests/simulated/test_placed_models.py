"""Models of a job on sets of nodes of their own, and of other sizes than the actor."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulated.test_iterations import batch_of, training
from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.job import RolloutJob
from zbench.describe.model import Model
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.simulated.iterations import SimulatedIterations
from zbench.simulator.steps.play import play_step
from zbench.systems.ring import Ring

SMALL = replace(model_named("llama_3b", {}), sharding="zero3", recompute="full")


def planner(batch: Batch, cost: Cost) -> tuple[Plan, ...]:
    return Ring(cost).plan(batch)


def iteration(job: RolloutJob, batch: Batch, models: dict[str, Model] | None = None, nodes: int = 1) -> StepResult:
    executor = replace(SimulatedIterations.of(training(nodes), job, models), planner=planner)
    executor.start()
    return executor.step(batch, planner(batch, executor.cost))


def of_small(batch: Batch) -> tuple[float, float]:
    """The seconds of a training step and of a forward of the small model on a node."""
    one = Simulated(make_cost(cluster_named("a800_4x8", {"num_nodes": 1}), SMALL, False))
    plans = planner(batch, one.cost)
    return one.step(batch, plans).seconds, play_step(one.steps.forwards(plans), plans, one.cost.gpus).seconds


def test_models_of_a_set_take_turns_and_sets_work_at_once() -> None:
    batch, job = batch_of(), RolloutJob("ppo", generate_tensor=2, memory_share=0.45)
    together = iteration(job, batch)
    apart = iteration(replace(job, placement="split"), batch)
    alone = iteration(replace(job, placement="standalone"), batch)
    stages = [one.rollouts["seconds"] for one in (together, apart, alone)]
    assert [one["score"] / stages[2]["score"] for one in stages] == pytest.approx([3, 2, 1], rel=1e-12)
    assert [one["train"] / stages[2]["train"] for one in stages] == pytest.approx([2, 1, 1], rel=1e-12)
    assert len({one["generate"] for one in stages}) == 1  # on one node, whoever else is there
    waited = apart.seconds_for["waiting_rank"][0] - together.seconds_for.get("waiting_rank", [0.0])[0]
    assert waited >= stages[2]["score"]  # the actor's set waits for the second one's other model
    assert max(apart.peak_bytes) < max(together.peak_bytes)


@pytest.mark.parametrize("placement", ["colocate", "split"])
def test_a_model_of_another_size_has_plans_and_steps_of_its_own(placement: str) -> None:
    batch, job = batch_of(), RolloutJob("ppo", generate_tensor=2, memory_share=0.45, placement=placement)
    found = iteration(replace(job, critic="llama_3b"), batch, {"critic": SMALL}).rollouts["seconds"]
    same = iteration(job, batch).rollouts["seconds"]
    train, forward = of_small(batch)
    if placement == "colocate":
        assert found["train"] == pytest.approx(same["train"] / 2 + train, rel=1e-12)
        assert found["score"] == pytest.approx(same["score"] * 2 / 3 + forward, rel=1e-12)
    else:
        assert found["train"] == pytest.approx(same["train"], rel=1e-12)  # the actor takes longer
        assert found["score"] == pytest.approx(same["score"] / 2 + forward, rel=1e-12)


def test_a_set_may_have_other_nodes_than_the_actors() -> None:
    batch = batch_of()
    job = RolloutJob("grpo", generate_tensor=2, memory_share=0.45, placement="split", set_nodes=[1, 2])
    assert job.training_part(cluster_named("a800_4x8", {"num_nodes": 3})).num_nodes == 1
    found = iteration(job, batch)
    one = training(2)
    plans = planner(batch, one.cost)
    slow = play_step(one.steps.forwards(plans), plans, one.cost.gpus).seconds  # a ring across nodes
    assert found.rollouts["seconds"]["score"] == pytest.approx(slow, rel=1e-12)


def test_what_a_set_has_no_room_for_is_refused() -> None:
    large: dict[str, Any] = {"num_layers": 80, "hidden": 16384, "num_heads": 128, "num_kv_heads": 128}
    job = RolloutJob("ppo", memory_share=0.3, placement="split", critic="llama_30b")
    with pytest.raises(ValueError, match=r"^job.placement is split; .* GiB of reward and critic stay on a GPU of"):
        SimulatedIterations.of(training(), job, {"critic": replace(model_named("llama_30b", {}), **large)})
