"""Seconds to build and to prove whole steps, beside the proof of their attention alone.

Not collected by default: `make bench`. Operations and touches are asserted: they are a function of the code alone.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import zbench
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Plan
from zbench.proof.verify import verify
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

LLAMA_7B = Model("llama_7b", 32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_70B = Model("llama_70b", 80, 8192, 64, 8, 128, 28672, 128256)


@cache
def case(gpus: int) -> tuple[Model, tuple[Plan, ...], int]:
    """32 GPUs: Zeppelin's plans of 131,072 tokens with a long tail. More (1,024, 4,096): groups of 8 GPUs, rings of
    four groups, 8,192 tokens a group."""
    if gpus == 32:
        lengths = np.minimum(np.random.default_rng(0).lognormal(7.5, 1.2, 200).astype(int) + 1, 60000)
        scaled = (lengths * (131072 / lengths.sum())).astype(int) + 1
        return LLAMA_7B, zbench.plan(scaled.tolist(), cluster="a800_4x8", model="llama_7b", system="zeppelin").plans, 1
    groups, rings = gpus // 8, gpus // 32
    builder = Builder(np.full(rings, 32768), groups, 8)
    ring(builder, np.arange(rings), np.arange(rings), np.arange(groups).reshape(rings, 4))
    return LLAMA_70B, (reverse(builder.build(), "carry"),), 8


@cache
def step(gpus: int) -> Step:
    model, plans, degree = case(gpus)
    return whole_step(model, plans, degree, "3")


@pytest.mark.parametrize("gpus", [32, 1024])
def test_build(benchmark: Callable, gpus: int) -> None:
    model, plans, degree = case(gpus)
    found = benchmark(whole_step, model, plans, degree, "3")
    benchmark.extra_info["operations"] = [len(one.operations) for one in found.templates]


@pytest.mark.parametrize(("gpus", "touches"), [(32, 26_155), (1024, 3_780_437)])
def test_prove(benchmark: Callable, gpus: int, touches: int) -> None:
    assert benchmark(prove_step, step(gpus)).touches == touches


@pytest.mark.parametrize("gpus", [32, 1024])
def test_verify_attention_alone(benchmark: Callable, gpus: int) -> None:
    _, plans, _ = case(gpus)
    benchmark(lambda: [verify(plan) for plan in plans])
