"""Sharding by nested degrees on four processes: exact, with the bytes that the step says."""

import pytest

from tests.helpers.steps import plan_of
from tests.step.test_degrees import NESTED
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.proof.prove import prove_step

ZEROPP = ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, block=16))
FOUR = StepCombination(1, 4, 1, 1, 0, 1, "even", 1, 1, "whole", "own", "3", 0, "none", 2, "carry", "uneven")  # in words


@pytest.mark.sampled(2)
@pytest.mark.parametrize("degrees", NESTED, ids=str)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, degrees: object) -> None:
    """Degrees (1, 2, 4) that lie in one another; in the second micro-batch two processes have no token."""
    plans = [plan_of(lengths, 4, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = whole_step(MODEL, plans, 1, degrees)
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, MODEL, plans, 1))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""


@pytest.mark.parametrize("degrees", [NESTED[0], NESTED[1], NESTED[3], NESTED[-3], NESTED[-2], ZEROPP], ids=str)
def test_in_two_levels(ranks: LocalFleet, degrees: ShardDegrees) -> None:
    """Nodes of two: in every collective over both of several of a node's processes; ZeRO++'s in fewer bits."""
    plans = [plan_of(lengths, 4, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = in_two_levels(whole_step(MODEL, plans, 1, degrees), 2)
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, MODEL, plans, 1))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
