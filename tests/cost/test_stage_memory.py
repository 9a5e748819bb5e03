"""Planners' memory of pipelines beside the live ranges of the steps that they become."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory import ADAM_BYTES, activation_bytes, peak_bytes, static_bytes
from zbench.cost.stage_memory import stage_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import RecomputeLevel
from zbench.simulated.executor import Simulated
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking


def pipelines_of(**model: Any) -> Cost:
    one = small(2, 4)
    cost = make_cost(one.cluster, replace(one.model, num_layers=8, **model), pipelines=True)
    return replace(cost, even_slices=True)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pair", [(2, 1), (8, 1), (4, 2), (2, 4)])
def test_what_a_planner_reckons_is_what_is_there_at_the_fullest_moment(pair: tuple[int, int], recompute: str) -> None:
    """Never less, and hardly more, where micro-batches follow one another, so that gradients are there, too."""
    cost = pipelines_of(recompute=recompute)
    batch = Batch(np.full(6 * 8 // (pair[0] * pair[1]) * pair[1], 4096), 0, 0)
    plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
    assert len(plans) >= 6
    found, reckoned = np.array(Simulated(cost).step(batch, plans).peak_bytes), peak_bytes(plans, cost)
    assert (found <= reckoned).all()
    assert found.max() >= 0.99 * reckoned.max()


@pytest.mark.parametrize("model", ["mha", "gqa"])
def test_a_token_without_pipelines_is_what_it_is_in_the_account(model: str) -> None:
    """What layers keep, whole logits, and three hidden states at the loss: per token, of two sizes of a batch."""
    one = small(2, 4, model=model, memory=400e9)
    cost = replace(one, model=replace(one.model, sharding="zero1"))
    peaks = []
    for length in (4096, 8192):
        batch = Batch(np.full(8, length), 0, 0)
        peaks.append(max(Simulated(cost).step(batch, LocalPacking(cost).plan(batch)).peak_bytes))
    assert (peaks[1] - peaks[0]) / 4096 == pytest.approx(activation_bytes(cost.model), rel=1e-4)


@pytest.mark.parametrize("sharding", ["zero3", "zero2", ShardDegrees(4, 4, WORLD, WORLD)], ids=str)
def test_a_head_that_is_whole_at_the_loss_is_counted(sharding: str | ShardDegrees) -> None:
    """Where it is larger than a layer: the fullest moment of two micro-batches, of any size, is what is reckoned, but
    for state of norms' gains, which one GPU has, and parameters that are whole in the place of a GPU's own part."""
    one = small(2, 4, model="gqa", memory=400e9)
    cost = replace(one, model=replace(one.model, sharding=sharding, vocab=131072))  # type: ignore[arg-type]
    model, over = cost.model, []
    for length in (2048, 4096):
        room = float(static_bytes(cost) + 1.5 * length * activation_bytes(model))
        device = replace(cost.cluster.device, memory_bytes=room)
        tight = replace(cost, cluster=replace(cost.cluster, device=device))
        batch = Batch(np.full(16, length), 0, 0)
        plans = LocalPacking(tight).plan(batch)
        assert len(plans) == 2
        over.append(int(peak_bytes(plans, cost).max()) - max(Simulated(cost).step(batch, plans).peak_bytes))
    assert over[0] == over[1]
    gains = (GRADIENT_BYTES + ADAM_BYTES) * (2 * model.num_layers + 1) * model.hidden
    assert -gains <= over[0] <= model.element_bytes * (model.head_params + model.layer_params) // 4


@pytest.mark.parametrize("level", ["none", "selective", "chunked", "full"])
@pytest.mark.parametrize("fine", [False, True])
def test_chunks_of_experts_need_no_more_than_is_reckoned(fine: bool, level: RecomputeLevel) -> None:
    """Two micro-batches, experts at home or over GPUs, of two sizes: never less than what is there; a token of
    a chunk that is made again is what it is without experts, and one that is kept has a row for each of its experts."""
    one = small(1, 4, memory=400e9)
    model = replace(one.model, num_layers=3, hidden=512, num_heads=8, num_kv_heads=8, head_dim=64, vocab=4096)
    model = replace(model, ffn_hidden=1024, num_experts=4, experts_per_token=2, sharding="zero1", recompute=level)
    model = replace(model, loss_chunk_tokens=256, mlp_chunk_tokens=256)
    if fine:
        model = replace(model, ffn_hidden=128, num_experts=16, experts_per_token=6, shared_experts=2)
    cost, over = replace(one, model=model), dict[int, list[int]]()
    for length in (1024, 2048):
        room = float(static_bytes(cost) + 1.5 * length * activation_bytes(model))
        tight = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=room)))
        batch = Batch(np.full(8, length), 0, 0)
        plans = LocalPacking(tight).plan(batch)
        assert len(plans) == 2
        for groups in (1, 4):
            found = max(Simulated(cost, expert_parallel=groups).step(batch, plans).peak_bytes)
            over.setdefault(groups, []).append(int(peak_bytes(plans, cost).max()) - found)
    assert min(over[1] + over[4]) >= 0
    states = (over[4][1] - over[4][0]) / 1024 / (model.element_bytes * model.hidden)
    assert 1 < states < (18 if fine else 5)  # of a token: three at the loss, and rows of experts on the same GPU


def test_tensor_parallel_groups_gather_a_hidden_state_each() -> None:
    """On as many ranks a token's share is smaller, and what is gathered is not."""
    cost = pipelines_of()
    hidden = cost.model.element_bytes * cost.model.hidden
    for tp in (2, 4, 8):
        kept, working, loss = stage_bytes(cost, tp, 1)
        alone = stage_bytes(cost, 1, 1)
        assert kept == alone[0] / tp
        assert working > hidden
        assert loss - alone[2] / tp == pytest.approx((2 * hidden + 2 * cost.model.lse_bytes) * (1 - 1 / tp))


def test_plans_with_little_room_fit() -> None:
    """Where a GPU has room for one more hidden state than the longest sequence keeps, and for less than what it had."""
    cost = pipelines_of()
    roomy = Hydraulis(cost, tp_pp_pairs=[[8, 1]], batching="first_fit")
    batch = Batch(np.array([16000] + [4000] * 12), 0, 0)
    memory = int(np.max(Simulated(cost).step(batch, roomy.plan(batch)).peak_bytes))
    device = replace(cost.cluster.device, memory_bytes=float(memory - 2**26))
    tight = replace(cost, cluster=replace(cost.cluster, device=device))
    result = Simulated(tight).step(batch, Hydraulis(tight, tp_pp_pairs=[[8, 1]]).plan(batch))
    assert max(result.peak_bytes) <= device.memory_bytes
