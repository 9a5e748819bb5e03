"""Tokens whose homes were changed after planning, on two and four processes: exact, with the bytes of the step."""

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.passes import reverse
from zbench.passes.homes import with_attention_homes, with_even_homes
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring
from zbench.plans.plan import Plan
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

RANKS = StepCombination(
    1, 4, 1, 1, 4, 1, "even", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words


def even_plan(ranks: int) -> Plan:
    """A ring beside sequences that rank 0 attends with, of which all ranks are home."""
    builder = Builder(np.array([29, 13, 7, 1]), ranks, 4)
    ring(builder, np.array([0]), np.array([0]), np.arange(ranks)[None])
    local(builder, np.arange(1, 4), np.zeros(3, np.int64))
    return with_even_homes(reverse(builder.build(), "carry"), small(1, ranks), 0)


@pytest.mark.parametrize("homes", ["even", "attention"])
@pytest.mark.parametrize("processes", [2, 4])
def test_exact_with_the_bytes_of_the_step(fleet: LocalFleet, ranks: LocalFleet, processes: int, homes: str) -> None:
    even = even_plan(processes)
    plan = with_attention_homes(even) if homes == "attention" else even
    assert (plan is even) == (homes == "even")
    how = ExpertParallel(processes, 1, 1.0)
    step = whole_step(EXPERTS, [plan], 1, "1", 1, "full", how)
    prove_step(step)
    case = StepCase.of(step, EXPERTS, [plan], 1, experts=how)
    found = (fleet if processes == 2 else ranks).call("run", case)
    assert judged_step(RANKS, found, stated_bytes(step)).fault == ""
