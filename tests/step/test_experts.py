"""Experts over ranks come to the loss and gradients of one process, and broken steps of them are found."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.runtime.steps.tokens import routes_of, tokens_of
from zbench.step.operations import QUEUES, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.weights import EXPERT_LAYER_WEIGHTS
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import ExpertParallel, Routing
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

# Ranks, tensor-parallel degree, expert-parallel degree, stage, recomputation, skew, lengths of each micro-batch. With a
# skew of 9 nearly all tokens choose the same two of four experts; a sequence of one token leaves ranks without any.
CASES = (
    (1, 1, 1, "3", "none", 0.0, ([5, 3],)), (2, 1, 2, "3", "selective", 0.0, ([5, 3],)),
    (4, 1, 2, "2", "full", 0.0, ([7, 3], [1])), (4, 1, 4, "none", "selective", 9.0, ([1], [6, 2])),
    (2, 2, 4, "1", "elementwise", 3.0, ([5, 4], [2])), (4, 1, 2, "3", "full", 9.0, ([1], [3])),
)  # fmt: skip


@cache
def case(number: int) -> tuple[Step, list[Plan], int, ExpertParallel]:
    ranks, degree, experts, zero, recompute, skew, batches = CASES[number]
    plans: list[Plan] = []
    for lengths in batches:
        plans.append(plan_of(lengths, ranks, 4 // degree, first=sum(len(plan.lengths) for plan in plans)))
    how = ExpertParallel(experts, 1, skew)
    return whole_step(EXPERTS, plans, degree, zero, 1, recompute, how), plans, degree, how


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, plans, degree, how = case(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, EXPERTS, how) < 1e-12


@pytest.mark.parametrize("gate", ["softmax_all", "sigmoid"])
@pytest.mark.parametrize("room", [ExpertParallel(), ExpertParallel(capacity=0.5, padded=True)], ids=str)
def test_exact_whatever_makes_shares(gate: str, room: ExpertParallel) -> None:
    model, how, plans = replace(EXPERTS, gate=gate), replace(room, degree=2, skew=1.0), [plan_of([7, 3], 4, 4)]
    step = whole_step(model, plans, 1, "1", 1, "full", how)
    assert fault(step) == ""
    assert execute(step, plans, 1, model, how) < 1e-12


@pytest.mark.parametrize("number", [1, 3, 4])
def test_mutants(number: int) -> None:
    """The proof and the unrolled walk agree, and what they accept comes out right."""
    step, plans, degree, how = case(number)
    assert rejected_mutants(step, number, error=lambda broken: execute(broken, plans, degree, EXPERTS, how)) > 8


@pytest.mark.parametrize("number", range(len(CASES)))
def test_parameters_have_the_bytes_of_the_model(number: int) -> None:
    layout = case(number)[0].layouts[0]
    found = sum(
        int(layout.tensors[layout.number[name]].cell_bytes(layout.index).sum()) for name in EXPERT_LAYER_WEIGHTS
    )
    assert found == EXPERTS.layer_params * EXPERTS.element_bytes


def test_a_step_with_experts_reads_back() -> None:
    text = step_text(case(3)[0])
    assert "amounts" in text
    assert step_text(read_step(text)) == text


def test_a_token_goes_once_to_a_gpu() -> None:
    """What is sent of i is as many rows as tokens have another GPU's expert among those that they chose."""
    step, plans, _, how = case(1)
    layout, sizes = step.layouts[0], step.layouts[0].index["t"].sizes
    routing = Routing.draw(plans[0], sizes, 0 * sizes, EXPERTS, how)
    home, part = layout.tensors[layout.number["x"]].home, np.repeat(np.arange(len(sizes)), sizes)
    slices = routing.chosen // (EXPERTS.num_experts // how.degree)
    away = sum(len(set(row.tolist()) - {int(home[at])}) for row, at in zip(slices, part, strict=True))
    ops, tensor = step.templates[1].operations, layout.number["i"]
    sent = np.flatnonzero((ops.kind == SEND) & (ops.what == tensor))
    assert (ops.queue[sent] == QUEUES.index("experts")).all()
    amounts = layout.tensors[tensor].amounts.reshape(len(sizes), how.degree)
    cells = [amounts[np.ix_(layout.lists[int(ops.list0[at])], layout.lists[int(ops.list1[at])])] for at in sent]
    assert sum(int(one.sum()) for one in cells) == away > 0
    assert int(plans[0].lengths.sum()) == len(routing.chosen)


