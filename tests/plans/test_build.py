"""The builder: what is left when blocks are empty, and how lists keep their names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import costs, forwards
from zbench.cost.cost import Cost
from zbench.describe.model import KV, O, Q
from zbench.passes import reverse
from zbench.passes.reverse import MODES
from zbench.plans.build import Builder
from zbench.plans.patterns import ring, ulysses_ring
from zbench.plans.plan import ATTEND, TRANSFER, Attend, Ops, Transfer
from zbench.proof.verify import verify


@given(st.data(), costs())
def test_no_block_is_empty_and_nothing_names_one(data: st.DataObject, cost: Cost) -> None:
    plan = data.draw(forwards(cost))
    assert (plan.blocks.tokens > 0).all()
    assert plan.blocks.tokens.sum() == plan.lengths.sum()
    assert (plan.lists.lengths > 0).all()
    assert (plan.forward.blocks >= 0).all()
    assert ((plan.forward.kv_blocks >= 0) == (plan.forward.kind == ATTEND)).all()
    order = np.lexsort((plan.blocks.start, plan.blocks.seq))
    assert (order == np.arange(len(order))).all()


@given(st.data(), costs())
def test_every_copy_is_used_by_a_later_attend(data: st.DataObject, cost: Cost) -> None:
    """By following each copy: an attend on its rank reads it, or it is sent on to one that does."""
    plan = data.draw(forwards(cost))
    wanted: set[tuple[str, int, int]] = set()
    for view in reversed(list(plan.views(plan.forward))):
        if isinstance(view, Attend):
            wanted |= {("q", block, view.rank) for block in view.q_blocks}
            wanted |= {("kv", block, view.rank) for block in view.kv_blocks}
        elif view.tensor != "o":
            assert isinstance(view, Transfer)
            assert any((view.tensor, block, view.dst) in wanted for block in view.blocks)
            wanted |= {(view.tensor, block, view.src) for block in view.blocks}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3, 7, 16])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_ring_longer_than_its_sequence(tokens: int, ranks: int, mode: str) -> None:
    """Ranks without queries get no keys, unless they pass them on; the backward finds its way home all the same."""
    builder = Builder(np.array([tokens]), ranks, 2)
    ring(builder, np.array([0]), np.array([0]), np.arange(ranks)[None])
    plan = reverse(builder.build(), mode)
    verify(plan)
    busy = min(tokens, ranks)
    assert len(plan.blocks) == busy if tokens <= ranks else ranks
    assert (plan.forward.kind == ATTEND).sum() == len(plan.blocks) ** 2
    if tokens == 1:
        assert not (plan.forward.kind == TRANSFER).any()


def test_lists_keep_their_blocks_when_others_vanish() -> None:
    """Two rows of two ranks over one token: only one of four blocks has it."""
    builder = Builder(np.array([1]), 4, 2)
    ulysses_ring(builder, np.array([0]), np.array([0]), np.arange(4).reshape(1, 2, 2))
    plan = builder.build()
    assert len(plan.blocks) == 1
    home = int(plan.blocks.home[0])
    other = home ^ 1  # the rank beside it in its row
    attends = [view for view in plan.views(plan.forward) if isinstance(view, Attend)]
    moves = [view for view in plan.views(plan.forward) if isinstance(view, Transfer)]
    assert sorted(view.rank for view in attends) == sorted((home, other))
    assert {(view.tensor, view.src, view.dst) for view in moves} == {
        ("q", home, other),
        ("kv", home, other),
        ("o", other, home),
    }


def test_names_of_blocks_and_lists_do_not_collide() -> None:
    builder = Builder(np.array([4, 4]), 2, 1)
    first = builder.add_blocks(np.array([0]), np.array([0]), np.array([4]), np.array([0]), np.array([0]))
    second = builder.add_blocks(np.array([1]), np.array([0]), np.array([4]), np.array([0]), np.array([1]))
    lists = builder.add_lists(np.array([[first, second], [second, first]]))
    assert (first, second) == (0, 1)
    assert lists.tolist() == [-2, -3]
    assert builder.add_lists(np.array([[first]])).tolist() == [-4]
    zero = np.zeros(1, np.int64)
    builder.add_ops(
        Ops.transfers(KV, zero + 1, zero, (0, 1), zero + second),
        Ops.transfers(Q, zero + 1, zero, (0, 1), zero + second),
        Ops.attends(zero, (0, 1), lists[:1], lists[1:2]),
        Ops.transfers(O, zero, zero + 1, (0, 1), zero + second),
    )
    plan = builder.build()
    attend = next(view for view in plan.views(plan.forward) if isinstance(view, Attend))
    assert (attend.q_blocks, attend.kv_blocks) == ((0, 1), (1, 0))
    verify(reverse(plan, "keep"))
