"""Tied embeddings in pipelines side by side, of which some have several stages, on four processes: exact, with the
bytes that the step says."""

from dataclasses import replace

import pytest

from zbench.correctness.steps.command import judged_step
from zbench.correctness.steps.pipelines import PipelineCombination
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step

ONE = PipelineCombination(((1, 2), (1, 1)), "tied", "1", "none", 2, "uneven")


@pytest.mark.parametrize(
    "case",
    [
        *(replace(ONE, zero=zero) for zero in ("none", "1", "3")),
        replace(ONE, shapes=((1, 1), (1, 1), (1, 2)), micro_batches=3),
        replace(ONE, shapes=((2, 1), (1, 2)), zero="none", recompute="full"),
        replace(ONE, shapes=((1, 3), (1, 1)), micro_batches=1),
        replace(ONE, shapes=((2, 2),)),
        replace(ONE, shapes=((1, 2), (1, 2)), zero="none", micro_batches=3),
    ],
    ids=str,
)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, case: PipelineCombination) -> None:
    step = case.case(0)
    prove_step(step.step)
    found = ranks.call("run", step)
    assert judged_step(case, found, stated_bytes(step.step)).fault == ""
