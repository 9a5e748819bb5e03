"""Hydraulis' published batching and its baselines': cases by hand, and what holds for any batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.oracles import batches, small
from tests.helpers.strategies import batches as any_batches
from tests.helpers.strategies import costs
from zbench.cost.cost import Cost
from zbench.cost.memory.state import pipeline_state_bytes
from zbench.describe.batch import Batch
from zbench.proof.verify import verify_step
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.batching import WAYS, SchemeSequences, place_on_pipelines
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.hydraulis.published import (
    dispatched,
    first_fit,
    greedy_packs,
    pack_evenly,
    packs_in_turn,
    published_dispatch,
)


def roomy() -> Cost:
    """4 A100 with 8.4 GB beside their state: 10,000 to 13,000 tokens each."""
    return small(1, 4, memory=pipeline_state_bytes(small(1, 4), 1, 1) + 8.4e9)


# -- dispatch -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seconds", "stages", "wanted"),
    [
        ([3, 2, 2], [1, 1], [1, 0, 0]),  # 3 to the last empty one; 2 and 2 to the other: 4 and 3
        ([5, 1, 1, 1], [1, 1, 1], [2, 1, 0, 0]),  # none delays the slowest: empty ones first, then the first one
        ([2, 2], [1, 3], [0, 0]),  # with three stages a 2 ends at 6, behind 4
    ],
)
def test_dispatch_by_hand(seconds: list[int], stages: list[int], wanted: list[int]) -> None:
    """One order, pipelines of one kind."""
    scheme, count = np.zeros(len(stages), np.int64), len(seconds)
    row = np.array([seconds], float)
    found = dispatched(row, np.ones((1, count), bool), scheme, np.array(stages), np.arange(count)[None])
    assert found.tolist() == wanted


def test_what_a_single_pipeline_can_have_goes_there_first() -> None:
    """The long one, whatever its turn, has the wide pipeline; the short ones then share the others."""
    seconds = np.array([[1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 1.0, 9.0]])
    fits = np.array([[True, True, True, True], [True, True, True, False]])
    found = published_dispatch(seconds, fits, np.array([0, 1, 1, 1]), np.ones(4, np.int64), 3)
    assert found[3] == 0
    assert sorted(found[:3].tolist()) == [1, 2, 3]


# -- packing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stages", "count", "bound"),
    [(1, 2, (6 + 1) * 2), (4, 3, (4 + 1) * (3 + 3))],  # 3 micro-batches: 15 instead of 14; 2: 35 instead of 30
)
def test_the_number_of_micro_batches_by_hand(stages: int, count: int, bound: float) -> None:
    """Sequences of 4, 4, 2 and 2 tokens and seconds; 6 tokens fit; a constant of 1 second."""
    tokens = np.array([2, 2, 4, 4])
    micro, goal = pack_evenly(tokens.astype(float), tokens, 1.0, stages, 6)
    assert (len(set(micro.tolist())), goal) == (count, bound)
    assert np.bincount(micro, tokens).max() <= 6


def test_greedy_packs_by_hand() -> None:
    """1 takes 5, the longest that fits beside it in 6; 2 takes 3."""
    assert greedy_packs(np.array([1, 2, 3, 5]), 6).tolist() == [0, 1, 1, 0]


def test_first_fit_by_hand() -> None:
    assert first_fit(np.array([4, 3, 2, 5, 1]), 6).tolist() == [0, 1, 0, 2, 1]
    assert first_fit(np.array([9, 1]), 6).tolist() == [0, 1]


def test_packs_go_to_the_next_pipeline_with_room() -> None:
    """The second is too large for the first pipeline; the third is the first one's turn again."""
    assert packs_in_turn(np.array([3, 5, 3]), np.array([4, 6]), np.zeros(2, np.int64)).tolist() == [0, 1, 0]
    assert packs_in_turn(np.array([3, 3]), np.array([4, 4]), np.array([1, 0])).tolist() == [1, 0]


