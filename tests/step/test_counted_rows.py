"""Rows that routers choose while a step runs: the step says how many there are at most, their numbers go ahead of them,
and whatever is chosen, it comes to one dense process that is told."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, execute, fault, plan_of, plan_of_blocks, rejected_mutants, routed_step
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.expert_schedule import DRAWN, EXPERT_CHOICE, TOKEN_CHOICE, ExpertChunks
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import DrawnRows, told_rows, with_drawn_rows
from zbench.simulator.steps.play import play_step
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.operations import SEND, Operations
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.router.seats import RouterSeats
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step

HOW = ExpertParallel(4, 3, routing=TOKEN_CHOICE)
SOFT = replace(EXPERTS, gate="softmax_all")
DEVICE = Device("d", 1e15, 8e10, 1e12, 1e12, 1e14, 1e13, 1e13, 1e-6, 1e-6)


def nodes_of_one_gpu(latency: float) -> Cluster:
    return Cluster("c", 4, 1, 1, 25e9, 1.0, latency, 200e9, 1.0, latency, DEVICE)


def built(
    ranks: int, degree: int, how: ExpertParallel, recompute: str | SomeLayers, stages: int = 1, zero: str = "1"
) -> tuple[Step, list[Plan]]:
    first = plan_of_blocks([9, 4], ranks, 4) if degree == 1 else plan_of([9, 4], ranks, 4 // degree)
    plans = [first, plan_of([1], ranks, 4 // degree, first=2)]
    model = replace(EXPERTS, shared_experts=2 * (degree > 1))
    return whole_step(model, plans, degree, zero, StepOverlap(), recompute, how, stages), plans


@pytest.mark.parametrize(
    ("ranks", "degree", "of_experts", "recompute", "capacity", "stages", "zero"),
    [(4, 1, 4, "none", None, 1, "3"), (4, 1, 2, "full", 0.5, 1, "2"), (2, 2, 4, "selective", None, 1, "1"),
     (2, 1, 2, SomeLayers("full", (1, 0)), None, 2, "1"), (1, 1, 1, "full", None, 1, "none")],
)  # fmt: skip
def test_exact(
    ranks: int, degree: int, of_experts: int, recompute: str, capacity: float | None, stages: int, zero: str
) -> None:
    how = replace(HOW, degree=of_experts, capacity=capacity)
    step, plans = built(ranks, degree, how, recompute, stages, zero)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert is_read_as_written(step)
    assert execute(step, plans, degree, replace(EXPERTS, shared_experts=2 * (degree > 1)), how) < 1e-12


@pytest.mark.parametrize("chunks", [ExpertChunks(2, 3), ExpertChunks(8, 1, "last")], ids=str)
def test_chunks_have_numbers_of_their_own(chunks: ExpertChunks) -> None:
    """As many rows go at most as at once, and two numbers to the other GPU for each chunk that has a token."""
    how, none = replace(HOW, degree=2), ExpertChunks()
    step, plans, error = routed_step(EXPERTS, how, ([9, 4], [1]), (2, 1, 1), ("3", "full"), chunks)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < 1e-12
    once = routed_step(EXPERTS, how, ([9, 4], [1]), (2, 1, 1), ("3", "full"), none)[0]
    cuts = {one: StepOverlap(experts=one).token_slices for one in (chunks, none)}
    numbers, sent = {}, {}
    for of, built_step in ((chunks, step), (none, once)):
        parts = [PlanParts(plan, EXPERTS, 1, how.in_chunks(of), token_slices=cuts[of]).routing for plan in plans]
        numbers[of] = sum(len(one.home) for one in parts if isinstance(one, RouterSeats))
        sent[of] = sum(one["experts"][0] for one in stated_bytes(built_step))
    assert numbers[chunks] > numbers[none]
    assert sent[chunks] - sent[none] == (numbers[chunks] - numbers[none]) * 2 * 8 * EXPERTS.num_layers


def test_a_capacity_is_of_all_tokens_at_once() -> None:
    with pytest.raises(ValueError, match=r"in 6 chunks, and the routing is token_choice with a capacity of 0\.5"):
        replace(HOW, capacity=0.5).in_chunks(ExpertChunks(2, 3))


def test_mutants() -> None:
    step = whole_step(EXPERTS, [plan_of([7, 4], 2, 4)], 1, "3", 1, "selective", replace(HOW, degree=2))
    assert rejected_mutants(step, 3) > 8


def test_rows_are_not_sent_ahead_of_their_numbers() -> None:
    step, _ = built(4, 1, HOW, "none")
    number = [one.name for one in step.templates].index("forward.0")
    layout, table = step.layouts[0], step.templates[number].operations.table.copy()
    sent = table[:, 0] == SEND
    numbers, rows = (np.flatnonzero(sent & (table[:, 1] == layout.number[name]))[0] for name in ("ct", "i"))
    table[[numbers, rows]] = table[[rows, numbers]]
    broken = [*step.templates]
    broken[number] = replace(broken[number], operations=Operations.of_tables([table]))
    told = fault(replace(step, templates=tuple(broken)))
    assert "uses ct[0,1] of the layer on GPU 1, which no earlier operation brought there" in told
    assert unrolled_fault(replace(step, templates=tuple(broken)))


def test_what_goes_back_takes_the_numbers_of_what_came() -> None:
    step, _ = built(4, 1, HOW, "full")
    layout = step.layouts[0]
    sends = [one.operations.table for one in step.templates]
    assert [int(((one[:, 0] == SEND) & (one[:, 1] == layout.number["ct"])).sum()) > 0 for one in sends] == [
        one.name.startswith("forward") for one in step.templates
    ]
    without = [
        replace(
            one,
            needs=one.needs.take(np.flatnonzero(one.needs.tensor != layout.number["ct"])),
            leaves=one.leaves.take(np.flatnonzero(one.leaves.tensor != layout.number["ct"])),
        )
        for one in step.templates
    ]
    assert "uses ct[" in fault(replace(step, templates=tuple(without)))


def test_the_law_of_bytes_is_at_most_and_of_what_was_chosen() -> None:
    """All tokens to the expert of another GPU: as many rows as tokens, and a number for each expert of a pair."""
    step, plans = built(2, 1, replace(HOW, degree=2), "none")
    parts = [PlanParts(plan, EXPERTS, 1, replace(HOW, degree=2)) for plan in plans]
    seats = [one.routing for one in parts if isinstance(one.routing, RouterSeats)]
    assert len(seats) == len(parts)
    told = {}
    for number, one in enumerate(seats):
        for layer in range(EXPERTS.num_layers):
            for group, tokens in enumerate(one.tokens.tolist()):
                told[number, layer, group] = (0, 0, 0, tokens)  # on GPU 1
    found, most = stated_bytes(step, chosen_rows([told])), stated_bytes(step)
    tokens = sum(int(one.tokens[one.home == 0].sum()) for one in seats)
    row, share = EXPERTS.hidden * EXPERTS.element_bytes, EXPERTS.lse_bytes
    pairs = sum(len(one.home) for one in seats)  # a message of numbers each, with two of them
    sent = sum(one["experts"][0] for one in found)
    assert sent == EXPERTS.num_layers * (tokens * (4 * row + 2 * share) + pairs * 2 * 8)
    assert sent < sum(one["experts"][0] for one in most)


def test_a_clock_plays_rows_that_are_drawn() -> None:
    """As many as of the same draw without a router, a row for each choice; bytes are those of the law; numbers that go
    ahead cost their latency."""
    step, plans = built(4, 1, replace(HOW, skew=1.0), "none")
    parts = [PlanParts(plan, EXPERTS, 1, replace(HOW, skew=1.0)) for plan in plans]
    drawn = with_drawn_rows(step, parts)
    assert fault(drawn) == ""
    rows = [DrawnRows.of(one) for one in parts]
    assert [int(one.to_experts.sum()) for one in rows] == [2 * 13, 2]
    assert told_rows(parts, HOW) == {"dropped": 0, "taken": 28 / (4 * 14), "drawn": 1.0}
    less = told_rows([replace(one, experts=replace(HOW, capacity=0.5, skew=1.0)) for one in parts], HOW)
    assert 0 < less["dropped"] < 1
    told = {
        (number, layer, group): tuple(row)
        for number, one in enumerate(rows)
        for layer in range(EXPERTS.num_layers)
        for group, row in enumerate(one.to_experts.tolist())
    }
    seconds = []
    for latency in (1e-6, 1e-3):
        played = play_step(drawn, plans, Cost(nodes_of_one_gpu(latency), EXPERTS))
        assert played.nic_tx["experts"].tolist() == [
            one["experts"][0] for one in stated_bytes(step, chosen_rows([told]))
        ]
        seconds.append(played.seconds)
    usual = whole_step(EXPERTS, plans, 1, "1", experts=replace(HOW, skew=1.0, routing=DRAWN))
    without = [play_step(usual, plans, Cost(nodes_of_one_gpu(one), EXPERTS)).seconds for one in (1e-6, 1e-3)]
    messages = (seconds[1] - seconds[0]) - (without[1] - without[0])
    assert messages > 2 * EXPERTS.num_layers * 0.9e-3  # of every layer and micro-batch one, at least


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: replace(HOW, routing=EXPERT_CHOICE).check(replace(EXPERTS, gate="softmax_all"), 4),
            "a number and True",
        ),
        (lambda: replace(HOW, padded=True).check(EXPERTS, 4), "padded, with no capacity; it takes a number"),
    ],
)
def test_what_cannot_be(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
