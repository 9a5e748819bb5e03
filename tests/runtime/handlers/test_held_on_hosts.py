"""Processes have as many bytes at their fullest as the account of the step says, with inputs, activations or optimizer
state on hosts and any system's plans (the table of docs/memory.md: python -m tests.bench.held)."""

from itertools import product

import pytest

from tests.bench.held import CHOICES, SYSTEMS, held_case, plans_of
from zbench.correctness.steps.combination import MODEL
from zbench.runtime.processes.launch import LocalFleet


@pytest.mark.parametrize(("system", "choice"), list(product(SYSTEMS, CHOICES)))
def test_held_as_accounted(ranks: LocalFleet, system: str, choice: str) -> None:
    """Of the fullest process to 3 %, and of none more than that; one with few tokens may have less."""
    of = held_case(system, CHOICES[choice])
    held, most = [one.held for one in ranks.call("run", of.case)], max(of.accounted)
    assert all(have <= said + 0.03 * most for have, said in zip(held, of.accounted, strict=True))
    assert max(held) + unread_bytes(system, choice) == pytest.approx(most, rel=0.03)


def unread_bytes(system: str, choice: str) -> int:
    """Returns the bytes of a layer's q, keys and values that are kept and accounted for, and that a process lets go of
    as its backward begins, since nothing reads them: of own tokens, with heads that all went to three other GPUs."""
    if system != "ulysses" or CHOICES[choice].recompute == "full":
        return 0
    tokens = int(plans_of(system)[0].tokens_per_rank.max())
    return tokens * 3 * MODEL.num_heads * MODEL.head_dim * MODEL.element_bytes * 3 // 4
