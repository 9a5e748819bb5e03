"""A price of homes of tokens: what it counts, and that the homes of the fastest step are among the cheapest."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import (
    EVEN,
    EVEN_IN_NODE,
    PLANNED,
    PRICED,
    TOKEN_CHOICE,
    TWO_DIMENSIONAL,
    TWO_LEVEL,
    Experts,
)
from zbench.describe.links import NIC
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulated.expert_degrees import ExpertProfile
from zbench.simulated.expert_homes import NOTE, ExpertHomes
from zbench.simulated.home_prices import HomePrices
from zbench.systems.ring import Ring

BATCH = Batch(np.array([9000, 7300, 5200, 3100, 900, 77]), seed=0, step=0)


def given(tensor_parallel: int = 1, nodes: int = 2) -> Cost:
    one = small(nodes, 2)
    model = replace(one.model, num_layers=3, sharding="zero1", num_experts=8, experts_per_token=2, ffn_hidden=2048)
    return make_cost(one.cluster, replace(model, tensor_parallel=tensor_parallel), pipelines=False)


def heap(cost: Cost) -> tuple[Plan, ...]:
    """Plans by which one rank attends to everything."""
    builder = Builder(BATCH.lengths, cost.cluster.num_ranks, cost.model.num_heads)
    local(builder, np.arange(len(BATCH.lengths)), np.zeros(len(BATCH.lengths), np.int64))
    return (reverse(builder.build(), "carry"),)


@pytest.mark.parametrize(
    ("degrees", "experts"),
    [
        ((4, 1), Experts()),
        ((2, 1), Experts()),
        ((4, 1), Experts(dispatch=TWO_LEVEL)),
        ((4, 1), Experts(dispatch=TWO_DIMENSIONAL)),
        ((4, 1), Experts(dispatch=TWO_DIMENSIONAL, capacity=1.25, padded=True)),
        ((4, 1), Experts(capacity=1.25, padded=True)),
        ((4, 1), Experts(routing=TOKEN_CHOICE)),
        ((2, 2), Experts()),
    ],
)
def test_rows_are_as_many_as_a_step_sends(degrees: tuple[int, int], experts: Experts) -> None:
    """Of as many tokens on every rank, within what a draw of some thousands differs."""
    cost, strategy = (
        given(),
        StepStrategy(expert_parallel=degrees[0], expert_tensor_parallel=degrees[1], experts=experts),
    )
    plans = Ring(cost).plan(BATCH)
    steps = Simulated(cost, **strategy.arguments).steps
    played = ExpertProfile.of(steps, BATCH, plans, cost).forward[0].exchange
    assert HomePrices(cost, strategy).rows_sent(BATCH, plans[0]).max() == pytest.approx(played.work, rel=0.05)


def test_tensor_parallel_groups_send_as_one_rank() -> None:
    """Groups that have all experts send nothing; of two groups each sends its tokens to either GPU of the other."""
    cost = given(tensor_parallel=2)
    (plan,) = Ring(cost).plan(BATCH)
    alone, both = (HomePrices(cost, StepStrategy(expert_parallel=degree)).rows_sent(BATCH, plan) for degree in (2, 4))
    assert (alone == 0).all()
    row = cost.model.hidden * cost.model.element_bytes
    wide = 13 / 28 * 2  # of 28 pairs of experts 15 have none of a GPU's two
    assert both == pytest.approx(cost.transfer_seconds(plan.tokens_per_rank * wide * row, NIC))


def test_experts_that_are_cut_over_all_gpus_have_every_token() -> None:
    cost = given()
    (plan,) = Ring(cost).plan(BATCH)
    sent = HomePrices(cost, StepStrategy(expert_tensor_parallel=4)).rows_sent(BATCH, plan)
    row = cost.model.hidden * cost.model.element_bytes
    mine = plan.tokens_per_rank.reshape(2, 2).sum(axis=1)  # a node's NIC, to both GPUs of the other node
    assert sent == pytest.approx(np.repeat(cost.transfer_seconds(2 * mine * row, NIC), 2))


@pytest.mark.parametrize("experts", [Experts(), Experts(schedule="tutel", degree=4)])
def test_the_fastest_homes_are_among_the_cheapest(experts: Experts) -> None:
    """One rank has all tokens, where even homes are bad for nothing but attention's messages: worst are those as
    planned, and of the two others the dearer one is faster."""
    cost, strategy = given(), StepStrategy(expert_parallel=4, experts=experts)
    homes, prices, plans = ExpertHomes(cost, strategy), HomePrices(cost, strategy), heap(cost)
    found = {name: homes.with_homes(name, plans) for name in (PLANNED, EVEN_IN_NODE, EVEN)}
    executor = ComparedSteps(Simulated(cost, **strategy.arguments))
    played, told = (
        {name: price(BATCH, one) for name, one in found.items()}
        for price in (executor.compared_seconds, prices.seconds)
    )
    assert max(told, key=lambda name: told[name]) == max(played, key=lambda name: played[name]) == PLANNED


def test_the_cheapest_are_chosen_without_playing(monkeypatch: pytest.MonkeyPatch) -> None:
    cost, strategy = given(), StepStrategy(expert_parallel=4, experts=Experts(homes=PRICED))
    homes = ExpertHomes(cost, strategy)
    monkeypatch.setattr(Simulated, "ceiling_seconds", None)  # whatever is played asks for it
    (plan,) = homes.changed(BATCH, heap(cost))
    assert plan.notes == {NOTE: EVEN_IN_NODE}
    assert plan.tokens_per_rank.tolist() == homes.with_homes(EVEN_IN_NODE, heap(cost))[0].tokens_per_rank.tolist()
    (ring,) = homes.changed(BATCH, Ring(cost).plan(BATCH))
    assert ring.notes == {NOTE: PLANNED}
