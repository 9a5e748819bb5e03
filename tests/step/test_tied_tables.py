"""Tied embeddings in stages: the first and the last one have a table each, which are updated by the sum of both
gradients, and broken steps of them are found."""

from dataclasses import replace

import pytest

from tests.helpers.steps import MODEL, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import forward_step, whole_step
from zbench.step.passes.parameters.zero import STAGES, ZeroCut
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

FIVE = replace(MODEL, num_layers=5, tied_embeddings=True)
DEGREES = (ShardDegrees(2, 2, 2, 2), ShardDegrees(1, 1, 2, WORLD))
LOSSY = (
    ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, block=16)),
    ShardDegrees(2, 1, 2, WORLD, bits=TransferBits(gradients=4, updates=8, block=7)),
)


def case(zero: str | ShardDegrees, degree: int = 1, stages: int = 2, ranks: int = 2) -> tuple[Step, list[Plan]]:
    """Three micro-batches, in one of which some GPUs have no token."""
    plans: list[Plan] = []
    for lengths in ([5, 3], [1], [4]):
        plans.append(plan_of(lengths, ranks, 4 // degree, first=sum(len(plan.lengths) for plan in plans)))
    return whole_step(FIVE, plans, degree, zero, stages=stages), plans


@pytest.mark.parametrize("zero", [*STAGES, *DEGREES], ids=str)
@pytest.mark.parametrize(("degree", "stages"), [(1, 2), (2, 3)])
def test_exact(degree: int, stages: int, zero: str | ShardDegrees) -> None:
    step, plans = case(zero, degree, stages)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, FIVE) < 1e-12
    text = step_text(step)
    assert step_text(read_step(text)) == text


@pytest.mark.parametrize("zero", LOSSY, ids=str)
@pytest.mark.parametrize("degree", [1, 2])
def test_lossy_hops_are_counted(degree: int, zero: ShardDegrees) -> None:
    step, _ = case(zero, degree)
    assert (fault(step), unrolled_fault(step)) == ("", "")


@pytest.mark.parametrize("zero", ["none", "3"])
def test_collectives_in_two_levels(zero: str) -> None:
    step, plans = case(zero, 2)
    levels = in_two_levels(step, 2)
    assert (fault(levels), unrolled_fault(levels)) == ("", "")
    assert execute(levels, plans, 2, FIVE) < 1e-12


def test_each_stage_sums_up_half_of_every_shard() -> None:
    """What both send beyond what a model has whose head is its own: a half of their contributions, and a half of the
    sum; both tables are cut evenly."""
    step, _ = case("1")
    table = FIVE.vocab * FIVE.hidden
    sums = step.layouts[-1].tensors[step.layouts[-1].number["dwe"]].unit
    plain = replace(FIVE, tied_embeddings=False)
    own = whole_step(plain, case("1")[1], 1, "1", stages=2)
    more = [
        [a["gradients"][way] - b["gradients"][way] for way in range(2)]
        for a, b in zip(stated_bytes(step), stated_bytes(own), strict=True)
    ]
    assert sum(sent for sent, _ in more) == sum(received for _, received in more) == 2 * table * sums
    names = [step.templates[one.template].name for one in step.order]
    assert names[-1] == "optimizer_tables"
    assert "optimizer_embedding" not in names


def test_forwards_alone_read_the_last_stages_table() -> None:
    plans = [plan_of([5, 3], 2, 4), plan_of([4], 2, 4, first=2)]
    step = forward_step(FIVE, plans, 1, ZeroCut("3"), StepOverlap.of(1), 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert "wh" in step.layouts[0].number


@pytest.mark.parametrize("zero", ["none", "2"])
def test_mutants(zero: str) -> None:
    step, plans = case(zero)
    assert rejected_mutants(step, 1, 24, lambda accepted: execute(accepted, plans, 1, FIVE)) > 6
