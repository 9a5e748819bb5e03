"""Experts that every token passes: exact, cut by tensor parallelism, and beside what goes to the other experts."""

from dataclasses import replace

import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from tests.step.test_expert_chunks import lines_of
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import ExpertChunks
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.weights import weights_of_layers
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

SHARED = replace(EXPERTS, shared_experts=2)
# Ranks, tensor-parallel degree, expert-parallel degree, stages, ZeRO's stage, recomputation, what goes beside what.
CASES = (
    (2, 1, 2, 1, "3", "selective", StepOverlap()),
    (4, 1, 4, 1, "2", "full", StepOverlap(experts=ExpertChunks(2, 3))),
    (2, 2, 4, 1, "1", "elementwise", StepOverlap(1, LAYER, ExchangeOverlap("sliced", 4), experts=ExpertChunks(4, 2))),
    (2, 2, 2, 2, "none", "none", StepOverlap(experts=ExpertChunks(2, 2, "last"))),
)  # fmt: skip


def built(number: int, batches: tuple[list[int], ...] = ([9, 4], [1])) -> tuple[Step, float]:
    """A step, and its error."""
    ranks, degree, experts, stages, zero, recompute, overlap = CASES[number]
    plans = [plan_of(lengths, ranks, 4 // degree, first=3 * at) for at, lengths in enumerate(batches)]
    how = ExpertParallel(experts, 1, 1.0)
    step = whole_step(SHARED, plans, degree, zero, overlap, recompute, how, stages)
    return step, execute(step, plans, degree, SHARED, how, overlap.token_slices)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, error = built(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12


@pytest.mark.parametrize("number", [0, 2])
def test_mutants(number: int) -> None:
    """The proof and the unrolled walk agree."""
    step, _ = built(number, ([5, 4],))
    assert rejected_mutants(step, number) > 8


def test_parameters_have_the_bytes_of_the_model_and_steps_read_back() -> None:
    step, _ = built(0)
    layout = step.layouts[0]
    names = weights_of_layers(SHARED)
    sizes = [int(layout.tensors[layout.number[name]].cell_bytes(layout.index).sum()) for name in names]
    assert sum(sizes) == SHARED.layer_params * SHARED.element_bytes
    assert is_read_as_written(step)


def test_the_others_exchange_what_they_do_without_them() -> None:
    plans, how = [plan_of([9, 4], 4, 4)], ExpertParallel(4, 1)
    sent = [
        [one["experts"] for one in stated_bytes(whole_step(model, plans, 1, "1", 1, "none", how))]
        for model in (EXPERTS, SHARED)
    ]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("chunks", [ExpertChunks(), ExpertChunks(2, 2)], ids=str)
def test_they_are_computed_while_tokens_are_on_their_way(chunks: ExpertChunks) -> None:
    """Gate and up after what goes out, and the way down after what comes home."""
    plans, how = [plan_of([8], 2, 4)], ExpertParallel(2, 1)
    step = whole_step(SHARED, plans, 1, "1", StepOverlap(experts=chunks), "none", how)
    forward = lines_of(step, "forward", ("send i", "send v", "compute z", "compute u", "compute b"))
    backward = lines_of(step, "backward", ("send d", "compute du", "compute dz", "compute dwzs", "compute dm"))
    if chunks == ExpertChunks():
        assert forward == "i zs us z u v bs b"
        assert backward == "dv dus du dz di dp dzs dm dwzs dm.2 dm.3"
    else:
        assert forward == "i i zs us z u v z u v bs b"
        assert backward == "dv dv dus du dz di dp du dz di dp dzs dm dwzs dm.2 dm.3"
