"""Experts with a capacity: exact where tokens are dropped and rows padded, as many rows as were promised."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import ExpertChunks
from zbench.describe.overlap import StepOverlap
from zbench.simulated.drawn_rows import expert_rows
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.routing import ExpertParallel, Routing

# Ranks, tensor-parallel degree, ZeRO's stage, recomputation, chunks; shared experts in the last.
CASES = ((4, 1, "3", "none", ExpertChunks()), (4, 1, "2", "full", ExpertChunks(2, 3)),
         (2, 2, "1", "selective", ExpertChunks(1, 2)))  # fmt: skip


def drawn(lengths: list[int], ranks: int, how: ExpertParallel) -> tuple[Routing, PlanParts]:
    parts = PlanParts(plan_of(lengths, ranks, 4), EXPERTS, 1, how)
    assert parts.routing is not None
    return parts.routing, parts


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("capacity", [0.01, 0.5, 1.5])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int, capacity: float, padded: bool) -> None:
    """With the smallest capacity most tokens go nowhere, and some parts altogether."""
    ranks, degree, zero, recompute, chunks = CASES[number]
    model = replace(EXPERTS, shared_experts=2 * (number == 2))
    plans = [plan_of([9, 4], ranks, 4 // degree), plan_of([1], ranks, 4 // degree, first=2)]
    how, overlap = ExpertParallel(4, 1, 1.0, capacity=capacity, padded=padded), StepOverlap(experts=chunks)
    step = whole_step(model, plans, degree, zero, overlap, recompute, how)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how, overlap.token_slices) < 1e-12


@pytest.mark.parametrize("padded", [False, True])
def test_mutants(padded: bool) -> None:
    plans, how = [plan_of([7, 4], 2, 4)], ExpertParallel(2, 1, 1.0, capacity=0.5, padded=padded)
    step = whole_step(EXPERTS, plans, 1, "3", 1, "selective", how)
    assert rejected_mutants(step, padded) > 8


def test_an_expert_takes_the_first_tokens_of_each_gpu() -> None:
    """Counted one by one: of each GPU's tokens, in order, until its room is full."""
    lengths, ranks = [37, 12], 4
    free, parts = drawn(lengths, ranks, ExpertParallel(2, 5, 1.0))
    limited, _ = drawn(lengths, ranks, ExpertParallel(2, 5, 1.0, capacity=0.75))
    home = np.repeat(parts.home, parts.sizes).tolist()
    room = {gpu: -(-3 * home.count(gpu) * 2 // 16) for gpu in set(home)}  # 0.75 of tokens x 2 choices / 4 experts
    taken: dict[tuple[int, int], int] = {}
    for gpu, wanted, found in zip(home, free.chosen.tolist(), limited.chosen.tolist(), strict=True):
        for expert, got in zip(wanted, found, strict=True):
            place = taken[gpu, expert] = taken.get((gpu, expert), 0) + 1
            assert got == (expert if place <= room[gpu] else ~expert)
    assert 0 < limited.dropped < limited.chosen.size / 2
    assert limited.to_experts.sum() == limited.chosen.size - limited.dropped


def test_padding_fills_every_expert_to_the_same_rows() -> None:
    padded, parts = drawn([37, 12], 4, ExpertParallel(2, 5, 1.0, capacity=1.25, padded=True))
    for gpu in range(4):
        mine = parts.own[gpu]
        rows = -(-5 * int(parts.sizes[mine].sum()) * 2 // 16)
        assert padded.to_experts[mine].sum(axis=0).tolist() == [rows] * 4
        assert padded.to_slices[mine].sum(axis=0).tolist() == [2 * rows] * 2


def test_a_large_capacity_drops_nothing_and_is_the_same_step() -> None:
    plans = [plan_of([9, 4], 4, 4)]
    free, limited = (
        whole_step(EXPERTS, plans, 1, "1", 1, "none", ExpertParallel(4, 1, 1.0, capacity=capacity))
        for capacity in (None, 4.0)
    )
    assert stated_bytes(free) == stated_bytes(limited)


def test_what_was_dropped_and_padded_is_told() -> None:
    batch, plans = Batch(np.array([37, 12]), 0, 0), [plan_of([37, 12], 4, 4)]
    steps = ProvenSteps("simulated", replace(EXPERTS, sharding="zero1"), 4, experts=ExpertParallel(4, 0, 1.0))
    assert expert_rows(steps, batch, [plans]) == {}
    limited = replace(steps, experts=replace(steps.experts, capacity=0.5, padded=True))
    found, (parts,) = expert_rows(limited, batch, [plans]), limited.parts(batch, plans)
    assert parts.routing is not None
    chosen, rows = parts.routing.chosen, int(parts.routing.to_experts.sum())
    assert found["dropped"] == (chosen < 0).sum() / chosen.size
    assert found["padded"] == pytest.approx(1 - (chosen >= 0).sum() / rows)
    assert 0 < found["padded"] < found["dropped"] < 1
    unpadded = replace(limited, experts=replace(limited.experts, padded=False))
    assert expert_rows(unpadded, batch, [plans])["padded"] == 0