# -- whole plans ----------------------------------------------------------------------------------
def test_first_fit_packs_in_the_batch_s_order_and_deals_in_turn() -> None:
    """Packs of 6,000 tokens on two pipelines, hand-worked: 4 and 2, 3 and 1, 5 thousand; the third is the first
    pipeline's second micro-batch."""
    cost = roomy()
    batch = Batch(np.array([4000, 3000, 2000, 5000, 1000]), 0, 0)
    plans = Hydraulis(cost, [[2, 1]], batching="first_fit", pack_tokens=6000).plan(batch)
    of = plans[0].pipelines
    assert of is not None
    assert [sorted(plan.lengths.tolist()) for plan in plans] in (
        [[2000, 4000], [1000, 3000, 5000]],
        [[1000, 2000, 3000, 4000], [5000]],
    )
    tokens = [plan.tokens_per_rank[of.lead].tolist() for plan in plans]
    assert sorted(map(sorted, np.array(tokens).T.tolist())) == [[0, 4000], [5000, 6000]]


@pytest.mark.parametrize("way", WAYS)
def test_packs_of_a_size_never_have_more(way: str) -> None:
    """4,000 tokens, or a single longer sequence; of `search` and `published` memory alone is the limit."""
    cost = roomy()
    for batch in batches(12, most=30, seed=3):
        system = Hydraulis(cost, [[1, 1]], batching=way, pack_tokens=4000)
        plans = system.plan(batch)
        verify_step(batch, plans)
        most = 4000 if way in ("fixed", "first_fit") else int(system.objective.capacity[0])
        for plan in plans:
            ranks = np.flatnonzero(plan.tokens_per_rank > most)
            longest = batch.lengths.max()
            assert (plan.tokens_per_rank[ranks] <= longest).all()


def test_first_fit_has_pipelines_of_one_kind() -> None:
    cost = roomy()
    for batch in batches(10, seed=4):
        plans = Hydraulis(cost, batching="first_fit").plan(batch)
        assert str(plans[0].notes["strategy"]).count(" x ") == 1


@settings(max_examples=30)
@given(st.data())
def test_memory_holds_whatever_the_way_of_batching(data: st.DataObject) -> None:
    """Adversarial lengths and models, with memory for a few hundred tokens a GPU."""
    cost, way = data.draw(costs(3, 8)), data.draw(st.sampled_from(WAYS))
    batch = data.draw(any_batches(4000, 20))
    need = np.ceil(data.draw(st.floats(0.02, 0.5)) * batch.num_tokens)
    share = cost.cluster.device.memory_bytes * need / float(Hydraulis(cost).objective.capacity.max())
    tight = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=share)))
    system = Hydraulis(tight, batching=way, pack_tokens=data.draw(st.sampled_from([None, 100, 4000])))
    plans = system.plan(batch)
    if batch.lengths.max() <= system.objective.capacity.max() and system.objective.capacity.min() > 1:
        verify_step(batch, plans, tight)
    verify_step(batch, plans)


def test_the_better_a_batch_is_dealt_the_sooner_it_is_done() -> None:
    """On the clock, six batches together, pipelines given: first fit, greedy packs, as published, by search."""
    cost, rng = small(1, 4, memory=70e9), np.random.default_rng(5)
    total = dict.fromkeys(WAYS, 0.0)
    for step in range(6):
        batch = Batch(np.minimum(rng.lognormal(6.5, 1.2, 100).astype(np.int64) + 1, 16_000), 0, step)
        for way in WAYS:
            plans = Hydraulis(cost, [[1, 1]], batching=way, pack_tokens=16_000).plan(batch)
            total[way] += StepEstimate(cost).seconds(plans)
    print({way: round(seconds, 4) for way, seconds in total.items()})
    assert total["search"] <= total["published"] < total["fixed"] < total["first_fit"]


def test_seconds_are_the_slowest_pipeline_s_or_the_published_bound() -> None:
    cost = roomy()
    for batch in batches(10, seed=6):
        of = Hydraulis(cost, [[1, 2]]).objective
        sequences = SchemeSequences.of(batch.lengths, of)
        for way in WAYS:
            found = place_on_pipelines(way, sequences, np.zeros(2, np.int64), of, 5, 4000)
            used = (found.each > 0).sum(axis=1)
            slowest = found.each.max(axis=1) + of.fixed[0]
            bound = np.where(used > 0, slowest * (used + 1), 0.0)
            played = found.each.sum(axis=1) + used * of.fixed[0] + np.where(used > 0, slowest, 0.0)
            assert found.played == pytest.approx(played)
            assert found.seconds == pytest.approx(bound if way == "published" else played)
