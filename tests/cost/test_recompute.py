"""What selective recomputation runs again and lets go, against the formulas of whole steps, which say it too."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.linear import LAYER_KERNELS
from zbench.cost.recompute import (
    AGAIN_KERNELS,
    again_activation_bytes,
    again_elementwise_bytes,
    again_flops,
    layer_activation_bytes,
)
from zbench.describe.batch import Batch
from zbench.describe.curve import Curve
from zbench.simulated.executor import Simulated
from zbench.step.passes.sections import sections
from zbench.systems.local_packing import LocalPacking

BATCH = Batch(np.array([5000, 4900, 4700, 4400]), seed=0, step=0)


def cost_of(recompute: str, kernels: str = "fused", experts: int = 1) -> Cost:
    """Two nodes of two GPUs."""
    cost = small(2, 2)
    model = replace(cost.model, recompute=recompute, kernels=kernels, sharding="zero3")  # type: ignore[arg-type]
    if experts > 1:
        model = replace(model, num_experts=experts, experts_per_token=2, ffn_hidden=512)
    return replace(cost, model=model)


def test_the_feed_forward_runs_again_but_for_its_way_down() -> None:
    """The arithmetic of a layer with 2 of 8 experts a token, in bf16: gate and up are 2 x 4096 x 1024 parameters of
    each."""
    model = replace(
        small(1, 1).model, hidden=4096, ffn_hidden=1024, num_experts=8, experts_per_token=2, element_bytes=2
    )
    assert again_flops(model) == 2 * 2 * (2 * 4096 * 1024)
    assert again_elementwise_bytes(model) == 2 * (2 * 4096 + 3 * 2 * 1024)
    assert again_elementwise_bytes(replace(model, kernels="eager")) == 28 * 4096 + 10 * 2 * 1024
    assert again_activation_bytes(model) == 2 * (4096 + 3 * 2 * 1024)
    assert AGAIN_KERNELS < LAYER_KERNELS


def test_a_whole_step_makes_the_same_again() -> None:
    """m, z and u, by formulas that read only what is kept; nothing of attention, and no sum."""
    kept, all_kept = sections("selective", False, "words"), sections("none", False, "words")
    again = [one for one in kept.backward if one.results[0].tensor.endswith("~")]
    assert [str(one.results[0].tensor) for one in again] == ["m~", "z~", "u~"]
    assert set(all_kept.saved("backward")) - set(kept.saved("backward")) == {"m", "z", "u"}
    assert all(one.action == "=" for one in again)


@pytest.mark.parametrize("kernels", ["fused", "eager"])
def test_seconds_are_those_of_the_formulas(kernels: str) -> None:
    """Of every rank: what a whole step computes more than one that recomputes nothing."""
    found = {}
    for level in ("none", "selective"):
        cost = cost_of(level, kernels)
        plans = LocalPacking(cost).plan(BATCH)
        result = Simulated(cost).step(BATCH, plans)
        found[level] = np.array(result.linear_seconds)
        again = cost.layers * cost.again_seconds(plans[0].tokens_per_rank)
    assert (again > 0).all()
    assert found["selective"] - found["none"] == pytest.approx(again, rel=1e-9)


def test_activations_are_those_that_formulas_keep() -> None:
    """A layer more has, when the head is at work, what its forward keeps, and shards; its gradients come after that."""
    cost = cost_of("selective")
    deeper = replace(cost, model=replace(cost.model, num_layers=2 * cost.layers))
    tokens = LocalPacking(cost).plan(BATCH)[0].tokens_per_rank
    kept = layer_activation_bytes(cost.model) - again_activation_bytes(cost.model)
    more = []
    for one in (cost, deeper):
        result = Simulated(one).step(BATCH, LocalPacking(one).plan(BATCH))
        more.append(np.array(result.peak_bytes))
    shards = 14 * cost.layers * cost.model.layer_params / 4  # bf16 parameters and Adam's 12 bytes, on four GPUs
    assert more[1] - more[0] - cost.layers * kept * tokens == pytest.approx(np.full(4, shards), rel=1e-3)


def test_without_it_nothing_runs_again() -> None:
    for level in ("none", "full"):  # a whole forward that runs again is the clock's to play
        cost = cost_of(level)
        tokens = np.array([0, 1, 5000])
        assert not cost.again_seconds(tokens).any()
        assert cost.backward_linear_seconds(tokens).tolist() == (2 * cost.linear_seconds(tokens)).tolist()


def test_a_curve_of_matmuls_is_its_matmuls_too() -> None:
    """With half the rate at every size, matmuls that run again take twice as long."""
    cost = cost_of("selective")
    tokens, flops = np.array([3000]), cost.cluster.device.matmul_flops
    device = replace(cost.cluster.device, matmul_by_tokens={cost.model.name: Curve((1.0, 1e6), (flops / 2, flops / 2))})
    slow = replace(cost, cluster=replace(cost.cluster, device=device))
    more = float((slow.again_seconds(tokens) - cost.again_seconds(tokens))[0])
    assert more == pytest.approx(3000 * again_flops(cost.model) / flops)
