"""Experts that routers choose while a step runs: steps do not depend on choices, and come to one dense process that is
told them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of, plan_of_blocks, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.batch import Batch
from zbench.describe.exchanges import SLICED, ExchangeOverlap, TokenSlices
from zbench.describe.expert_schedule import DRAWN, EXPERT_CHOICE, TOKEN_CHOICE
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.simulated.drawn_rows import expert_rows
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.router.seats import RouterSeats
from zbench.step.passes.routing import ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text


def router(degree: int, capacity: float, routing: str = TOKEN_CHOICE) -> ExpertParallel:
    return ExpertParallel(degree, capacity=capacity, padded=True, routing=routing)


# Ranks, tensor parallelism, experts' degree, ZeRO's stage, recomputation, stages; of the first a
# GPU has several blocks, of the last a group has no token.
CASES = ((4, 1, 4, "3", "none", 1), (4, 1, 2, "2", "full", 1), (2, 2, 4, "1", "selective", 1),
         (2, 1, 2, "1", "full", 2), (4, 1, 2, "none", "none", 1))  # fmt: skip


def built(number: int, how: ExpertParallel, gate: str) -> tuple[Step, list, ExpertParallel]:
    ranks, degree, experts, zero, recompute, stages = CASES[number]
    model = replace(EXPERTS, gate=gate, shared_experts=2 * (number == 2))
    lengths = [9, 4] if number < 4 else [2]
    first = plan_of_blocks(lengths, ranks, 4) if number == 0 else plan_of(lengths, ranks, 4 // degree)
    plans = [first, plan_of([1], ranks, 4 // degree, first=len(lengths))]
    overlap = StepOverlap(1, LAYER, ExchangeOverlap(SLICED, 2)) if degree > 1 else StepOverlap()
    how = replace(how, degree=experts)
    return whole_step(model, plans, degree, zero, overlap, recompute, how, stages), plans, how


@pytest.mark.parametrize(
    ("routing", "capacity", "gate"),
    [(TOKEN_CHOICE, 0.1, "softmax"), (TOKEN_CHOICE, 1.25, "sigmoid"), (TOKEN_CHOICE, 4.0, "softmax_all"),
     (EXPERT_CHOICE, 1.0, "softmax_all"), (EXPERT_CHOICE, 3.0, "softmax_all")],
)  # fmt: skip
@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int, routing: str, capacity: float, gate: str) -> None:
    """With the smallest capacity every expert has one seat a GPU; with the largest some have more than tokens."""
    step, plans, how = built(number, router(1, capacity, routing), gate)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    model = replace(EXPERTS, gate=gate, shared_experts=2 * (number == 2))
    assert execute(step, plans, CASES[number][1], model, how, TokenSlices(2 if number == 2 else 1)) < 1e-12


@pytest.mark.parametrize("per_token", [1, 4, 8])
def test_a_token_chooses_one_to_eight_experts(per_token: int) -> None:
    model, plans, how = (
        replace(EXPERTS, num_experts=8, experts_per_token=per_token),
        [plan_of([9, 4], 4, 4)],
        router(4, 1),
    )
    step = whole_step(model, plans, 1, "1", 1, "none", how)
    assert fault(step) == ""
    assert execute(step, plans, 1, model, how) < 1e-12


@pytest.mark.parametrize(("how", "recompute"), [(ExpertParallel(4, 1, 1.0), "full"), (router(4, 0.75), "selective")])
def test_routers_of_cosines(how: ExpertParallel, recompute: str) -> None:
    """X-MoE's, whoever chooses: both parameters have gradients, which are whole at one home."""
    model = replace(EXPERTS, router="cosine", router_dim=3, router_temperature=0.5)
    plans = [plan_of([9, 4], 4, 4), plan_of([1], 4, 4, first=2)]
    step = whole_step(model, plans, 1, "3", 1, recompute, how)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, model, how) < 1e-12


@pytest.mark.parametrize("routing", [TOKEN_CHOICE, EXPERT_CHOICE])
def test_mutants(routing: str) -> None:
    model, how = replace(EXPERTS, gate="softmax_all"), router(2, 0.5, routing)
    step = whole_step(model, [plan_of([7, 4], 2, 4)], 1, "3", 1, "selective", how)
    assert rejected_mutants(step, 3) > 8


def test_a_step_is_the_same_whatever_the_batch_s_seed_draws() -> None:
    """And as much is sent as by a padded step of drawn experts but for shares: one a seat, and not one a choice."""
    plans, how = [plan_of([9, 4], 4, 4)], router(4, 1.0)
    step = whole_step(EXPERTS, plans, 1, "1", 1, "none", how)
    other = whole_step(EXPERTS, plans, 1, "1", 1, "none", replace(how, seed=5, step=7))
    assert step_text(step) == step_text(other) == step_text(read_step(step_text(step)))
    drawn = whole_step(EXPERTS, plans, 1, "1", 1, "none", replace(how, routing=DRAWN, seed=3))
    rows = sum(int(one.amounts.sum()) for one in step.layouts[0].tensors if one.name == "i" and one.amounts is not None)
    shares = rows * 3 // 4 * EXPERTS.num_layers * 2 * EXPERTS.lse_bytes * (EXPERTS.experts_per_token - 1)
    sent = [sum(queues["experts"][0] for queues in stated_bytes(one)) for one in (step, drawn)]
    assert sent[1] - sent[0] == shares


def test_seats_are_counted_of_each_gpu_s_tokens() -> None:
    parts = PlanParts(plan_of([37, 12], 4, 4), EXPERTS, 1, router(2, 0.75))
    assert isinstance(parts.routing, RouterSeats)
    for place, gpu in enumerate(parts.routing.home.tolist()):
        tokens = int(parts.sizes[parts.own[gpu]].sum())
        assert parts.routing.to_experts[place].tolist() == [-(-3 * tokens * 2 // 16)] * 4  # 0.75 tokens x 2 / 4 experts
        assert parts.routing.tokens[place] == tokens


def test_what_is_dropped_before_it_runs_is_of_a_draw_and_of_experts_that_choose_exact() -> None:
    batch, plans = Batch(np.array([37, 12]), 0, 0), [plan_of([37, 12], 4, 4)]
    steps = ProvenSteps("simulated", replace(EXPERTS, sharding="zero1"), 4, experts=router(4, 0.75))
    found = expert_rows(steps, batch, [plans])
    routings = [part.routing for part in steps.parts(batch, plans)]
    seats = sum(int(one.to_experts.sum()) for one in routings if isinstance(one, RouterSeats))
    assert found["drawn"] == 1
    assert 0 < found["dropped"] < 1
    assert found["padded"] == pytest.approx(1 - (1 - found["dropped"]) * 2 * 49 / seats)  # two experts a token
    model = replace(steps.model, gate="softmax_all")
    chosen = replace(steps, model=model, experts=replace(steps.experts, routing=EXPERT_CHOICE))
    assert expert_rows(chosen, batch, [plans]) == {"kept": pytest.approx(seats / (2 * 49)), "padded": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: router(4, 1.0, EXPERT_CHOICE).check(EXPERTS, 4), "model.gate is softmax; with experts.routing="),
        (lambda: router(1, 1.0).check(MODEL, 4), "experts.routing is token_choice; tiny has no experts"),
    ],
)
def test_what_cannot_be(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=said):
        make()
