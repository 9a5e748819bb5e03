"""Matmuls of whole steps have the rate of their shape: what is cut by columns, by inner size, and by tokens."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import zbench
from tests.helpers.arithmetic import arithmetic
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.matmul import matmul_seconds
from zbench.planned.step import StepPlans
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.play import play_step
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.template import Step

TOKENS, DEGREE = 8192, 4


@cache
def planned(shapes: bool) -> tuple[StepPlans, Cost]:
    """Returns a sequence's plan on two nodes of groups of four GPUs, whose matmuls alone take time."""
    strategy = {"parallel": {"tensor_parallel": DEGREE}}
    found = zbench.plan([TOKENS], cluster="a800_2x8", model="llama_7b", strategy=strategy, system="ulysses")
    device = replace(found.cluster.device, copy_bandwidth=1e30, kernel_seconds=1e-30, matmul_shapes=shapes)
    return found, make_cost(replace(found.cluster, device=device), found.model)


def seconds_of(step: Step, found: StepPlans, cost: Cost, name: str) -> float:
    """Returns the longest compute of a formula, by how it begins, in whichever template has it."""
    longest = 0.0
    for template in step.templates:
        layout = step.layouts[template.layout]
        numbers = [at for at, formula in enumerate(layout.formulas) if str(formula).startswith(name)]
        ops = template.operations
        mine = (ops.kind == COMPUTE) & np.isin(ops.what, numbers)
        if mine.any():
            longest = max(
                longest, float(compute_seconds(Sizes(layout, (template,)), found.plans[0], cost.gpus)[mine].max())
            )
    return longest


@pytest.mark.parametrize(
    ("name", "rows", "columns", "inner"),
    [
        ("q[t,h] ", "tokens", "cut", "hidden"),  # columns are cut over the group
        ("a[t] ", "tokens", "hidden", "cut"),  # the inner size is
        ("dwq[h] ", "hidden", "cut", "tokens"),  # a gradient sums over tokens
        ("dwo[h] ", "cut", "hidden", "tokens"),
        ("du[t,f] ", "tokens", "wide", "hidden"),
    ],
)
def test_a_slice_has_the_rate_of_its_shape(name: str, rows: str, columns: str, inner: str) -> None:
    found, cost = planned(True)
    model = found.model
    step = whole_step(model, found.plans, DEGREE, "1")
    groups = cost.gpus.cluster.num_ranks // DEGREE
    sizes = {
        "tokens": TOKENS / groups,
        "hidden": model.hidden,
        "cut": model.num_heads * model.head_dim / DEGREE,
        "wide": model.ffn_hidden / DEGREE,
    }
    shape = [np.array([float(sizes[one])]) for one in (rows, columns, inner)]
    expected = float(matmul_seconds(cost.gpus.cluster.device, shape[0], shape[1], shape[2], model.element_bytes)[0])
    assert seconds_of(step, found, cost, name) == pytest.approx(expected, rel=1e-6)


def test_without_shapes_a_layers_arithmetic_holds() -> None:
    """And with them no GPU computes for less."""
    found, flat = planned(False)
    _, shaped = planned(True)
    step = whole_step(found.model, found.plans, DEGREE, "1")
    plain, whole = (play_step(step, found.plans, cost.gpus).busy["compute"] for cost in (flat, shaped))
    _, linear = arithmetic(found.plans, flat)
    assert plain.max() == pytest.approx(linear.max(), rel=1e-6)
    assert (whole >= plain).all()
    assert whole.max() > 1.01 * plain.max()


@pytest.mark.parametrize(
    ("model", "degree", "strategy"),
    [
        ("llama_7b", 1, {}),
        ("llama_7b", DEGREE, {}),
        ("llama2_70b", 2, {}),
        ("llama_7b", 2, {"recompute": {"granularity": "selective"}}),
        ("llama_7b", 2, {"memory": {"mlp_chunk_tokens": 300}}),
        ("llama_7b", 1, {"memory": {"loss_chunk_tokens": 300}}),
        ("mixtral_8x7b", 1, {}),
    ],
)
def test_planners_believe_what_steps_take(model: str, degree: int, strategy: dict[str, Any]) -> None:
    """A layer's matmuls and the head's, of GPUs and of tensor-parallel groups. Experts have whole numbers of rows, and
    chunks of tokens whole numbers of tokens, which planners leave out."""
    strategy = {**strategy, "parallel": {"tensor_parallel": degree}}
    found = zbench.plan([TOKENS, 4000], cluster="a800_2x8", model=model, strategy=strategy, system="ulysses")
    device = replace(found.cluster.device, copy_bandwidth=1e30, kernel_seconds=1e-30, matmul_shapes=True)
    cost = make_cost(replace(found.cluster, device=device), found.model)
    step = whole_step(found.model, found.plans, degree, "1", recompute=found.model.recompute)
    busy = play_step(step, found.plans, cost.gpus).busy["compute"]
    _, believed = arithmetic(found.plans, cost)
    near = 1e-6 if "memory" not in strategy and model != "mixtral_8x7b" else 0.01
    assert busy.max() == pytest.approx(believed.max(), rel=near)
