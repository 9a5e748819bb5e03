"""Homes after planning: where attention is, or even; whoever attends to what stays, and nothing moves that need not."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.helpers.strategies import costs, forwards
from zbench.cost.cost import Cost
from zbench.passes import remap, reverse, route
from zbench.passes.homes import with_attention_homes, with_even_homes
from zbench.passes.reverse import MODES, Mode
from zbench.passes.route import narrowed
from zbench.plans.area import work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ulysses_ring
from zbench.plans.plan import ATTEND, TRANSFER, Plan, Transfer
from zbench.proof.verify import verify
from zbench.systems.common.scattered import FULL, Pieces, scatter


def attended(plan: Plan) -> Counter[tuple[int, int, int]]:
    """The (query, key) pairs that every rank attends with, by rank and heads."""
    found: Counter[tuple[int, int, int]] = Counter()
    for ops in (plan.forward, plan.backward):
        at, amount = work(plan, ops)
        for one, area in zip(at.tolist(), amount.area.tolist(), strict=True):
            found[int(ops.src[one]), int(ops.head_lo[one]), int(ops.head_hi[one])] += int(area)
    return +found


def sent(plan: Plan) -> int:
    """Tokens times heads that transfers have, whatever they carry."""
    return sum(
        int(((ops.head_hi.astype(np.int64) - ops.head_lo) * plan.list_tokens[ops.blocks])[ops.kind == TRANSFER].sum())
        for ops in (plan.forward, plan.backward)
    )


@given(st.data(), costs(), st.sampled_from(MODES))
def test_tokens_that_remapping_moved_live_where_they_are_attended_again(
    data: st.DataObject, cost: Cost, mode: Mode
) -> None:
    plan = data.draw(forwards(cost))
    moved = route(reverse(remap(plan, cost, 0), mode), cost)
    found = with_attention_homes(moved)
    verify(found)
    assert attended(found) == attended(moved)
    assert sent(found) <= sent(moved)
    assert with_attention_homes(found) is found


@given(st.data(), costs(), st.sampled_from(MODES))
def test_even_homes_are_remapping_s_of_a_plan_with_a_backward(data: st.DataObject, cost: Cost, mode: Mode) -> None:
    plan = data.draw(forwards(cost, 600))
    given = reverse(plan, mode)
    if data.draw(st.booleans()):
        given = narrowed(route(given, cost), cost, 1)  # lists of NICs for each sender's
    found = with_even_homes(given, cost)
    verify(found)
    assert (found is given) == (remap(plan, cost) is plan)
    assert found.backward_mode == mode
    assert (found.tokens_per_rank == remap(plan, cost).tokens_per_rank).all()
    assert attended(found) == attended(reverse(plan, mode))


@given(st.data(), costs(), st.sampled_from(MODES))
def test_even_homes_in_a_node_move_nothing_across(data: st.DataObject, cost: Cost, mode: Mode) -> None:
    plan = reverse(data.draw(forwards(cost, 600)), mode)
    found, each = with_even_homes(plan, cost, 0, across=False), cost.cluster.gpus_per_node
    verify(found)
    before, after = (one.tokens_per_rank.reshape(-1, each) for one in (plan, found))
    assert (before.sum(axis=1) == after.sum(axis=1)).all()
    assert (np.ptp(after, axis=1) <= 1).all()
    assert attended(found) == attended(plan)


@pytest.mark.parametrize("mode", MODES)
def test_whole_sequences_that_were_moved_away_send_nothing_where_they_are_attended(mode: Mode) -> None:
    """Two ranks, one of which attends to everything: with even homes half of it is sent there and back."""
    builder = Builder(np.array([600, 600, 600, 600]), 2, 4)
    local(builder, np.arange(4), np.zeros(4, np.int64))
    plan = reverse(builder.build(), mode)
    even = with_even_homes(plan, small(1, 2))
    assert even.tokens_per_rank.tolist() == [1200, 1200]
    # q, kv and o forward, do, dq and dkv backward, and kv once more where it does not stay.
    assert sent(even) == 1200 * 4 * (7 if mode == "regather" else 6)
    found = with_attention_homes(even)
    assert found.tokens_per_rank.tolist() == [2400, 0]
    assert sent(found) == 0
    assert (found.forward.kind == ATTEND).all()


@pytest.mark.parametrize("mode", MODES)
def test_keys_that_their_old_home_uses_are_sent_back_to_it(mode: Mode) -> None:
    """Rank 1 attends with the queries of a sequence's first half, whose keys rank 0 attends with in the other half:
    once the first half lives on rank 1, its keys are what rank 0 is sent, and their gradients what it gives."""
    one, half = np.zeros(2, np.int64), np.array([0, 400])
    builder = Builder(np.array([800]), 2, 4)
    scatter(builder, Pieces(one, half, half + 400, one, np.array([1, 0])), FULL, 1)
    plan = reverse(builder.build(), mode)
    found = with_attention_homes(plan)
    verify(found)
    assert found.tokens_per_rank.tolist() == [400, 400]
    assert attended(found) == attended(plan)
    keys = [op for op in found.views(found.forward) if isinstance(op, Transfer)]
    assert [(op.tensor, op.src, op.dst, op.heads) for op in keys] == [("kv", 1, 0, (0, 4))]
    back = [op for op in found.views(found.backward) if isinstance(op, Transfer) and op.tensor == "dkv"]
    assert [(op.src, op.dst) for op in back] == [(0, 1)]
    assert sent(found) == sent(plan) - 400 * 4 * 4  # q, o, do and dq stay, keys go the other way


def test_queries_that_several_ranks_attend_with_stay() -> None:
    builder = Builder(np.array([300, 500]), 4, 4)
    ulysses_ring(builder, np.arange(2), np.zeros(2, np.int64), np.arange(4).reshape(1, 1, 4))
    plan = reverse(builder.build(), "keep")
    assert with_attention_homes(plan) is plan
