"""Planners' memory beside live ranges, of models whose first layers are dense and larger, or smaller, than the experts
that a token has in the others: of jobs with and without stages, with layers ahead, experts over GPUs, and hosts."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import memory_of, moments_of_stages
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking

HOST = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13}
ONE = small(4, 2, memory=4e12)
CLUSTER = replace(ONE.cluster, **HOST)
MODEL = replace(ONE.model, num_layers=8, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, ffn_hidden=128)
MODEL = replace(MODEL, num_experts=16, experts_per_token=6, shared_experts=2, vocab=1000)
FIRST = [(1, 8192), (1, 512), (3, 4096)]  # dense layers, and the columns of their feed-forward


def cost_of(expert_gpus: int = 1, ahead: int = 1, **model: Any) -> Cost:
    """Eight GPUs with all the memory that plans ask for."""
    return make_cost(CLUSTER, replace(MODEL, **model), False, True, expert_gpus, layers_ahead=ahead)


def reckoned_and_found(cost: Cost, length: int, micro_batches: int = 6) -> tuple[Floats, Floats]:
    """Bytes of every GPU, as planners have them and at the fullest moment of live ranges."""
    batch = Batch(np.full(micro_batches * cost.cluster.num_ranks, length), 0, 0)
    plans = LocalPacking(cost, pack_tokens=length).plan(batch)
    assert len(plans) == micro_batches
    played = Simulated(cost, expert_parallel=cost.expert_gpus, window=cost.layers_ahead)
    found = np.array(played.step(batch, plans).peak_bytes, np.float64)
    return np.repeat(peak_bytes(plans, cost) / cost.tp, cost.tp), found


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dense", "columns"), FIRST)
@pytest.mark.parametrize(("stages", "tp"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)])
def test_stages_have_the_layers_that_they_have(stages: int, tp: int, dense: int, columns: int) -> None:
    """Equal stages of both kinds of layers, and of one: never less on any GPU, and of the fullest one to 4 %."""
    ways = list(product(("none", "zero1", "zero2", "zero3"), ("none", "selective", "full"), (256, 4096)))
    for sharding, recompute, length in ways[(FIRST.index((dense, columns)) + stages + tp) % 7 :: 7]:
        of: dict[str, Any] = {"sharding": sharding, "recompute": recompute, "tensor_parallel": tp}
        cost = cost_of(dense_layers=dense, dense_ffn_hidden=columns, pipeline_parallel=stages, **of)
        reckoned, found = reckoned_and_found(cost, length)
        assert (found <= reckoned).all()
        assert found.max() >= 0.96 * reckoned.max()


@pytest.mark.parametrize("expert_gpus", [1, 4])
@pytest.mark.parametrize("ahead", [0, 3])
def test_dense_layers_are_ahead_of_the_first_with_experts(ahead: int, expert_gpus: int) -> None:
    """With few tokens, where a dense layer has more parameters than a GPU's experts, or fewer."""
    for (dense, columns), recompute in product(FIRST[::2], ("none", "full")):
        of: dict[str, Any] = {"sharding": "zero3", "recompute": recompute, "dense_layers": dense}
        cost = cost_of(expert_gpus, ahead, dense_ffn_hidden=columns, **of)
        reckoned, found = reckoned_and_found(cost, 128, 3)
        assert (found <= reckoned).all()
        assert found.max() >= 0.94 * reckoned.max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("offload", "recompute"), [("inputs", "full"), ("activations", "none"), ("activations", "full")]
)
@pytest.mark.parametrize("layers", ["all", 2])
@pytest.mark.parametrize("stages", [1, 2])
def test_dense_layers_wait_on_hosts(stages: int, layers: int | str, offload: str, recompute: str) -> None:
    """The first ones do: never less, and to 4 %."""
    for (dense, columns), sharding in zip(FIRST[::2], ("zero1", "zero3"), strict=True):
        of: dict[str, Any] = {"offload": offload, "offload_layers": layers, "recompute": recompute}
        of |= {"sharding": sharding, "pipeline_parallel": stages, "dense_layers": dense}
        reckoned, found = reckoned_and_found(cost_of(dense_ffn_hidden=columns, **of), 2048)
        assert (found <= reckoned).all()
        assert found.max() >= 0.96 * reckoned.max()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_differ(recompute: str) -> None:
    """A first stage of three layers, of which all are dense or one is."""
    for dense, columns in FIRST[::2]:
        of: dict[str, Any] = {"recompute": recompute, "stage_layers": (3, 5), "dense_layers": dense}
        reckoned, found = reckoned_and_found(
            cost_of(dense_ffn_hidden=columns, sharding="zero1", pipeline_parallel=2, **of), 2048
        )
        assert (found <= reckoned).all()
        assert found.max() >= 0.96 * reckoned.max()


def test_the_fullest_stage_is_what_a_plan_is_asked_room_for() -> None:
    """Of four equal stages the first has the large dense layer, so it needs more than others."""
    cost = cost_of(dense_layers=1, dense_ffn_hidden=8192, sharding="zero1", pipeline_parallel=4)
    stages = moments_of_stages(cost)
    sizes = [
        max(line.bytes(4096) for line in one.lines(4 - stage, stage == 3, stage == 0))
        for stage, one in enumerate(stages)
    ]
    assert len(sizes) == 4
    assert memory_of(cost).bytes(4096) == np.ceil(sizes[0]) == np.ceil(max(sizes))
