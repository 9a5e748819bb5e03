"""Tied embeddings in stages on four processes: exact, with the bytes that the step says."""

from dataclasses import replace

import pytest

from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.proof.prove import prove_step

ONE = StepCombination(1, 1, 2, 1, 0, 1, "even", 2, 1, "whole", "tied", "3", 0, "none", 2, "keep", "uneven")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        *(replace(ONE, zero=zero) for zero in ("none", "1", "2", "pairs", "zeropp", "levels")),
        replace(ONE, tensor_parallel=2, data_parallel=1, exchanges="by_area", recompute="none, activations on hosts"),
        replace(ONE, data_parallel=1, stages=3, zero="2", recompute="full, inputs on hosts", micro_batches=3),
        replace(ONE, expert_parallel=2, routing="counted", recompute="chunked"),
        replace(ONE, expert_parallel=2, routing="dropped", zero="pairs", chunk_tokens=3),
    ],
    ids=str,
)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, case: StepCombination) -> None:
    step = case.case(0)
    prove_step(step.step)
    found = ranks.call("run", step)
    stated = stated_bytes(step.step, chosen_rows(rank.rows for rank in found) or None)
    assert judged_step(case, found, stated).fault == ""
