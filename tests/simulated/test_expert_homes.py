"""Homes that a strategy chooses for tokens of a model with experts: by name, and by playing the batch's steps."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import (
    ATTENTION,
    EVEN,
    EVEN_IN_NODE,
    FASTEST,
    PLANNED,
    TOKEN_CHOICE,
    Experts,
)
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.interfaces.dealt import ChangedPlans, Dealt, undealt
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulated.expert_homes import NOTE, ExpertHomes, InOtherHomes, in_expert_homes
from zbench.systems.ring import Ring
from zbench.systems.ulysses_deepspeed import UlyssesDeepSpeed

BATCH = Batch(np.array([9000, 7300, 5200, 3100, 900, 77]), seed=0, step=0)


class Heap:
    """A system by which the first GPU attends to everything."""

    packages = ("numpy",)

    def __init__(self, cost: Cost) -> None:
        self.cost = cost

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        builder = Builder(batch.lengths, self.cost.cluster.num_ranks, self.cost.model.num_heads)
        local(builder, np.arange(len(batch.lengths)), np.zeros(len(batch.lengths), np.int64))
        return (reverse(builder.build(), "carry"),)


def given(memory: float | None = None) -> Cost:
    """Two nodes of two GPUs, experts over all of them. memory: bytes of a GPU, where not the device's."""
    one = small(2, 2, memory=memory)
    model = replace(one.model, num_layers=3, sharding="zero1", num_experts=8, experts_per_token=2, ffn_hidden=2048)
    return make_cost(one.cluster, model, pipelines=False)


def strategy(homes: str) -> StepStrategy:
    return StepStrategy(expert_parallel=4, experts=Experts(homes=homes))


def seconds(plans: tuple[Plan, ...], cost: Cost) -> float:
    return Simulated(cost, **strategy(PLANNED).arguments).step(BATCH, plans).seconds


def test_homes_by_name() -> None:
    cost = given()
    tokens = {}
    for homes in (PLANNED, ATTENTION, EVEN, EVEN_IN_NODE):
        (plan,) = in_expert_homes(Heap(cost), cost, strategy(homes)).plan(BATCH)
        tokens[homes] = plan.tokens_per_rank.tolist()
        assert plan.notes == {}
    every = BATCH.num_tokens
    assert tokens[PLANNED] == tokens[ATTENTION] == [every, 0, 0, 0]
    assert sum(tokens[EVEN]) == every
    assert np.ptp(tokens[EVEN]) <= 1
    assert tokens[EVEN_IN_NODE] == [every - every // 2, every // 2, 0, 0]


def test_the_fastest_is_chosen_and_told() -> None:
    """With homes=fastest the steps of two choices are played, of the homes as planned and of the others that seem
    cheapest before anything is played; the quicker one is taken, and the plan's notes have the seconds of both."""
    cost = given()
    (plan,) = in_expert_homes(Heap(cost), cost, strategy(FASTEST)).plan(BATCH)
    each = {
        homes: seconds(in_expert_homes(Heap(cost), cost, strategy(homes)).plan(BATCH), cost)
        for homes in (PLANNED, EVEN_IN_NODE)
    }
    assert plan.notes[NOTE] == min(each, key=lambda homes: each[homes]) == EVEN_IN_NODE
    assert plan.notes[f"{NOTE}_{EVEN_IN_NODE}_seconds"] == pytest.approx(each[EVEN_IN_NODE], rel=1e-9)
    assert plan.notes[f"{NOTE}_{PLANNED}_seconds"] == pytest.approx(each[PLANNED], rel=1e-9)
    assert f"{NOTE}_{EVEN}_seconds" not in plan.notes  # dearer
    assert f"{NOTE}_{ATTENTION}_seconds" not in plan.notes  # they are as planned


def test_homes_without_room_are_not_chosen() -> None:
    """One GPU has no room for all tokens, and four have."""
    cost = given()
    peaks = [
        max(Simulated(cost, **strategy(PLANNED).arguments).step(BATCH, plans).peak_bytes)
        for plans in (in_expert_homes(Heap(cost), cost, strategy(homes)).plan(BATCH) for homes in (PLANNED, EVEN))
    ]
    assert peaks[1] < peaks[0]
    tight = given((peaks[0] + peaks[1]) / 2)
    (plan,) = in_expert_homes(Heap(tight), tight, strategy(FASTEST)).plan(BATCH)
    assert plan.notes[NOTE] == EVEN
    assert f"{NOTE}_{EVEN}_seconds" in plan.notes
    assert f"{NOTE}_{PLANNED}_seconds" not in plan.notes


def test_candidates_are_compared_with_homes_as_they_will_be() -> None:
    """What chooses before a run asks whether a step fits and how long it takes, after its tokens have other homes."""
    cost = given()
    planned, even = (in_expert_homes(Heap(cost), cost, strategy(homes)).plan(BATCH) for homes in (PLANNED, EVEN))
    alone = ComparedSteps(Simulated(cost, **strategy(EVEN).arguments))
    found = InOtherHomes(alone, ExpertHomes(cost, strategy(EVEN)))
    assert found.compared_seconds(BATCH, planned) == alone.compared_seconds(BATCH, even)
    assert found.compared_seconds(BATCH, planned) < alone.compared_seconds(BATCH, planned)
    assert found.least_seconds(BATCH) == alone.least_seconds(BATCH)
    peaks = [max(alone.executor.step(BATCH, plans).peak_bytes) for plans in (planned, even)]
    tight = given((peaks[0] + peaks[1]) / 2)
    alone = ComparedSteps(Simulated(tight, **strategy(EVEN).arguments))
    assert not alone.fits(BATCH, planned)
    assert InOtherHomes(alone, ExpertHomes(tight, strategy(EVEN))).fits(BATCH, planned)


def test_rows_that_routers_choose_are_compared_as_they_are_played() -> None:
    cost, how = given(), StepStrategy(expert_parallel=4, experts=Experts(routing=TOKEN_CHOICE, skew=1.0))
    plans, executor = Ring(cost).plan(BATCH), Simulated(cost, **how.arguments)
    assert ComparedSteps(executor).compared_seconds(BATCH, plans) == pytest.approx(executor.step(BATCH, plans).seconds)


def test_a_system_around_another_is_still_that_system() -> None:
    cost = given()
    assert in_expert_homes(ring := Ring(cost), cost, strategy(PLANNED)) is ring
    found = in_expert_homes(Dealt(Heap(cost), 2), cost, strategy(EVEN))
    assert isinstance(found, ChangedPlans)
    assert found.packages == ("numpy",)
    assert type(undealt(found)) is Heap
    assert len(found.plan(BATCH)) == 2


def test_plans_of_a_package_are_refused() -> None:
    cost = given()
    found = in_expert_homes(UlyssesDeepSpeed(cost), cost, strategy(EVEN))
    with pytest.raises(ValueError, match=r"^experts\.homes is even; deepspeed computes attention of this system's"):
        found.plan(BATCH)
