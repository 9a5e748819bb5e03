"""Experts by chunks of the tokens: proven, exact, with the bytes of one chunk, in their order."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import ExpertChunks
from zbench.describe.overlap import StepOverlap
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step
from zbench.step.text import step_text

CHUNKS = {
    "2": ExpertChunks(2, 2),
    "4, 1": ExpertChunks(4, 1),
    "1, 8, gradients last": ExpertChunks(1, 8, "last"),
    "3, 2": ExpertChunks(3, 2),
}
ONE = replace(EXPERTS, experts_per_token=1)
# Lengths, the model, the skew of its routing: with a skew of 50 all tokens choose the same expert or two, others none.
TOKENS = {
    "uneven": ([40, 3], EXPERTS, 0.0),
    "an expert without a token": ([7, 4], EXPERTS, 3.0),
    "all tokens to one": ([23], ONE, 50.0),
    "one token": ([1], EXPERTS, 0.0),
}
QUEUE = QUEUES.index("experts")


def built(case: str, chunks: ExpertChunks, recompute: str = "none", zero: str = "1") -> tuple[Step, float, str]:
    """A step on four GPUs that hold all experts together, its error, and what the proof and the walk say of it."""
    lengths, model, skew = TOKENS[case]
    plans, how, overlap = [plan_of(lengths, 4, 4)], ExpertParallel(4, 1, skew), StepOverlap(experts=chunks)
    step = whole_step(model, plans, 1, zero, overlap, recompute, how)
    return step, execute(step, plans, 1, model, how, overlap.token_slices), fault(step) + unrolled_fault(step)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("case", TOKENS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_exact_and_as_many_bytes(chunks: str, case: str, recompute: str) -> None:
    step, error, told = built(case, CHUNKS[chunks], recompute)
    assert told == ""
    assert error < 1e-12
    assert stated_bytes(step) == stated_bytes(built(case, ExpertChunks(), recompute)[0])
    sizes = step.layouts[0].lists.offsets
    for template in step.templates:
        ops = template.operations
        lists = ops.list0[(ops.queue == QUEUE) | (ops.kind == COMPUTE)]
        assert (np.diff(sizes)[lists[lists >= 0]] > 0).all()  # nothing is of no token


@pytest.mark.parametrize("zero", ["none", "2", "3"])
@pytest.mark.parametrize("degree", [1, 2])
def test_exact_with_exchanges_micro_batches_and_stages(degree: int, zero: str) -> None:
    """In tensor-parallel groups slices of exchanges and chunks of experts end at parts that both have."""
    exchanges = ExchangeOverlap("sliced", 3) if degree > 1 else ExchangeOverlap()
    overlap = StepOverlap(exchanges=exchanges, experts=ExpertChunks(2, 4))
    model, how = replace(EXPERTS, num_kv_heads=4), ExpertParallel(2, 1, 1.0)
    plans = [plan_of([9, 7], 4 // degree, 4 // degree), plan_of([1], 4 // degree, 4 // degree, first=2)]
    stages = 2 if zero == "none" else 1
    step = whole_step(model, plans, degree, zero, overlap, "selective", how, stages)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how, overlap.token_slices) < 1e-12


@pytest.mark.parametrize("chunks", CHUNKS)
def test_mutants(chunks: str) -> None:
    """The proof and the unrolled walk agree, and what they accept comes out right."""
    overlap, how = StepOverlap(experts=CHUNKS[chunks]), ExpertParallel(2, 1, 1.0)
    plans = [plan_of([7, 4], 2, 4)]
    step = whole_step(EXPERTS, plans, 1, "3", overlap, "selective", how)

    def error(broken: Step) -> float:
        return execute(broken, plans, 1, EXPERTS, how, overlap.token_slices)

    assert rejected_mutants(step, list(CHUNKS).index(chunks), error=error) > 8


def lines_of(step: Step, template: str, names: tuple[str, ...]) -> str:
    text = step_text(step)
    begin = text.index(f"template {template}")
    lines = text[begin : text.index("play " if template == "backward" else "template ", begin + 1)].splitlines()
    found = [line.split(": ")[1] for line in lines if ":" in line and line.split(": ")[1].startswith(names)]
    return " ".join(line.split("[")[0].split(" ")[-1] for line in found if " at 1" in line or " 1 ->" in line)


def test_order_on_a_gpu() -> None:
    """All chunks leave before one comes home; with gradients last these are whole, behind the last message."""
    plans, how = [plan_of([8], 2, 4)], ExpertParallel(2, 1)
    names = ("send i", "send p", "send v", "send d", "compute z", "compute u", "compute v", "compute d")
    for weights in ("chunk", "last"):
        overlap = StepOverlap(experts=ExpertChunks(2, 2, weights))
        step = whole_step(EXPERTS, plans, 1, "1", overlap, "none", how)
        assert lines_of(step, "forward", names) == "i p i p z u v v z u v v"
        backward = lines_of(step, "backward", names)
        inner = "dp du ded dz di dez di dp" if weights == "chunk" else "dp du dz di di dp"
        late = "" if weights == "chunk" else " ded dez"
        assert backward.startswith(f"dv dv dv {inner} {inner}{late} dm dr")


def test_experts_on_every_gpu_send_nothing_and_stay_whole() -> None:
    plans = [plan_of([9, 7], 4, 4)]
    one, other = (
        whole_step(EXPERTS, plans, 1, "1", StepOverlap(experts=chunks), "none", ExpertParallel())
        for chunks in (ExpertChunks(), ExpertChunks(2, 2))
    )
    assert [len(a.operations) for a in one.templates] == [len(a.operations) for a in other.templates]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ((0,), "experts' chunks forward is 0; it takes a whole number from 1 to 64"),
        ((1, 2.5), "experts' chunks backward is 2.5; it takes a whole number from 1 to 64"),
        ((1, 1, "first"), "experts' chunks weights is 'first'; it takes chunk or last"),
    ],
)
def test_chunks_that_cannot_be(keys: tuple[int, int, str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        ExpertChunks(*keys)
