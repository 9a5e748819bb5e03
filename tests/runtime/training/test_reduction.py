"""Gradients summed in two levels: every rank has the sum, bit for bit, and every rank sends its share across nodes."""

import pytest
import torch

from tests.runtime.summing import NODES, PER_NODE, SIZES, piece
from zbench.runtime.processes.launch import LocalFleet

RANKS = NODES * PER_NODE


def test_every_rank_has_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with LocalFleet(RANKS, "tests.runtime.summing:Summing", timeout=60) as fleet:
        found = fleet.call("rounds")
    for at, size in enumerate(SIZES):
        total = torch.stack([piece(rank, size) for rank in range(RANKS)]).sum(0)
        for rounds in found:
            assert all(torch.equal(pieces[at], found[0][0][at]) for pieces in rounds)
        torch.testing.assert_close(found[0][0][at], total, rtol=1e-14, atol=0)
