"""Rows of padding, seats and counted rows for experts that are cut over GPUs, and counted rows in chunks, on four
processes: exact, and every process sends what was chosen, to the byte."""

from dataclasses import replace

import pytest

from tests.helpers.steps import plan_of, plan_of_blocks
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.describe.expert_schedule import (
    AFTER_CHUNKS,
    DRAWN,
    EXPERT_CHOICE,
    TOGETHER_AT_ONCE,
    TOKEN_CHOICE,
    ExpertChunks,
    GradientPieces,
)
from zbench.describe.overlap import StepOverlap
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

RANKS = StepCombination(
    1, 4, 1, 1, 4, 1, "router", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words


def case_of(how: ExpertParallel, recompute: str, chunks: ExpertChunks = TOGETHER_AT_ONCE) -> StepCase:
    """Two micro-batches, the second of one token; some GPUs have several blocks."""
    model = replace(EXPERTS, gate="softmax_all", num_layers=2)
    plans = [plan_of_blocks([23, 1, 6], 4, 4), plan_of([1], 4, 4, first=3)]
    overlap = StepOverlap(experts=chunks)
    step = whole_step(model, plans, 1, "3" if recompute == "full" else "1", overlap, recompute, how)
    prove_step(step)
    return StepCase.of(step, model, plans, 1, 0, how.in_chunks(chunks), overlap.token_slices)


def fault_of(fleet: LocalFleet, case: StepCase) -> str:
    found = fleet.call("run", case)
    rows = chosen_rows(one.rows for one in found)
    return judged_step(RANKS, found, stated_bytes(case.step, rows or None)).fault


def cut(routing: str, capacity: float | None, padded: bool = True, gpus: int = 4) -> ExpertParallel:
    """gpus: that have all experts together, each cut over two."""
    return ExpertParallel(gpus, capacity=capacity, padded=padded, node=2, routing=routing, tensor_parallel=2)


@pytest.mark.parametrize(
    ("how", "recompute"),
    [
        (replace(cut(DRAWN, 1.25), skew=1.0), "full"),
        (cut(TOKEN_CHOICE, 0.3), "selective"),
        (cut(EXPERT_CHOICE, 1.0, gpus=2), "none"),
        (cut(TOKEN_CHOICE, None, False), "full"),
    ],
    ids=["padding", "few seats", "one group", "counted"],
)
def test_exact_with_the_bytes_that_were_chosen(ranks: LocalFleet, how: ExpertParallel, recompute: str) -> None:
    assert fault_of(ranks, case_of(how, recompute)) == ""


@pytest.mark.parametrize(
    ("how", "chunks", "recompute"),
    [
        (ExpertParallel(4, routing=TOKEN_CHOICE), ExpertChunks(2, 8, AFTER_CHUNKS), "selective"),
        (ExpertParallel(4, routing=TOKEN_CHOICE), ExpertChunks(2, 2, gradients=GradientPieces(2, 1, 0)), "none"),
        (cut(TOKEN_CHOICE, None, False), ExpertChunks(3, 1), "full"),
    ],
    ids=["some without a token", "gradients between", "cut"],
)
def test_counted_rows_in_chunks(ranks: LocalFleet, how: ExpertParallel, chunks: ExpertChunks, recompute: str) -> None:
    """Each chunk has its own numbers."""
    assert fault_of(ranks, case_of(how, recompute, chunks)) == ""
