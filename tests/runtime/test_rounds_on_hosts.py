"""Training in rounds on processes with optimizer state, or parameters, of every worker in host memory: losses are those
of the same rounds with all on GPUs, to the bit, also from a checkpoint on, and every byte is the steps' own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_conformance import MODEL
from tests.runtime.test_rounds import (
    ADAMW,
    DENSE_FIRST,
    MOE,
    check_resumed,
    simulated,
    streamed,
    trained,
)
from tests.runtime.test_step_executor import cost_of
from tests.step.test_optimizer_on_hosts import HOST
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.expert_schedule import USUAL_EXPERTS, Experts
from zbench.describe.sync import CO2, DILOCO, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

pytestmark = pytest.mark.usefixtures("one_thread")
STATE = {"offload": "optimizer"}
THREE = replace(MODEL, num_layers=3)
# (cost, rounds, planner, steps, how experts are laid out, what is on hosts)
CASES: dict[str, Any] = {
    "slowmo, nodes of two, ZeRO-2, state of one layer and the head": (
        cost_of(2, 2, THREE, sharding="zero2"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        4,
        {},
        {**STATE, "optimizer_layers": 1},
    ),
    "co2, four ranks, after the backward": (
        cost_of(2, 2, sharding="zero1"),
        RoundSync(CO2, 2, "rank", momentum=0.4, penalty="gap_aware", clip=0.02),
        Ring,
        6,
        {},
        {**STATE, "host_updates": "after_backward"},
    ),
    "streaming, two fragments, an average a step late": (
        cost_of(2, 2, THREE, sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        Zeppelin,
        8,
        {},
        {**STATE, "optimizer_layers": 2},
    ),
    "streaming, two averages under way, tied embeddings": (
        cost_of(2, 1, replace(MODEL, tied_embeddings=True), sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 3, "rank", lr=0.6, momentum=0.7, fragments=2, delay=2),
        Ring,
        9,
        {},
        STATE,
    ),
    "diloco, experts on two GPUs, a dense layer first, inputs beside": (
        cost_of(2, 2, DENSE_FIRST, sharding="zero3", recompute="full"),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts(skew=1.0)},
        {"offload": "inputs_and_optimizer", "optimizer_layers": 2},
    ),
    "slowmo, experts, state and parameters": (
        cost_of(2, 2, MOE, sharding="zero3"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        4,
        {"expert_parallel": 2},
        {**STATE, "parameter_layers": "all"},
    ),
    "diloco, parameters of the first two layers, state of the last two": (
        cost_of(2, 2, THREE, sharding="zero3"),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Zeppelin,
        4,
        {},
        {**STATE, "parameter_layers": 2, "optimizer_layers": 2},
    ),
}


def on_hosts(cost: Cost, what: dict[str, Any]) -> Cost:
    """Returns the cost model of a job that has some of its model in host memory. what: of the model's fields."""
    return make_cost(replace(cost.cluster, **HOST), replace(cost.model, **what))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_with_all_on_gpus(case: str) -> None:
    cost, sync, planner, steps, strategy, what = CASES[case]
    plain, parts = trained(cost, sync, ADAMW, planner, steps, **strategy)
    found, same = trained(on_hosts(cost, what), sync, ADAMW, planner, steps, **strategy)
    assert same == parts
    assert [one.loss for one in found] == [one.loss for one in plain]
    played, experts = streamed if sync.method == STREAMING_DILOCO else simulated, strategy.get("experts", USUAL_EXPERTS)
    assert [one.loss for one in found] == pytest.approx(played(sync, ADAMW, parts, cost.model, experts), rel=1e-12)
    assert all(one.checks["bytes"] >= 0 for one in found)


@pytest.mark.parametrize(
    ("sync", "what"),
    [
        (RoundSync(CO2, 3, "rank", momentum=0.4, penalty="gap_aware"), STATE),
        (
            RoundSync(STREAMING_DILOCO, 3, "node", momentum=0.4, fragments=2, delay=2, mixing=0.5),
            {**STATE, "optimizer_layers": 1, "parameter_layers": 1},
        ),
    ],
    ids=lambda one: getattr(one, "method", ""),
)
def test_a_run_goes_on_in_the_midst_of_a_round_to_the_bit(
    sync: RoundSync, what: dict[str, Any], tmp_path: Path
) -> None:
    """A checkpoint has what is in host memory: parameters, moments, outer parameters and their momentum; with averages
    under way on GPUs beside them."""
    cost = on_hosts(cost_of(2, 2 if sync.worker == "node" else 1, sharding="zero3"), what)
    check_resumed(cost, sync, Ring, str(tmp_path / "checkpoint"), (4, 7))
