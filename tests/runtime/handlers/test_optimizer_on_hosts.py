"""Optimizer state and parameters in host memory on four processes: exact, with the bytes that the step says."""

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.steps import pipeline_plans, plan_of
from tests.runtime.handlers.test_degrees import FOUR
from tests.runtime.handlers.test_expert_chunks import RANKS
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import DEGREES, EXPERTS, MODEL
from zbench.correctness.steps.command import judged_step
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step


def judged(ranks: LocalFleet, step: Step, plans: list[Any], degree: int) -> str:
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, MODEL, plans, degree))
    return judged_step(FOUR, found, stated_bytes(step)).fault


@pytest.mark.parametrize(
    ("zero", "degree", "level", "offload", "layers", "updates"),
    [
        ("2", 2, "selective", "optimizer", (0, 0), "as_gradients_come"),
        ("2", 2, "selective", "optimizer", (0, 0), "after_backward"),
        ("3", 1, "full", "inputs_and_optimizer", (2, 2), "as_gradients_come"),
        ("3", 1, "full", "inputs_and_optimizer", (2, 2), "after_backward"),
        # Of the first micro-batch the first layer's alone.
        ("3", 1, "full", "inputs_and_optimizer", (1, 2), "as_gradients_come"),
        ("1", 2, "full", "inputs", (1, 1), "as_gradients_come"),
    ],
)
def test_exact_with_the_bytes_of_the_step(
    ranks: LocalFleet, zero: str, degree: int, level: str, offload: str, layers: tuple[int, int], updates: str
) -> None:
    """On two nodes; in the second micro-batch some processes have no token."""
    plans = [plan_of(lengths, 4 // degree, 4 // degree, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    model = replace(MODEL, offload=offload, host_updates=updates)
    step = with_host_memory(whole_step(model, plans, degree, zero, recompute=level), model, 2, layers)
    assert judged(ranks, step, plans, degree) == ""
    assert all(one["host"] != (0, 0) for one in stated_bytes(step))


STATE = [(1, 0, 0), (2, 0, 2), (2, 0, 1), (1, 0, 1)]
PARAMETERS = [(0, 1, 0), (1, 1, 0), (2, 2, 0), (2, 1, 2)]  # in parts, with ZeRO-3


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("zero", "degree", "optimizer", "parameters", "carried"),
    [(*one, *counts) for one in (("1", 2), ("2", 1), ("3", 1), ("3", 2)) for counts in STATE]
    + [("3", degree, *counts) for degree in (1, 2) for counts in PARAMETERS],
)
def test_exact_with_some_layers_on_hosts(
    ranks: LocalFleet, zero: str, degree: int, optimizer: int, parameters: int, carried: int
) -> None:
    """State of the last layers, parameters of the first ones, gradients of the step before: of one layer of two, or of
    both."""
    plans = [plan_of(lengths, 4 // degree, 4 // degree, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = whole_step(MODEL, plans, degree, zero, recompute="selective")
    step = with_optimizer_on_hosts(step, 2, HostLayers(MODEL.num_layers, optimizer, parameters, carried))
    assert judged(ranks, step, plans, degree) == ""


@pytest.mark.parametrize(
    ("stages", "degree", "offload", "level", "updates"),
    [
        (2, 1, "optimizer", "selective", "as_gradients_come"),
        (2, 2, "inputs_and_optimizer", "full", "after_backward"),
        (4, 1, "optimizer", "none", "across_steps"),
        (2, 1, "activations_and_optimizer", "selective", "as_gradients_come"),
    ],
)
def test_exact_in_stages(ranks: LocalFleet, stages: int, degree: int, offload: str, level: str, updates: str) -> None:
    """Every GPU's process holds its part of its node's host memory."""
    model, count = replace(MODEL, num_layers=6, offload=offload, host_updates=updates), 4 // degree // stages
    lengths = ([9, 6], [2, 1], [5])
    plans = [plan_of(one, count, 4 // degree, first=10 * at) for at, one in enumerate(lengths)]
    step = with_host_memory(whole_step(model, plans, degree, "1", 1, level, stages=stages), model, 2, [2, 3, 1])
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, degree))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""


@pytest.mark.parametrize("updates", ["as_gradients_come", "after_backward", "across_steps"])
@pytest.mark.parametrize("shapes", [[(1, 2), (2, 1)], [(1, 3), (1, 1)], [(2, 2)]])
def test_exact_in_pipelines_of_plans(ranks: LocalFleet, updates: str, shapes: list[tuple[int, int]]) -> None:
    model = replace(MODEL, num_layers=6, offload="activations_and_optimizer", host_updates=updates)
    plans = pipeline_plans(shapes, [[(9, 0), (6, len(shapes) - 1), (3, 0)], [(2, 0), (1, 0)]], 4)
    built = whole_step(model, plans, 1, "1", 1, "selective")
    step = with_host_memory(built, model, 2, [2] * len(built.layouts))
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, 1))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""


@pytest.mark.parametrize(("stages", "zero", "optimizer"), [(1, "3", "all"), (1, "2", 3), (2, "1", "all"), (2, "1", 4)])
def test_exact_with_dense_layers_before_others(ranks: LocalFleet, stages: int, zero: str, optimizer: int | str) -> None:
    model = replace(EXPERTS, num_layers=5, dense_layers=2, dense_ffn_hidden=10, shared_experts=1, offload="optimizer")
    model, how = replace(model, optimizer_layers=optimizer), ExpertParallel(4 // stages, 1, skew=1.0)
    plans = [plan_of(lengths, 4 // stages, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = with_host_memory(whole_step(model, plans, 1, zero, 1, "selective", how, stages), model, 2, [5, 5])
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, 1, experts=how))
    assert judged_step(RANKS, found, stated_bytes(step)).fault == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("stages", "degree", "zero", "optimizer", "parameters", "carried"),
    [(2, 1, "3", 0, 5, 0), (2, 2, "3", 6, 3, 2), (4, 1, "3", 2, 6, 0), (1, 1, "hpz", 0, 4, 0), (2, 1, "hpz", 3, 6, 0)],
)
def test_exact_with_parameters_of_stages(
    ranks: LocalFleet, stages: int, degree: int, zero: str, optimizer: int, parameters: int, carried: int
) -> None:
    """Of the first layers, whichever stages have them, by shares of ZeRO-3 or of nested degrees."""
    model, count = replace(MODEL, num_layers=6), 4 // degree // stages
    plans = [plan_of(one, count, 4 // degree, first=10 * at) for at, one in enumerate(([9, 6], [2, 1], [5]))]
    step = whole_step(model, plans, degree, DEGREES.get(zero, zero), 1, "selective", stages=stages)
    step = with_optimizer_on_hosts(step, 2, HostLayers(6, optimizer, parameters, carried))
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, degree))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""


@pytest.mark.parametrize(("stages", "optimizer", "parameters"), [(1, 0, 5), (1, 3, 2), (2, 0, 1), (2, 5, 4)])
def test_exact_with_parameters_of_dense_layers(ranks: LocalFleet, stages: int, optimizer: int, parameters: int) -> None:
    """Of the dense ones alone, some of them, and of layers with experts behind them."""
    model = replace(EXPERTS, num_layers=5, dense_layers=2, dense_ffn_hidden=10, shared_experts=1)
    how = ExpertParallel(4 // stages, 1, skew=1.0)
    plans = [plan_of(lengths, 4 // stages, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = whole_step(model, plans, 1, "3", 1, "selective", how, stages)
    step = with_optimizer_on_hosts(step, 2, HostLayers(5, optimizer, parameters))
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, model, plans, 1, experts=how))
    assert judged_step(RANKS, found, stated_bytes(step)).fault == ""
