"""Forwards by themselves: proven, the same loss as the training step's, and a part of its seconds."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import dense_step
from tests.helpers.steps import EXPERTS, MODEL, fault, plan_of, sequences_of, tokens_of
from zbench.api.parts import cluster_named
from zbench.correctness.steps.interpreter import StepInterpreter
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.exchanges import UNCUT, ExchangeOverlap, TokenSlices
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import play_step
from zbench.step.passes.build import forward_step, whole_step
from zbench.step.passes.parameters.zero import ZeroCut
from zbench.step.passes.parts import PlanParts
from zbench.step.template import Step
from zbench.step.text import step_text

USUAL = StepOverlap(1)


def loss_of(step: Step, plans: list[Plan], degree: int, model: Model, slices: TokenSlices = UNCUT) -> float:
    """The loss that a step comes to, at the one place that has it."""
    sequences = sequences_of(plans, model)
    parts = [PlanParts(plan, model, degree, token_slices=slices) for plan in plans]
    tokens = [tokens_of(plan, sequences, degree, cuts=one.token_cuts) for plan, one in zip(plans, parts, strict=True)]
    there = StepInterpreter(step, model, tokens, dense_step.weights(model)).run()
    return float(sum(there["loss", 0, -1].values()))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("zero", "batches", "degree"),
    [
        ("3", ([9, 7],), 1),
        ("2", ([1], [5]), 1),
        ("1", ([1], [5], [3]), 2),
        ("none", ([3, 1],), 2),
        ("3", ([16], [1]), 1),
    ],
)
def test_it_comes_to_the_loss_of_the_training_step(
    zero: str, batches: tuple[list[int], ...], degree: int, tied: bool
) -> None:
    heads, model = 4 // degree, replace(MODEL, tied_embeddings=tied)
    plans = [plan_of(lengths, 4, heads, first=at) for at, lengths in enumerate(batches)]
    step = forward_step(model, plans, degree, ZeroCut(zero), USUAL)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    names = {name.split(".")[0] for name in (one.name for one in step.templates)}
    assert names == {"embedding", "forward", "head"}
    trained = whole_step(model, plans, degree, zero)
    assert loss_of(step, plans, degree, model) == pytest.approx(loss_of(trained, plans, degree, model), rel=1e-12)


def test_exchanges_beside_matmuls_are_as_in_training() -> None:
    overlap = StepOverlap(1, exchanges=ExchangeOverlap("async_tp", transfers="direct"))
    plans = [plan_of([9, 7], 2, 2)]
    step = forward_step(MODEL, plans, 2, ZeroCut("1"), overlap)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    flat = forward_step(MODEL, plans, 2, ZeroCut("1"), USUAL)
    slices = overlap.token_slices
    assert loss_of(step, plans, 2, MODEL, slices) == pytest.approx(loss_of(flat, plans, 2, MODEL), rel=1e-12)


def test_what_training_gathers_before_all_else_comes_a_layer_ahead() -> None:
    plans = [plan_of([9, 7], 4, 4), plan_of([3], 4, 4, first=2)]
    step = forward_step(MODEL, plans, 1, ZeroCut("1"), StepOverlap("all"))
    assert fault(step) == ""


@pytest.mark.parametrize(("zero", "head"), [("none", "words"), ("1", "value"), ("3", "words")])
def test_stages_pass_on_what_they_have(zero: str, head: str) -> None:
    model, plans = replace(MODEL, head=head), [plan_of([9, 2], 2, 2), plan_of([3], 2, 2, first=2)]
    step = forward_step(model, plans, 2, ZeroCut(zero), USUAL, stages=2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    trained = whole_step(model, plans, 2, zero, stages=2)
    assert loss_of(step, plans, 2, model) == pytest.approx(loss_of(trained, plans, 2, model), rel=1e-12)


def test_micro_batches_that_are_alike_share_what_they_have_and_are_played_as_if_they_did_not() -> None:
    plans = [plan_of(lengths, 2, 2, first=at) for at, lengths in enumerate([[7], [7], [5], [7], [5]])]
    step = forward_step(replace(MODEL, num_layers=4), plans, 2, ZeroCut("1"), USUAL, stages=2)
    assert step.same_layouts == (0, 1, 2, 1, 2)  # the first one gathers, and no other does
    apart = replace(
        step,
        layouts=tuple(map(copy, step.layouts)),
        templates=tuple(replace(one, operations=copy(one.operations)) for one in step.templates),
    )
    assert (apart.same_layouts, unrolled_fault(step)) == ((0, 1, 2, 3, 4), "")
    assert (fault(step), step_text(step)) == (fault(apart), step_text(apart))
    cost = Cost(cluster=cluster_named("a100_80g_16x8", {"num_nodes": 1}), model=replace(MODEL, num_layers=4))
    shared, each = (play_step(one, plans, cost) for one in (step, apart))
    assert (shared.seconds, shared.ends) == (each.seconds, each.ends)
    assert np.array_equal(shared.memory.peak, each.memory.peak)
    for name, busy in each.busy.items():
        assert np.array_equal(shared.busy[name], busy)


def test_experts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^model tiny has num_experts=4; a forward by itself takes one without$"):
        forward_step(EXPERTS, [plan_of([4], 2, 4)], 1, ZeroCut("3"), USUAL)


@pytest.mark.parametrize(
    ("zero", "stages", "batches", "degree"),
    [("1", 2, ([9], [5], [3]), 2), ("none", 2, ([9, 7],), 1), ("3", 2, ([1], [5]), 1), ("1", 3, ([7], [4]), 1)],
)
def test_stages_come_to_the_loss_of_the_training_step(
    zero: str, stages: int, batches: tuple[list[int], ...], degree: int
) -> None:
    model = replace(MODEL, num_layers=5)
    plans = [plan_of(lengths, 2, 4 // degree, first=at) for at, lengths in enumerate(batches)]
    step = forward_step(model, plans, degree, ZeroCut(zero), USUAL, stages)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    trained = whole_step(model, plans, degree, zero, stages=stages)
    assert loss_of(step, plans, degree, model) == pytest.approx(loss_of(trained, plans, degree, model), rel=1e-12)
