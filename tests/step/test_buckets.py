"""Steps in which gradients of several layers are reduced together, or all in the end, and parameters gathered first."""

from dataclasses import replace
from functools import cache

import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.model import Model
from zbench.describe.overlap import ALL, BACKWARD, END, StepOverlap
from zbench.plans.plan import Plan
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.routing import ExpertParallel
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

FIVE, ROUTED = replace(MODEL, num_layers=5), replace(EXPERTS, num_layers=3)
TIED = replace(FIVE, tied_embeddings=True)
# Model, context-, tensor- and expert-parallel degrees, stage of ZeRO, window, layers of a bucket (END: all), stages,
# lengths by micro-batch; a sequence of a token leaves ranks without any.
CASES = (
    (FIVE, 4, 1, 1, "3", 1, 2, 1, ([7, 5],)), (FIVE, 2, 2, 1, "3", 2, END, 1, ([5, 3], [1])),
    (FIVE, 2, 1, 1, "2", ALL, 3, 2, ([5, 3], [1], [4])), (FIVE, 3, 1, 1, "1", ALL, END, 2, ([1], [6, 2])),
    (TIED, 2, 1, 1, "1", ALL, END, 1, ([5, 3], [1])), (TIED, 2, 2, 1, "3", 0, 2, 1, ([1], [4, 3])),
    (FIVE, 2, 1, 1, "none", 1, END, 1, ([5, 3], [1])), (FIVE, 1, 1, 1, "3", 1, 4, 1, ([5],)),
    (ROUTED, 4, 1, 4, "2", ALL, 2, 1, ([1], [6, 2])), (ROUTED, 4, 1, 2, "3", 1, END, 1, ([1], [3])),
    (ROUTED, 2, 2, 4, "none", 1, 2, 1, ([5, 4], [2])), (FIVE, 2, 1, 1, "2", 1, 2, 3, ([7, 3], [1])),
    (FIVE, 2, 1, 1, "3", BACKWARD, 2, 1, ([5, 3], [1])), (FIVE, 2, 1, 1, "1", BACKWARD, 2, 2, ([5, 3], [1])),
)  # fmt: skip


def experts_of(number: int) -> ExpertParallel:
    return ExpertParallel(CASES[number][3], 1, 9.0 if CASES[number][0] is ROUTED else 0.0)


def bucket_of(model: Model, degree: int, experts: int, layers: int | str) -> float | str:
    """The size of a bucket that has room for so many layers and a half."""
    each = ShardedParameters(model, 4, degree, "none", StepOverlap(), experts).layer_elements
    return layers if isinstance(layers, str) else layers * each + each // 2


