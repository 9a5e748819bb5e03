"""The feed-forward and the loss by chunks of tokens, on four processes: exact, and with as many bytes in memory as the
account of the step says."""

from dataclasses import replace

import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import plan_of
from tests.runtime.handlers.test_exchanges import GROUP
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.correctness.steps.command import judged_step
from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.describe.model import Model
from zbench.runtime.processes.launch import LocalFleet
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step

FOUR = replace(MODEL, num_kv_heads=4, vocab=20)
WIDE = replace(FOUR, ffn_hidden=256)  # so that a layer's feed-forward is what is fullest


def case_of(model: Model, lengths: list[int], degree: int, level: str, zero: str = "1") -> tuple[StepCase, list[int]]:
    """A case on four GPUs, and the bytes of each at its fullest by the step's account."""
    plans = [plan_of(lengths, 4 // degree, 4 // degree, mask=model.mask)]
    step = whole_step(model, plans, degree, zero, 1, level)
    cost = replace(small(1, 4), model=model)
    memory = step_memory(StepParts(step, plans, cost))
    return StepCase.of(step, model, plans, degree), memory.peak.tolist()


CASES = [
    (1, "chunked", 3, 5),
    (1, "full", 4, "auto"),
    (2, "chunked", 7, 3),
    (4, "selective", 5, 2),
    (1, "none", 2, 100),
]
FEW = [([2, 1], [23])[at % 2] for at in range(len(CASES))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("lengths", "degree", "level", "mlp", "loss"),
    [*(([50, 1, 13], *case) for case in CASES), *((few, *case) for few, case in zip(FEW, CASES, strict=True))],
    ids=str,
)
def test_exact(ranks: LocalFleet, lengths: list[int], degree: int, level: str, mlp: int, loss: int | str) -> None:
    """Odd lengths, chunks that do not divide them, and processes without a token."""
    model = replace(FOUR, mlp_chunk_tokens=mlp, loss_chunk_tokens=loss)
    case, _ = case_of(model, lengths, degree, level)
    assert judged_step(GROUP, ranks.call("run", case), stated_bytes(case.step)).fault == ""


@pytest.mark.parametrize(("mask", "loss"), [(FULL, 3), (Mask(window=5), "auto"), (Mask(window=5), 3)], ids=str)
def test_exact_with_any_mask(ranks: LocalFleet, mask: Mask, loss: int | str) -> None:
    """Attention alone knows what a query sees, and chunks of tokens leave attention whole."""
    model = replace(FOUR, mask=mask, mlp_chunk_tokens=3, loss_chunk_tokens=loss)
    case, _ = case_of(model, [50, 1, 13], 1, "chunked")
    found = ranks.call("run", case)
    assert judged_step(GROUP, found, stated_bytes(case.step)).fault == ""
    causal, _ = case_of(replace(model, mask=CAUSAL), [50, 1, 13], 1, "chunked")
    assert ranks.call("run", causal) != found


@pytest.mark.parametrize(
    ("degree", "level", "mlp"),
    [
        (1, "none", "whole"),
        (1, "selective", "whole"),
        (1, "chunked", 8),
        (1, "full", "whole"),
        (1, "full", 8),
        (2, "chunked", 8),
    ],
)
def test_held_as_accounted(ranks: LocalFleet, degree: int, level: str, mlp: int | str) -> None:
    model = replace(WIDE, mlp_chunk_tokens=mlp)
    case, said = case_of(model, [257, 40, 100], degree, level)
    assert [one.held for one in ranks.call("run", replace(case, weighed=True))] == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize(("degree", "loss"), [(1, "whole"), (1, "auto"), (1, 50), (2, "whole"), (4, "auto")])
def test_logits_held_as_accounted(ranks: LocalFleet, degree: int, loss: int | str) -> None:
    """A head that is fullest, of 397 tokens and 2,000 words."""
    model = replace(FOUR, vocab=2000, loss_chunk_tokens=loss)
    case, said = case_of(model, [257, 40, 100], degree, "full")
    found = [one.held for one in ranks.call("run", replace(case, weighed=True))]
    assert found == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize("zero", ["1", "2", "3"])
def test_one_group_holds_a_slice_of_a_gradient_each(ranks: LocalFleet, zero: str) -> None:
    """Four GPUs that are one tensor-parallel group, and a table that is most of the model: nothing of it is reduced."""
    case, said = case_of(replace(FOUR, vocab=4000, loss_chunk_tokens=3), [57, 40], 4, "none", zero)
    assert [one.held for one in ranks.call("run", replace(case, weighed=True))] == pytest.approx(said, rel=0.03)
