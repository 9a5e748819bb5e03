"""Training in rounds on processes with pipeline stages inside each worker, a node each: losses are those of workers in
one process, every byte is what steps say, and a layer is averaged between the stages that have it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_conformance import MODEL
from tests.runtime.test_rounds import (
    ADAMW,
    DENSE_FIRST,
    HOST,
    check_resumed,
    simulated,
    streamed,
    trained,
)
from tests.runtime.test_step_executor import cost_of
from tests.step.test_optimizer_on_hosts import HOST as STATE_HOST
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.expert_schedule import TOKEN_CHOICE, USUAL_EXPERTS, Experts
from zbench.describe.sync import CO2, DILOCO, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.protocols import System
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

pytestmark = pytest.mark.usefixtures("one_thread")
FIVE = replace(MODEL, num_layers=5)
TWO: dict[str, Any] = {"pipeline_parallel": 2, "micro_batches": 2}
UNEVEN: dict[str, Any] = {**TWO, "stage_layers": (2, 3)}


def in_two(planner: Any) -> Callable[[Cost], System]:
    """Returns what makes a planner that is given each worker's sequences in two micro-batches."""
    return lambda cost: Dealt(planner(cost), 2)


# (cost, rounds, planner, steps, what else the strategy has)
CASES: dict[str, Any] = {
    "slowmo, ZeRO-3": (
        cost_of(4, 1, sharding="zero3", **TWO),
        RoundSync(SLOWMO, 3, "node", lr=0.8, momentum=0.5),
        Ring,
        6,
        {},
    ),
    "co2, tied embeddings, whole parameters": (
        cost_of(4, 1, replace(FIVE, tied_embeddings=True), sharding="none", **UNEVEN),
        RoundSync(CO2, 2, "node", momentum=0.4, penalty="gap_aware", clip=0.02),
        Ring,
        6,
        {},
    ),
    "streaming, an average a step late, stages of two and three layers, ZeRO-1": (
        cost_of(4, 2, FIVE, sharding="zero1", **UNEVEN),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        Zeppelin,
        8,
        {},
    ),
    "diloco, stages of groups, ZeRO-2": (
        cost_of(4, 2, FIVE, sharding="zero2", tensor_parallel=2, **UNEVEN),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Ring,
        4,
        {},
    ),
    "local_sgd, experts over a stage, a dense layer before them": (
        cost_of(4, 2, DENSE_FIRST, sharding="zero1", stage_layers=(2, 1), **TWO),
        RoundSync(LOCAL_SGD, 2, "node"),
        Ring,
        4,
        {"expert_parallel": 2, "experts": Experts(routing=TOKEN_CHOICE)},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_workers_in_one_process(case: str) -> None:
    cost, sync, planner, steps, strategy = CASES[case]
    found, parts = trained(cost, sync, ADAMW, in_two(planner), steps, **strategy)
    played, experts = streamed if sync.method == STREAMING_DILOCO else simulated, strategy.get("experts", USUAL_EXPERTS)
    model = replace(cost.gpus.model, tensor_parallel=1, pipeline_parallel=1, stage_layers="even")
    wanted = played(sync, ADAMW, parts, model, experts)
    assert [one.loss for one in found] == pytest.approx(wanted, rel=1e-12)
    assert wanted[0] != wanted[-1]
    for one in found:
        assert one.checks["bytes"] > 0
        assert set(one.nic_tx_for) <= {"stages", "parameters", "gradients"}
        assert min(one.nic_tx_for["stages"]) > 0


def test_inputs_wait_in_host_memory_of_each_stage() -> None:
    cost = cost_of(4, 1, FIVE, sharding="zero1", recompute="full", offload="inputs", offload_layers=1, **UNEVEN)
    cost = make_cost(replace(cost.gpus.cluster, **HOST), cost.gpus.model)
    sync = RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5)
    found, parts = trained(cost, sync, ADAMW, in_two(Ring), 4)
    model = replace(cost.gpus.model, pipeline_parallel=1, stage_layers="even")
    assert [one.loss for one in found] == pytest.approx(simulated(sync, ADAMW, parts, model), rel=1e-12)


# (cost, rounds, steps, what is on hosts, what else the strategy has)
HOSTED: dict[str, Any] = {
    "slowmo, ZeRO-1, all state": (
        cost_of(4, 1, FIVE, sharding="zero1", **UNEVEN),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        4,
        {"offload": "optimizer"},
        {},
    ),
    "co2, tied embeddings, stages of two GPUs, state of four layers": (
        cost_of(4, 2, replace(FIVE, tied_embeddings=True), sharding="zero1", **UNEVEN),
        RoundSync(CO2, 2, "node", momentum=0.4, penalty="gap_aware", clip=0.02),
        6,
        {"offload": "optimizer", "optimizer_layers": 4, "host_updates": "after_backward"},
        {},
    ),
    "streaming, two averages under way, state and parameters, ZeRO-3": (
        cost_of(4, 1, FIVE, sharding="zero3", **UNEVEN),
        RoundSync(STREAMING_DILOCO, 3, "node", momentum=0.4, fragments=2, delay=2, mixing=0.5),
        6,
        {"offload": "optimizer", "optimizer_layers": 3, "parameter_layers": 4},
        {},
    ),
    "diloco, a dense layer before experts, shares of gradients between messages, inputs and state": (
        cost_of(4, 2, DENSE_FIRST, sharding="zero1", recompute="full", stage_layers=(2, 1), **TWO),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        4,
        {"offload": "inputs_and_optimizer"},
        {"expert_parallel": 2, "experts": Experts("fsmoe", "auto", gradients="between", skew=1.0)},
    ),
}


@pytest.mark.parametrize("case", HOSTED)
def test_state_rests_in_host_memory_of_each_stage(case: str) -> None:
    """Losses are to the bit those with all on GPUs, and those of workers in one process."""
    cost, sync, steps, what, strategy = HOSTED[case]
    plain, parts = trained(cost, sync, ADAMW, in_two(Ring), steps, **strategy)
    hosted = make_cost(replace(cost.gpus.cluster, **STATE_HOST), replace(cost.gpus.model, **what))
    found, same = trained(hosted, sync, ADAMW, in_two(Ring), steps, **strategy)
    assert same == parts
    assert [one.loss for one in found] == [one.loss for one in plain]
    played, experts = streamed if sync.method == STREAMING_DILOCO else simulated, strategy.get("experts", USUAL_EXPERTS)
    model = replace(cost.gpus.model, pipeline_parallel=1, stage_layers="even")
    assert [one.loss for one in found] == pytest.approx(played(sync, ADAMW, parts, model, experts), rel=1e-12)
    assert all(one.checks["bytes"] > 0 for one in found)


def test_what_is_on_hosts_goes_on_in_the_midst_of_a_round_to_the_bit(tmp_path: Path) -> None:
    cost, sync, _, what, _ = HOSTED["streaming, two averages under way, state and parameters, ZeRO-3"]
    cost = make_cost(replace(cost.gpus.cluster, **STATE_HOST), replace(cost.gpus.model, **what))
    check_resumed(cost, sync, in_two(Ring), str(tmp_path / "checkpoint"), (4, 7))


def test_a_run_goes_on_in_the_midst_of_a_round_to_the_bit(tmp_path: Path) -> None:
    """Two averages are under way and wait in the checkpoint, each stage's of its own layers."""
    cost = cost_of(4, 1, FIVE, sharding="zero1", **UNEVEN)
    sync = RoundSync(STREAMING_DILOCO, 3, "node", momentum=0.4, fragments=2, delay=2, mixing=0.5)
    check_resumed(cost, sync, in_two(Ring), str(tmp_path / "checkpoint"), (4, 7))
