"""Exchanges of tensor-parallel groups beside matmuls, on four processes: exact, with the bytes that the step says."""

from dataclasses import replace

import pytest

from tests.helpers.steps import plan_of
from tests.step.test_exchanges import HOWS
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.combination import MODEL, StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.overlap import StepOverlap
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step

FOUR = replace(MODEL, num_kv_heads=4, vocab=20)
GROUP = StepCombination(
    4, 1, 1, 1, 0, 1, "even", 1, 1, "commfuse", "own", "1", "none", 1, "carry", "uneven"
)  # in words


def case_of(how: ExchangeOverlap, lengths: list[int], recompute: str = "none") -> StepCase:
    plans = [plan_of(lengths, 1, 1)]
    step = whole_step(FOUR, plans, 4, "1", StepOverlap(exchanges=how), recompute)
    prove_step(step)
    return StepCase.of(step, FOUR, plans, 4, slices=how.token_slices)


FEW = ([1], [2], [5], [23])
COVER = [(how, FEW[(number + turn) % 4]) for number, how in enumerate(HOWS) for turn in (0, 1)]  # each with two of them


@pytest.mark.parametrize(("how", "lengths"), [*COVER, *((how, [50, 1, 13]) for how in HOWS)], ids=str)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, how: str, lengths: list[int]) -> None:
    """Packed sequences, and fewer tokens than processes. The only query of a step has no gradient but rounding errors,
    which Adam divides by their size, so that parameters are no number to compare then."""
    case = case_of(HOWS[how], lengths, "selective" if len(lengths) > 1 else "none")
    found, stated = ranks.call("run", case), stated_bytes(case.step)
    if lengths == [1]:
        found = [replace(one, parameters=0.0) for one in found]
    assert judged_step(GROUP, found, stated).fault == ""


@pytest.mark.parametrize("how", HOWS)
def test_two_runs_have_the_same_bits(ranks: LocalFleet, how: str) -> None:
    """Sums are added in the step's order, not in that of arrival."""
    case = case_of(HOWS[how], [50, 1, 13])
    assert ranks.call("run", case) == ranks.call("run", case)
