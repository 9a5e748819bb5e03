"""Whole steps under windows on four processes: several segments of one attend may see the same key."""

from dataclasses import replace

import pytest

from tests.runtime.handlers.test_chunks import FOUR, case_of
from tests.runtime.handlers.test_exchanges import GROUP
from zbench.correctness.steps.command import judged_step
from zbench.describe.mask import Mask
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [2, 5, 8, 20])
@pytest.mark.parametrize("lengths", [[13], [9], [7, 16], [50, 1, 14]], ids=str)
def test_exact_under_a_window(ranks: LocalFleet, lengths: list[int], window: int) -> None:
    """Sequences that do not divide by a ring's pieces, and windows shorter and longer than a piece. Not of one token:
    gradients of queries are 0 there, and the optimizer makes steps of what rounding leaves of them."""
    case, _ = case_of(replace(FOUR, mask=Mask(window=window)), lengths, 1, "none")
    assert judged_step(GROUP, ranks.call("run", case), stated_bytes(case.step)).fault == ""