@pytest.mark.parametrize(("degree", "experts"), [(4, 4), (3, 6)])
def test_no_gpu_has_two_messages_to_come_at_once(degree: int, experts: int) -> None:
    """Messages are in turns, in each of which every GPU has one to send and one to receive."""
    model = replace(EXPERTS, num_experts=experts, num_heads=degree * 2, num_kv_heads=degree)
    plans = [plan_of([900], degree, degree * 2)]
    step = whole_step(model, plans, 1, "1", 1, "none", ExpertParallel(degree))
    layout, ops = step.layouts[0], step.templates[1].operations
    for name in ("i", "v"):
        mine = np.flatnonzero((ops.kind == SEND) & (ops.what == layout.number[name]))
        turns = mine.reshape(degree - 1, degree)
        for ends in (ops.src, ops.dst):
            assert (np.sort(ends[turns], axis=1) == np.arange(degree)).all()


def routed(plan: Plan, how: ExpertParallel) -> Routing:
    found = PlanParts(plan, EXPERTS, 1, how).routing
    assert found is not None
    return found


def test_routing_is_even_or_skewed() -> None:
    plan = plan_of([3000, 1000], 2, 4)
    even = routed(plan, ExpertParallel(2, 5))
    assert np.array_equal(even.chosen, routed(plan, ExpertParallel(2, 5)).chosen)
    assert (even.chosen[:, 0] < even.chosen[:, 1]).all()
    assert abs(even.to_experts.sum(axis=0) / 2000 - 1).max() < 0.1  # 4000 tokens, two of four experts each
    assert int(even.to_experts.sum()) == 8000
    skewed = routed(plan, ExpertParallel(2, 5, 9.0)).to_experts.sum(axis=0)
    assert skewed.max() == 4000
    assert skewed.min() < 10


def test_a_token_chooses_the_same_experts_whatever_the_plan() -> None:
    """Cut over one, two or four GPUs, in one micro-batch or two; another batch chooses others."""
    how, lengths = ExpertParallel(2, skew=1.0).of(Batch(np.array([30, 10]), 3, 7)), [30, 10]

    def chosen(plans: list[Plan], degree: int, one: ExpertParallel) -> dict[int, list[list[int]]]:
        found = routes_of(tokens_of([PlanParts(plan, EXPERTS, degree, one) for plan in plans]))
        return {number: experts.tolist() for number, experts in sorted(found.items())}

    alone = chosen([plan_of(lengths, 1, 4)], 1, how)
    assert alone == chosen([plan_of(lengths, 2, 2)], 2, how)
    assert alone == chosen([plan_of([30], 4, 4), plan_of([10], 4, 4, first=1)], 1, how)
    assert alone != chosen([plan_of(lengths, 1, 4)], 1, replace(how, step=8))
    assert alone != chosen([plan_of(lengths, 1, 4)], 1, replace(how, seed=4))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (ExpertParallel(3), "parallel.expert_parallel is 3; it has to divide model.num_experts=4"),
        (ExpertParallel(4), "parallel.expert_parallel is 4; it has to divide 2 GPUs"),
        (ExpertParallel(2, 0, -1.0), "the skew of the routing is -1.0; it takes a number from 0 to 100"),
    ],
)
def test_what_cannot_be_built(how: ExpertParallel, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        whole_step(EXPERTS, [plan_of([5, 3], 2, 4)], 1, "3", 1, "none", how)
