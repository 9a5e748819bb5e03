"""Feed-forwards by chunks of tokens beside exchanges of tensor-parallel groups: proven, exact, with as many bytes."""

from dataclasses import replace

import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of, rejected_mutants
from tests.step.test_chunks import made
from tests.step.test_exchanges import HOWS
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

FOUR = replace(MODEL, num_kv_heads=4)
LEVELS = ("none", "selective", "chunked", "full")


def chunked(mlp: int | str, loss: int | str = "whole", of: Model = FOUR) -> Model:
    return replace(of, mlp_chunk_tokens=mlp, loss_chunk_tokens=loss)


def built(model: Model, plans: list[Plan], how: ExchangeOverlap, level: str, degree: int = 4, zero: str = "1") -> Step:
    return whole_step(model, plans, degree, zero, StepOverlap(exchanges=how), level)


TOKENS = (1, 5, 23, 32)
COVER = [
    (how, tokens, LEVELS[(at + to) % 4], (3, 7, 16)[(at + 2 * to) % 3])
    for at, how in enumerate(HOWS)
    for to, tokens in enumerate(TOKENS)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("how", "tokens", "level", "mlp"), COVER)
def test_exact_and_as_many_bytes(how: str, tokens: int, level: str, mlp: int) -> None:
    """Bytes of a group are those of whole feed-forwards; a ring passes on what is others', so where GPUs of a group
    have different numbers of tokens each sends as much as its neighbours have."""
    model, plans = chunked(mlp, 5), [plan_of([tokens], 1, 1)]
    step = built(model, plans, HOWS[how], level)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 4, model, slices=HOWS[how].token_slices) < 1e-12
    whole = built(FOUR, plans, HOWS[how], "selective" if level == "chunked" else level)
    for queue in ("tensor_parallel", "gradients", "parameters"):
        sums = [
            [sum(one.get(queue, (0, 0))[way] for one in stated_bytes(of)) for way in (0, 1)] for of in (step, whole)
        ]
        assert sums[0] == sums[1], queue
    assert tokens != 32 or stated_bytes(step) == stated_bytes(whole)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", HOWS)
def test_several_groups_micro_batches_and_zero(how: str, level: str) -> None:
    """One group has one chunk, the other one several; the second micro-batch has GPUs without a token."""
    model, plans = chunked(4), [plan_of([9, 7, 2], 2, 2), plan_of([1], 2, 2, first=3)]
    step = built(model, plans, HOWS[how], level, 2, "3")
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 2, model, slices=HOWS[how].token_slices) < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
def test_experts_some_of_them_shared(how: str) -> None:
    """Shared experts are a segment by chunks; what goes to experts is by chunks after one another."""
    model = chunked(3, of=replace(EXPERTS, num_kv_heads=4, shared_experts=1))
    plans = [plan_of([9, 7], 2, 2), plan_of([1], 2, 2, first=2)]
    experts = ExpertParallel(2, 0, 9.0)
    overlap = StepOverlap(exchanges=HOWS[how])
    step = whole_step(model, plans, 2, "1", overlap, "full", experts)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 2, model, experts, HOWS[how].token_slices) < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
def test_mutants(how: str) -> None:
    model, plans = chunked(5), [plan_of([7, 4], 2, 2)]
    step = built(model, plans, HOWS[how], "chunked", 2, "3")

    def error(broken: Step) -> float:
        return execute(broken, plans, 2, model, slices=HOWS[how].token_slices)

    assert rejected_mutants(step, list(HOWS).index(how), 36, error) > 9


FORWARD = {
    "commfuse": "zuzubb zuzubb",  # own tokens come first and their sums last, of each chunk
    "async_tp": "zzubb zzubb",
    "sliced 2": "zubzub zubzub",
}


@pytest.mark.parametrize("how", FORWARD)
def test_one_chunk_after_another(how: str) -> None:
    """Of a group's 16 tokens at most 8 at a time; gates and products of a chunk are read before the next one's."""
    step = built(chunked(8), [plan_of([16], 1, 2)], HOWS[how], "none", 2)
    names = [(name, size) for name, size in made(step, "forward") if name in "zub"]
    assert "".join(name for name, _ in names) == FORWARD[how].replace(" ", "")
    half = len(names) // 2
    assert [sum(size for name, size in names[:half] if name == one) for one in "zub"] == [8, 8, 8]


@pytest.mark.parametrize("how", ["commfuse", "async_tp", "sliced 2"])
def test_gradients_of_a_chunk_s_weights_before_the_next(how: str) -> None:
    step = built(chunked(8), [plan_of([16], 1, 2)], HOWS[how], "chunked", 2)
    names = [name for name, _ in made(step, "backward")]
    sums = [at for at, name in enumerate(names) if name == "dwz"]
    assert len(sums) == 2
    assert "z~" in names[: sums[0]]
    assert "z~" in names[sums[0] : sums[1]]


def test_selective_makes_again_before() -> None:
    """As Megatron-Core checkpoints the module: all of it is made again before any gradient."""
    step = built(chunked(8), [plan_of([16], 1, 2)], HOWS["commfuse"], "selective", 2)
    names = [name for name, _ in made(step, "backward")]
    assert max(at for at, name in enumerate(names) if name == "z~") < names.index("du")
