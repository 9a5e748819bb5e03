"""Feed-forwards of experts by chunks of memory, on four processes: exact, with the bytes of the step, and with as many
bytes in memory as its account says."""

from dataclasses import replace

import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import plan_of
from tests.runtime.handlers.test_expert_chunks import RANKS
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.command import judged_step
from zbench.describe.expert_schedule import TOKEN_CHOICE, ExpertChunks
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.runtime.processes.launch import LocalFleet
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

ALL = ExpertParallel(4, 1)  # GPUs hold all experts together
ONE = ExpertChunks()
SHARED = replace(EXPERTS, shared_experts=2)
DENSE_FIRST = replace(EXPERTS, shared_experts=1, dense_layers=1, dense_ffn_hidden=10)
WIDE = replace(EXPERTS, ffn_hidden=128)  # so that a layer's experts are what is fullest


def case_of(
    model: Model,
    mlp: int | str,
    lengths: list[int],
    level: str,
    how: ExpertParallel,
    chunks: ExpertChunks,
    zero: str = "1",
) -> tuple[StepCase, list[int]]:
    """A case on four GPUs, and the bytes of each at its fullest by the step's account."""
    model, plans, overlap = replace(model, mlp_chunk_tokens=mlp), [plan_of(lengths, 4, 4)], StepOverlap(experts=chunks)
    step = whole_step(model, plans, 1, zero, overlap, level, how)
    prove_step(step)
    memory = step_memory(StepParts(step, plans, replace(small(1, 4), model=model)))
    case = StepCase.of(step, model, plans, 1, experts=how.in_chunks(chunks), slices=overlap.token_slices)
    return case, memory.peak.tolist()


CUT = replace(ALL, node=2, tensor_parallel=2)
CASES = [
    ([50, 1, 13], EXPERTS, 3, "selective", ALL, ONE, "1"),
    ([7, 4], EXPERTS, 1, "full", replace(ALL, skew=3.0), ExpertChunks(2, 2), "3"),  # an expert without a token
    ([23], replace(EXPERTS, experts_per_token=1), 2, "chunked", replace(ALL, skew=50.0), ONE, "2"),  # all to one
    ([1], EXPERTS, 2, "full", ALL, ExpertChunks(2, 3), "1"),  # one token in all
    ([50, 1, 13], DENSE_FIRST, 5, "full", replace(ALL, skew=1.0), ExpertChunks(2, 3), "3"),
    ([50, 1, 13], SHARED, 4, "chunked", replace(ALL, skew=1.0, node=2, capacity=2.0), ExpertChunks(1, 2), "1"),
    ([50, 1, 13], SHARED, 7, "full", replace(CUT, skew=1.0), ExpertChunks(2, 1), "1"),
    ([50, 1, 13], EXPERTS, 3, "none", replace(ALL, skew=1.0, capacity=1.0, padded=True), ONE, "2"),
    ([50, 1, 13], EXPERTS, 4, "full", replace(ALL, routing=TOKEN_CHOICE), ExpertChunks(2, 3), "1"),
    ([50, 1, 13], SHARED, 3, "chunked", replace(CUT, routing=TOKEN_CHOICE), ONE, "3"),
    ([50, 1, 13], EXPERTS, 100, "chunked", ExpertParallel(1, 1), ONE, "none"),  # all at home
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("lengths", "model", "mlp", "level", "how", "chunks", "zero"), CASES)
def test_exact_with_the_bytes_of_the_step(
    ranks: LocalFleet,
    lengths: list[int],
    model: Model,
    mlp: int,
    level: str,
    how: ExpertParallel,
    chunks: ExpertChunks,
    zero: str,
) -> None:
    """Without parameters where a share is always 1, or there is one query in all, as in test_expert_chunks."""
    case, _ = case_of(model, mlp, lengths, level, how, chunks, zero)
    found = ranks.call("run", case)
    if lengths == [1] or model.experts_per_token == 1:
        found = [replace(one, parameters=0.0) for one in found]
    rows = chosen_rows(one.rows for one in found)
    assert judged_step(RANKS, found, stated_bytes(case.step, rows or None)).fault == ""


def test_two_runs_have_the_same_bits(ranks: LocalFleet) -> None:
    case, _ = case_of(EXPERTS, 5, [50, 1, 13], "full", ALL, ExpertChunks(2, 2))
    assert ranks.call("run", case) == ranks.call("run", case)


@pytest.mark.parametrize(
    ("level", "mlp", "how", "chunks"),
    [
        ("none", "whole", ALL, ONE),
        ("none", 8, ALL, ONE),
        ("chunked", 8, ALL, ONE),
        ("full", "whole", ALL, ONE),
        ("full", 8, ALL, ONE),
        ("full", 8, ALL, ExpertChunks(2, 2)),
        ("full", 16, replace(CUT, skew=1.0), ONE),
    ],
)
def test_held_as_accounted(
    ranks: LocalFleet, level: str, mlp: int | str, how: ExpertParallel, chunks: ExpertChunks
) -> None:
    case, said = case_of(WIDE, mlp, [257, 40, 100], level, how, chunks)
    held = [one.held for one in ranks.call("run", replace(case, weighed=True))]
    assert held == pytest.approx(said, rel=0.03)
