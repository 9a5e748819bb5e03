"""The static mesh: its groups, its packs, and what it refuses."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.helpers.strategies import batches, costs
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import TRANSFER
from zbench.proof.verify import verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.allgather import AllGather
from zbench.systems.common.mesh_groups import exchange_degree
from zbench.systems.common.mesh_packs import pack_batch
from zbench.systems.common.mesh_plans import LIMITS, least_degree, pack_limits
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.mesh import Mesh
from zbench.systems.ring import Ring
from zbench.systems.ulysses import Ulysses


def batch_of(*lengths: int) -> Batch:
    return Batch(np.array(lengths, np.int64), seed=0, step=0)


@given(
    st.data(), st.sampled_from(["ring", "allgather", "ulysses"]), st.sampled_from(["arrival", "best_fit", "balanced"])
)
def test_every_mesh_is_correct_and_nothing_leaves_a_group(data: st.DataObject, method: str, batching: str) -> None:
    cost = data.draw(costs(2, 4))
    ranks = cost.cluster.num_ranks
    degree = data.draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0]))
    batch = data.draw(batches(20_000, 20))
    plans = Mesh(cost, method, degree, batching, pack_tokens=data.draw(st.sampled_from([None, 500]))).plan(batch)
    verify_step(batch, plans, cost)
    for plan in plans:
        for ops in (plan.forward, plan.backward):
            moved = ops.take(np.flatnonzero(ops.kind == TRANSFER))
            assert (moved.src // degree == moved.dst // degree).all()


@pytest.mark.parametrize(("method", "alike"), [("ring", Ring), ("allgather", AllGather), ("ulysses", Ulysses)])
def test_one_group_of_all_ranks_is_the_system_of_that_name(cost: Cost, method: str, alike: type) -> None:
    batch = batch_of(4000, 900, 37)
    mine, theirs = Mesh(cost, method, cost.cluster.num_ranks).plan(batch), alike(cost).plan(batch)
    executor = Simulated(cost)
    assert executor.step(batch, mine) == executor.step(batch, theirs)


def test_the_degree_is_the_least_that_holds_the_context_limit() -> None:
    assert [least_degree(longest, 100, 12) for longest in (1, 100, 101, 201, 401, 601, 5000)] == [1, 1, 2, 3, 6, 12, 12]


def test_the_default_degree_holds_what_its_ranks_receive_too() -> None:
    """Eight ranks have room for the sequence's own tokens, and not for the others' keys beside them while a layer
    attends; with many words the loss would need more than that."""
    cost = small(2, 8, memory=6.4e9)
    cost = replace(cost, model=replace(cost.model, vocab=1000))
    longest = 8 * fitting_tokens(cost)
    batch, clock = batch_of(longest), StepEstimate(cost)
    assert not clock.fits(batch, Mesh(cost, "allgather", 8, context_limit=longest).plan(batch))
    assert clock.fits(batch, Mesh(cost, "allgather", context_limit=longest).plan(batch))


def test_a_mesh_of_its_own_degree_does_not_look_at_the_batch(cost: Cost) -> None:
    """Short batches and long ones are planned in the same groups, by the context limit alone."""
    mesh = Mesh(cost, context_limit=int(1.5 * fitting_tokens(cost)))
    plan = mesh.plan(batch_of(64, 64))[0]
    crossed = plan.forward.take(np.flatnonzero(plan.forward.kind == TRANSFER))
    assert len(crossed)
    assert (crossed.src // 2 == crossed.dst // 2).all()


def test_arrival_fills_packs_in_order(cost: Cost) -> None:
    found = pack_batch("arrival", np.array([6, 3, 2, 9, 1, 12, 4]), 2, 10, cost)
    assert found.tolist() == [[0, 0], [0, 0], [0, 1], [1, 0], [1, 0], [1, 1], [2, 0]]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 6000))
def test_packs_hold_at_most_what_they_may(lengths: list[int], groups: int, most: int) -> None:
    tokens = np.array(lengths)
    for batching in ("arrival", "best_fit"):
        found = pack_batch(batching, tokens, groups, most, small(2, 2))
        pack = found[:, 0] * groups + found[:, 1]
        held, count = np.bincount(pack, tokens), np.bincount(pack)
        assert (held[count > 1] <= most).all()
        assert found[:, 1].max() < groups


def test_balanced_packs_differ_less_in_time_than_best_fit_ones(cost: Cost) -> None:
    """One sequence of 30,000 tokens takes longer than 34 of 1,000; as tokens, two of those still go with it."""
    lengths = np.array([30_000] + [1000] * 34)
    load = cost.whole_seconds(lengths, False) + cost.whole_seconds(lengths, True) + 3 * cost.linear_seconds(lengths)

    def fullest(batching: str) -> float:
        return float(np.bincount(pack_batch(batching, lengths, 2, 40_000, cost)[:, 1], load).max())

    assert fullest("balanced") < fullest("best_fit")


def test_micro_batches_fit_memory(cost: Cost) -> None:
    tokens = fitting_tokens(cost)
    batch = batch_of(*[max(tokens // 2, 1)] * 12)
    for method in ("ring", "allgather", "ulysses"):
        plans = Mesh(cost, method, 2).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


def test_all_to_alls_are_as_wide_as_heads_allow() -> None:
    assert [exchange_degree(degree, 6) for degree in (1, 2, 4, 6, 8, 12)] == [1, 2, 4, 6, 4, 6]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("method", "tree", "system.method is 'tree'; it takes ring, allgather, ulysses"),
        ("batching", "lpt", "system.batching is 'lpt'; it takes arrival, best_fit, balanced"),
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("degree", True, "system.degree is True; it takes a whole number of at least 1, or null"),
        ("pack_tokens", 0, "system.pack_tokens is 0; it takes a whole number of at least 1, or null"),
        ("context_limit", "4K", "system.context_limit is '4K'; it takes a whole number of at least 1, or null"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        Mesh(cost, **{key: value})  # type: ignore[arg-type]


@given(st.integers(1, 10**7), st.integers(1, 8))
def test_limits_rise_from_an_even_share_to_what_fits(tokens: int, num_nodes: int) -> None:
    cost = small(num_nodes, 4)
    found = [one["pack_tokens"] for one in pack_limits(cost, tokens, None)]
    free = fitting_tokens(cost)
    assert found == sorted(set(found))
    assert found[-1] == free
    even = tokens / (4 * num_nodes)
    assert all(even <= most < free for most in found[:-1])
    assert len(found) == 1 + len(LIMITS) or even < 4 or LIMITS[-1] * even > free - 1
    assert pack_limits(cost, tokens, 77) == []
