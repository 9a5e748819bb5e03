"""Training in rounds on processes with tensor-parallel groups inside each worker: losses are those of workers in one
process, every byte is what steps say, and an average is between GPUs that have the same slice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_conformance import MODEL
from tests.runtime.test_rounds import (
    ADAMW,
    DENSE_FIRST,
    MOE,
    WORKLOAD,
    check_resumed,
    simulated,
    streamed,
    trained,
)
from tests.runtime.test_rounds_on_hosts import STATE, on_hosts
from tests.runtime.test_step_executor import cost_of
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import USUAL_EXPERTS, Experts
from zbench.describe.sync import CO2, DILOCO, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.runtime.step_executor import Torch
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

pytestmark = pytest.mark.usefixtures("one_thread")
TIED = replace(MODEL, tied_embeddings=True)
# (cost, rounds, planner, steps, what else the strategy has); groups are of two GPUs
CASES: dict[str, Any] = {
    "slowmo, a group a node, ZeRO-3": (
        cost_of(2, 2, sharding="zero3", tensor_parallel=2),
        RoundSync(SLOWMO, 3, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        6,
        {},
    ),
    "co2, two groups of a node, whole parameters": (
        cost_of(1, 4, sharding="none", tensor_parallel=2),
        RoundSync(CO2, 2, "rank", momentum=0.4, penalty="gap_aware", clip=0.02),
        Ring,
        6,
        {},
    ),
    "streaming, an average a step late, two groups a node, ZeRO-1": (
        cost_of(2, 4, sharding="zero1", tensor_parallel=2),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        Zeppelin,
        8,
        {},
    ),
    "diloco, two groups a node, ZeRO-3, tied embeddings": (
        cost_of(2, 4, TIED, sharding="zero3", tensor_parallel=2),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Zeppelin,
        4,
        {},
    ),
    "local_sgd, exchanges beside matmuls in slices that are chosen": (
        cost_of(2, 2, sharding="zero2", recompute="full", tensor_parallel=2),
        RoundSync(LOCAL_SGD, 2, "node"),
        Ring,
        4,
        {"exchanges": ExchangeOverlap("sliced", "best")},
    ),
    "slowmo, experts over a group, a dense layer before them, ZeRO-1": (
        cost_of(2, 2, DENSE_FIRST, sharding="zero1", tensor_parallel=2),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Ring,
        4,
        {"expert_parallel": 2, "experts": Experts(skew=1.0)},
    ),
    "diloco, experts cut over a group, whole parameters": (
        cost_of(2, 2, MOE, sharding="none", tensor_parallel=2),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Ring,
        4,
        {"expert_tensor_parallel": 2},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_workers_in_one_process(case: str) -> None:
    cost, sync, planner, steps, strategy = CASES[case]
    found, parts = trained(cost, sync, ADAMW, planner, steps, **strategy)
    played, experts = streamed if sync.method == STREAMING_DILOCO else simulated, strategy.get("experts", USUAL_EXPERTS)
    model = replace(cost.gpus.model, tensor_parallel=1)
    wanted = played(sync, ADAMW, parts, model, experts)
    assert [one.loss for one in found] == pytest.approx(wanted, rel=1e-12)
    assert wanted[0] != wanted[-1]
    assert all(one.checks["bytes"] > 0 for one in found)
    assert not any("tensor_parallel" in one.nic_tx_for for one in found)  # groups are inside a node
    assert any("gradients" in one.nic_tx_for for one in found) == (cost.cluster.num_nodes > 1)
    tried = strategy.get("exchanges", None) is not None
    assert all(len(one.exchange_slices.get("workers", [])) == 2 * tried for one in found)


def test_state_on_hosts_is_that_on_gpus() -> None:
    """With optimizer state and parameters of a group in its node's memory, losses are to the bit those on GPUs."""
    sync, given = RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5), {"sharding": "zero3", "tensor_parallel": 2}
    plain, parts = trained(cost_of(2, 2, **given), sync, ADAMW, Ring, 4)
    cost = on_hosts(cost_of(2, 2), {**given, **STATE, "parameter_layers": "all"})
    found, same = trained(cost, sync, ADAMW, Ring, 4)
    assert same == parts
    assert [one.loss for one in found] == [one.loss for one in plain]


def test_a_run_goes_on_in_the_midst_of_a_round_to_the_bit(tmp_path: Path) -> None:
    """Two averages are under way and wait in the checkpoint, each GPU's of its own slices."""
    cost = cost_of(2, 2, sharding="zero1", tensor_parallel=2)
    sync = RoundSync(STREAMING_DILOCO, 3, "node", momentum=0.4, fragments=2, delay=2, mixing=0.5)
    folder = str(tmp_path / "checkpoint")
    check_resumed(cost, sync, Ring, folder, (4, 7))
    with pytest.raises(ValueError, match=r"its run had parallel.tensor_parallel 2, and this one has 1$"):
        Torch(cost_of(2, 2, sharding="zero1"), WORKLOAD, seed=3, sync=sync, optimizer=dict(ADAMW), resume=folder)
