"""Optimizer state in host memory on four processes: exact, with the bytes that the step says."""

from dataclasses import replace

import pytest

from tests.helpers.steps import plan_of
from tests.runtime.handlers.test_degrees import FOUR
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.combination import MODEL
from zbench.correctness.steps.command import judged_step
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.proof.prove import prove_step


@pytest.mark.parametrize(
    ("zero", "degree", "level", "offload", "layers"),
    [
        ("2", 2, "selective", "optimizer", (0, 0)),
        ("3", 1, "full", "inputs_and_optimizer", (2, 2)),
        ("3", 1, "full", "inputs_and_optimizer", (1, 2)),  # of the first micro-batch the first layer's alone
        ("1", 2, "full", "inputs", (1, 1)),
    ],
)
def test_exact_with_the_bytes_of_the_step(
    ranks: LocalFleet, zero: str, degree: int, level: str, offload: str, layers: tuple[int, int]
) -> None:
    """On two nodes; in the second micro-batch some processes have no token."""
    plans = [plan_of(lengths, 4 // degree, 4 // degree, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    model = replace(MODEL, offload=offload)
    step = with_host_memory(whole_step(model, plans, degree, zero, recompute=level), model, 2, layers)
    prove_step(step)
    found = ranks.call("run", StepCase.of(step, MODEL, plans, degree))
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert all(one["host"] != (0, 0) for one in stated_bytes(step))
