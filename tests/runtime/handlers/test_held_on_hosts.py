"""Processes have as many bytes at their fullest as the account of the step says, with inputs, activations or optimizer
state on hosts and any system's plans (the table of docs/memory/measured.md: python -m tests.bench.held)."""

from itertools import product

import pytest

from tests.bench.held import CHOICES, SYSTEMS, held_case
from zbench.runtime.processes.launch import LocalFleet


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("system", "choice"), list(product(SYSTEMS, CHOICES)))
def test_held_as_accounted(ranks: LocalFleet, system: str, choice: str) -> None:
    """Of the fullest process to 3 %, and of none more than that; one with few tokens may have less."""
    of = held_case(system, CHOICES[choice])
    held, most = [one.held for one in ranks.call("run", of.case)], max(of.accounted)
    assert all(have <= said + 0.03 * most for have, said in zip(held, of.accounted, strict=True))
    assert max(held) == pytest.approx(most, rel=0.03)
