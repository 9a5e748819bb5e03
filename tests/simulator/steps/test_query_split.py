"""Attention cut by queries on the clock: its seconds add up, and what it hides with slices that take as long or not.

All seconds are simulated.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.overlap import StepOverlap
from zbench.passes.reverse import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.play import play_step
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

AREA, TOKENS = (ExchangeOverlap("query_split", 1, "ring", one) for one in ("area", "tokens"))
COMMFUSE = ExchangeOverlap("commfuse")


@cache
def given(lengths: tuple[int, ...], bandwidth: float = 1e12) -> tuple[Cost, Plan]:
    """One group of four GPUs, whose kernels take what visible pairs take and start in next to no time."""
    one = small(1, 4)
    device = replace(one.cluster.device, tile=1, kernel_seconds=1e-12, call_seconds=1e-12)
    cluster = replace(one.cluster, device=device, nvlink_bandwidth=bandwidth)
    model = replace(one.model, num_layers=2, num_heads=8, num_kv_heads=8, sharding="zero1", tensor_parallel=4)
    cost = make_cost(cluster, model, pipelines=False)
    builder = Builder(np.array(lengths), 1, 2)
    local(builder, np.arange(len(lengths)), np.zeros(len(lengths), np.int64))
    return cost, reverse(builder.build(), "keep")


def step_of(cost: Cost, plan: Plan, how: ExchangeOverlap) -> Step:
    step = whole_step(cost.gpus.model, [plan], 4, "1", StepOverlap(exchanges=how))
    prove_step(step)
    return step


def attends(cost: Cost, plan: Plan, how: ExchangeOverlap) -> tuple[np.ndarray, np.ndarray]:
    """The GPU and the seconds of every attend of a layer's forward."""
    step = step_of(cost, plan, how)
    template = next(one for one in step.templates if one.name == "forward")
    layout, ops = step.layouts[0], template.operations
    formula = layout.labels.index("o")
    seconds = compute_seconds(Sizes(layout, (template,)), plan, cost.gpus)
    mine = (ops.kind == COMPUTE) & (ops.what == formula)
    return ops.src[mine], seconds[mine]


@pytest.mark.parametrize("how", [AREA, TOKENS], ids=lambda how: how.balance)
@pytest.mark.parametrize(
    ("lengths", "most"), [((40000,), 1.04), ((9000, 300, 77, 5000, 1), 1.3), ((100,) * 50, 2.0)], ids=str
)
def test_slices_take_what_the_whole_takes(lengths: tuple[int, ...], most: float, how: ExchangeOverlap) -> None:
    """But for keys, which each slice reads from memory once more: half of what 100 tokens take, little of 40,000."""
    cost, plan = given(lengths)
    gpu, seconds = attends(cost, plan, how)
    _, whole = attends(cost, plan, COMMFUSE)
    assert (len(gpu), len(whole)) == (16, 4)
    more = np.bincount(gpu, weights=seconds) / whole
    assert ((more > 1) & (more < most)).all()


def test_slices_of_a_sequence_take_as_long_by_area() -> None:
    """By tokens those of four GPUs take 1, 3, 5 and 7 sixteenths."""
    cost, plan = given((40000,))
    for how, wanted in ((TOKENS, [1, 3, 5, 7]), (AREA, [4, 4, 4, 4])):
        gpu, seconds = attends(cost, plan, how)
        assert np.sort(seconds[gpu == 0]) / seconds[gpu == 0].sum() == pytest.approx(np.array(wanted) / 16, abs=0.015)


@pytest.mark.parametrize("bandwidth", [1e10, 4e10, 1.6e11])
def test_a_projection_s_exchange_is_behind_attention(bandwidth: float) -> None:
    """More of it the more alike slices are: of others a GPU waits for the longest one, by ring for each in turn."""
    cost, plan = given((40000,), bandwidth)
    area, tokens, commfuse = (
        play_step(step_of(cost, plan, how), [plan], cost.gpus).seconds for how in (AREA, TOKENS, COMMFUSE)
    )
    assert area < tokens < commfuse
