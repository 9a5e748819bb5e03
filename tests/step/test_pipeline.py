"""Stages of a pipeline come to the loss and gradients of one process, and broken steps of them are found."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.step.passes.build import whole_step
from zbench.step.passes.pipeline import BACKWARD, FORWARD, one_forward_one_backward
from zbench.step.passes.routing import ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import StageStart, Step
from zbench.step.text import step_text

FIVE, THREE = replace(MODEL, num_layers=5), replace(EXPERTS, num_layers=3)
# Model, ranks of a stage, degrees of tensor parallelism and experts, ZeRO, recomputation, window, stages, lengths.
CASES: tuple[tuple[Model, int, int, int, str, str, int, int, tuple[list[int], ...]], ...] = (
    (FIVE, 1, 1, 1, "3", "none", 1, 2, ([5, 3],)), (FIVE, 2, 1, 1, "3", "none", 2, 2, ([5, 3], [4])),
    (FIVE, 1, 2, 1, "2", "full", 1, 3, ([7, 3], [1], [4])), (FIVE, 2, 1, 1, "none", "selective", 1, 5, ([1], [6, 2])),
    (THREE, 2, 2, 2, "1", "elementwise", 1, 3, ([5, 4], [2])), (FIVE, 2, 1, 1, "3", "none", 0, 2, ([5, 3], [4])),
)  # fmt: skip


@cache
def case(number: int) -> tuple[Step, list[Plan]]:
    model, ranks, degree, experts, zero, recompute, window, stages, batches = CASES[number]
    plans: list[Plan] = []
    for lengths in batches:
        plans.append(plan_of(lengths, ranks, 4 // degree, first=sum(len(plan.lengths) for plan in plans)))
    how = ExpertParallel(experts, 1, 1.0)
    return whole_step(model, plans, degree, zero, window, recompute, how, stages), plans


def error(number: int, step: Step) -> float:
    model, _, degree, experts, *_ = CASES[number]
    return execute(step, case(number)[1], degree, model, ExpertParallel(experts, 1, 1.0))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, _ = case(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error(number, step) < 1e-12


@pytest.mark.parametrize("number", [1, 2])
def test_mutants(number: int) -> None:
    """Of operations, and of instances: left out, exchanged with the one before, in other places."""
    step, _ = case(number)
    rng = np.random.default_rng(number)
    broken = [step_mutant(step, KINDS[at % len(KINDS)], rng) for at in range(24)]
    for at in rng.choice(np.arange(1, len(step.order)), 6, replace=False).tolist():
        before, one, after = step.order[: at - 1], step.order[at], step.order[at + 1 :]
        elsewhere = replace(one, place=(one.place + step.stages[1].place) % step.num_gpus)
        broken.append(replace(step, order=(*before, one, step.order[at - 1], *after)))
        broken.append(replace(step, order=(*step.order[:at], *after)))
        broken.append(replace(step, order=(*step.order[:at], elsewhere, *after)))
    rejected = 0
    for wrong in filter(None, broken):
        told = fault(wrong)
        assert bool(told) == bool(unrolled_fault(wrong)), told
        rejected += bool(told)
        assert told or error(number, wrong) < 1e-12
    assert rejected > 16


def test_a_step_with_stages_reads_back() -> None:
    text = step_text(case(1)[0])
    assert "pipeline 0:0 2:2" in text
    assert step_text(read_step(text)) == text


def test_stages_begin_where_they_have_to() -> None:
    step, _ = case(1)
    for stages, told in (
        ((StageStart(1, 0),), "the stages of a step begin with layer 0"),
        ((StageStart(0, 0), StageStart(0, 2)), "reaches into the next pipeline"),
        ((StageStart(0, 1), StageStart(2, 2)), "the pipelines of a step begin with place 0"),
        ((StageStart(0, 0), StageStart(2, 3), StageStart(0, 2)), "pipeline 0 has places 0 to 1, and a stage that"),
        ((StageStart(0, 0), StageStart(2, 4)), "the stages of a step begin with places below 4"),
        ((StageStart(0, 0), StageStart(5, 2)), "ascend below 5"),
        ((StageStart(0, 0), StageStart(2, 0)), "instance"),
    ):
        assert told in fault(replace(step, stages=stages))


def test_one_forward_one_backward() -> None:
    """Two stages, three micro-batches: the second stage alternates from its first on, the first is one ahead."""
    order = list(one_forward_one_backward(2, 3))
    assert [(way, at) for stage, way, at in order if stage == 1] == [
        (FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1), (FORWARD, 2), (BACKWARD, 2)
    ]  # fmt: skip
    assert [(way, at) for stage, way, at in order if stage == 0] == [
        (FORWARD, 0), (FORWARD, 1), (BACKWARD, 0), (FORWARD, 2), (BACKWARD, 1), (BACKWARD, 2)
    ]  # fmt: skip
    for stages, batches in ((1, 1), (4, 2), (3, 7)):
        done: list[tuple[int, int, int]] = []
        for stage, way, at in one_forward_one_backward(stages, batches):
            assert stage == (0 if way == FORWARD else stages - 1) or (stage + 2 * way - 1, way, at) in done
            assert way == FORWARD or (stage, FORWARD, at) in done
            done.append((stage, way, at))
        assert len(set(done)) == len(done) == 2 * stages * batches


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match=r"the number of pipeline stages is 6; it takes 1 to model.num_layers, 5"):
        whole_step(FIVE, [plan_of([5, 3], 2, 4)], stages=6)