@cache
def case(number: int) -> tuple[Step, Step, list[Plan]]:
    """The step, and the same with a reduction a layer, parameters a layer ahead."""
    model, ranks, degree, experts, zero, window, layers, stages, batches = CASES[number]
    plans: list[Plan] = []
    for lengths in batches:
        plans.append(plan_of(lengths, ranks, 4 // degree, first=sum(len(plan.lengths) for plan in plans)))
    overlap, how = StepOverlap(window, bucket_of(model, degree, experts, layers)), experts_of(number)
    one, other = (
        whole_step(model, plans, degree, zero, given, "none", how, stages) for given in (overlap, StepOverlap())
    )
    return one, other, plans


def error(number: int, step: Step) -> float:
    return execute(step, case(number)[2], CASES[number][2], CASES[number][0], experts_of(number))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact_and_with_the_bytes_of_a_reduction_a_layer(number: int) -> None:
    step, usual, _ = case(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error(number, step) < 1e-12
    assert stated_bytes(step) == stated_bytes(usual)
    assert is_read_as_written(step)


@pytest.mark.parametrize("number", [0, 3, 8])
def test_mutants(number: int) -> None:
    """The proof and the unrolled walk agree, and what they accept comes out right."""
    assert rejected_mutants(case(number)[0], number, 16, lambda broken: error(number, broken)) > 6


@pytest.mark.parametrize("number", [0, 3, 8])
def test_instances_that_are_left_out_or_exchanged(number: int) -> None:
    """Without contracts in between one is right that is refused: a micro-batch's gradients are reduced with the next
    one's."""
    step, rejected, right = case(number)[0], 0, 0
    for at, one in enumerate(step.order[1:], start=1):
        before, after = step.order[: at - 1], step.order[at + 1 :]
        for order in ((*step.order[:at], *after), (*before, one, step.order[at - 1], *after)):
            broken = replace(step, order=order)
            told, unrolled = fault(broken), unrolled_fault(broken)
            assert told or not unrolled
            assert unrolled or error(number, broken) < 1e-12
            rejected += bool(told)
            right += bool(told) and not unrolled
    assert rejected > len(step.order)
    assert (right > 0) == (number == 8)


@pytest.mark.parametrize("number", [0, 6])
def test_in_two_levels(number: int) -> None:
    step, _, plans = case(number)
    both = in_two_levels(step, 2)
    assert (fault(both), unrolled_fault(both)) == ("", "")
    assert execute(both, plans, 1, CASES[number][0]) < 1e-12


def played(step: Step) -> list[tuple[str, int, int]]:
    return [(step.templates[one.template].name, one.layer, one.repeats) for one in step.order]


def test_a_bucket_is_instances_after_the_backward_of_its_last_layer_whose_reduction_goes_first() -> None:
    order = played(case(0)[0])
    begin = order.index(("backward", 4, 2))
    assert order[begin : begin + 7] == [
        ("backward", 4, 2), ("reduce", 3, 2), ("backward", 2, 2), ("reduce", 1, 2), ("backward", 0, 1),
        ("reduce", 0, 1), ("embedding_backward", 0, 1),
    ]  # fmt: skip
    assert {one.stride for one in case(0)[0].order if case(0)[0].templates[one.template].name == "reduce"} == {1}


def test_in_the_end_nothing_is_computed_before_the_update_and_at_first_nothing_but_gathered() -> None:
    """ZeRO-1, two stages: only the last micro-batch reduces; the head's parameters are gathered first and its gradients
    are reduced last."""
    order = played(case(3)[0])
    assert order[:4] == [("gather_head", 5, 1), ("gather", 1, 2), ("gather", 4, 3), ("embedding.0", 0, 1)]
    assert order[-7:-4] == [("backward.1", 1, 2), ("embedding_backward.1", 0, 1), ("reduce.1", 0, 2)]
    stage = order.index(("backward.1", 4, 3))
    assert order[stage + 1 : stage + 3] == [("reduce.1", 2, 3), ("reduce_head.1", 5, 1)]
    assert not any(name.startswith("reduce") and name.endswith(".0") for name, *_ in order)
    for one in case(3)[0].templates:
        kinds = set(one.operations.kind.tolist())
        of_gradients = one.operations.queue == 4
        if one.name.startswith(("backward", "head")) and CASES[3][1] > 1:
            reduced = one.operations.kind[of_gradients] == REDUCE
            assert reduced.sum() == (1 if one.name.startswith("head") else 0)  # the loss
        if one.name.startswith("reduce"):
            assert COMPUTE not in kinds


def test_the_proof_costs_what_it_costs_with_a_reduction_a_layer() -> None:
    """It is of templates: with three buckets, one, and a hundred layers it touches as many items."""
    plans = case(0)[2]
    touches = set()
    for layers, model in ((2, FIVE), (5, FIVE), (END, FIVE), (10, replace(FIVE, num_layers=100))):
        step = whole_step(model, plans, 1, "3", StepOverlap(1, bucket_of(model, 1, 1, layers)))
        touches.add(prove_step(step).touches)
    usual = prove_step(case(0)[1]).touches
    assert max(touches) == pytest.approx(usual, rel=0.05)


def test_runs_are_of_a_template_whatever_stands_between() -> None:
    step, usual, _ = case(0)
    backward = [run for run, one in zip(step.runs, played(step), strict=True) if one[0] == "backward"]
    assert (len(backward), len(set(backward))) == (3, 1)
    assert (step.turn_layers, usual.turn_layers) == (2, 1)
    assert len(set(usual.runs)) == len(usual.order)
    twice = replace(usual, order=(*usual.order, usual.order[0]))
    assert len(set(twice.runs)) == len(twice.order)  # the same layer again is another run


@pytest.mark.parametrize(
    ("overlap", "zero", "told"),
    [
        (StepOverlap(ALL), "3", "sharding.window is all; with ZeRO-3 .*, so it takes 0 to 5 layers"),
        (StepOverlap(6), "1", r"^sharding\.window is 6; it takes 0 to 5 layers"),
        (
            StepOverlap(1, 300),
            "3",
            "sharding.gradient_bucket is 300; a layer of tiny has 444 parameters on a GPU, .* at least",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(overlap: StepOverlap, zero: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        whole_step(FIVE, [plan_of([5, 3], 2, 4)], 1, zero, overlap)
