"""The weights' way to generation: which engine brings them, a few layers for all, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.describe.job import RolloutJob
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import ENGINES, resharding_of
from zbench.rollouts.reshard import played_resharding
from zbench.rollouts.transition import Transition, _played, _played_layers, _sent, job_transition

LAYERS = 6


def cost_of(sharding: str, tensor: int = 1, nodes: int = 2, layers: int = LAYERS, stages: int = 1) -> Cost:
    model = replace(model_named("llama_7b", {}), sharding=sharding, tensor_parallel=tensor, num_layers=layers)
    model = replace(model, pipeline_parallel=stages)
    return Cost(cluster=cluster_named("a800_4x8", {"num_nodes": nodes}), model=model)


def transition(sharding: str, tensor: int = 1, **job: object) -> Transition:
    cost = cost_of(sharding, tensor)
    return job_transition(RolloutJob("grpo", **job), cost, cost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sharding", "tensor", "job", "engine"),
    [
        ("zero3", 1, {}, "ds_chat"),
        ("zero3", 8, {}, "ds_chat"),
        ("zero1", 1, {"generate_tensor": 4}, "ds_chat"),
        ("zero1", 8, {}, "hybridflow"),
        ("zero1", 8, {"engine": "ds_chat"}, "ds_chat"),
        ("none", 8, {"generate_tensor": 2}, "hybridflow"),
        ("none", 8, {"engine": "hybridflow_v"}, "hybridflow_v"),
        ("none", 1, {}, ""),
    ],
)
def test_the_sharding_says_which_engine(sharding: str, tensor: int, job: dict[str, object], engine: str) -> None:
    found = transition(sharding, tensor, **job)
    assert found.engine == engine
    assert (found.seconds > 0) == bool(engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_layers_take_what_all_of_them_do(engine: str) -> None:
    tensor = 1 if engine == "ds_chat" else 8
    found = transition("zero3" if engine == "ds_chat" else "none", tensor, engine=engine, generate_tensor=1)
    whole = played_resharding(engine, TrainDegrees(1, 8, 2), GenerateDegrees(1, 1), cost_of("none"))
    assert found.seconds == pytest.approx(whole.seconds, rel=1e-12)


def test_nodes_that_generate_alone_receive_their_slices_and_nothing_else() -> None:
    cost, whole = cost_of("none", nodes=1), cost_of("none", nodes=3)
    found = job_transition(RolloutJob("grpo", generate_nodes=2, generate_tensor=2), cost, whole)
    assert (found.engine, len(found.played)) == ("standalone", 1)
    model = cost.model
    received = found.played[0].nic_rx.reshape(3, -1).sum(axis=1)
    assert received[0] == 0  # a ring: from the nodes before
    weights = model.element_bytes * model.total_params
    assert received[1:] == pytest.approx(weights, rel=1e-3)  # once into each node, whatever replicas it has
    sharded = job_transition(RolloutJob("grpo", generate_nodes=2), cost_of("zero3", nodes=1), cost_of("zero3", nodes=3))
    assert [one.seconds > 0 for one in sharded.played] == [True, True]


def test_a_chain_with_a_few_layers_takes_what_one_of_all_does() -> None:
    cost, whole = cost_of("none", nodes=1, layers=9), cost_of("none", nodes=3, layers=9)
    step_of = _sent(cost, whole, 1, 2)
    found, every = _played(step_of, whole), _played_layers(step_of, whole, 9)
    assert found.seconds == pytest.approx(every.seconds, rel=1e-12)
    assert np.array_equal(found.nic_rx, every.nic_rx)


def test_stages_that_generate_alone_receive_their_own_layers() -> None:
    cost, whole = cost_of("none", nodes=1, layers=8), cost_of("none", nodes=3, layers=8)
    step_of = _sent(cost, whole, 4, 2)
    found, every = _played(step_of, whole, 4), _played_layers(step_of, whole, 8)
    assert found.seconds == pytest.approx(every.seconds, rel=1e-12)
    received = found.nic_rx.reshape(3, -1).sum(axis=1)
    weights = cost.model.element_bytes * cost.model.total_params
    assert received[1:] == pytest.approx(weights, rel=1e-3)  # each node has a replica


def test_stages_of_training_send_their_layers_to_each_other() -> None:
    cost = cost_of("zero1", 4, layers=8, stages=2)
    found = job_transition(RolloutJob("grpo", generate_tensor=2), cost, cost)
    assert found.engine == "hybridflow"
    whole = played_resharding("hybridflow", TrainDegrees(2, 4, 2), GenerateDegrees(1, 2), cost_of("none", layers=8))
    assert found.seconds == pytest.approx(whole.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("sharding", "tensor", "job", "told"),
    [
        ("zero3", 1, {"engine": "hybridflow"}, "job.engine is hybridflow; with sharding zero3 .* it takes ds_chat"),
        ("none", 8, {"engine": "ds_chat"}, "job.engine is ds_chat; with sharding none .* it takes hybridflow"),
        ("none", 2, {"generate_tensor": 4}, "job.generate_tensor is 4; with engine hybridflow it has to divide"),
        ("none", 2, {"generate_pipeline": 2}, "job.generate_pipeline is 2; with engine hybridflow it has to divide"),
    ],
)
def test_what_does_not_go_together_is_refused(sharding: str, tensor: int, job: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        transition(sharding, tensor, **job)


def test_shards_of_every_gpu_are_the_engine_s_own() -> None:
    change = resharding_of("ds_chat", TrainDegrees(1, 16, 1), GenerateDegrees(1, 1))
    assert np.array_equal(change.train.begins, np.arange(16))
    assert change.gathers_all
