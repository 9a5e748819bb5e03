"""The backward: what travels in every mode, and what stays on a rank between forward and backward."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import costs, forwards, lengths
from zbench.cost.cost import Cost
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.passes import reverse
from zbench.passes.reverse import MODES
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, pack_zigzag, ring, ulysses_ring
from zbench.plans.plan import ATTEND, TRANSFER, Ops, Plan, Transfer
from zbench.proof.verify import verify

MIRROR = {Q: DQ, KV: DKV, O: DO}


def a_ring(tokens: np.ndarray, ranks: int, heads: int = 2) -> Plan:
    builder = Builder(tokens, ranks, heads)
    ring(builder, np.arange(len(tokens)), np.zeros(len(tokens), np.int64), np.arange(ranks)[None])
    return builder.build()


def volume(plan: Plan, ops: Ops, tensor: int) -> int:
    """Tokens x heads of a tensor that travel."""
    mine = (ops.kind == TRANSFER) & (ops.tensor == tensor)
    return int((plan.list_tokens[ops.blocks] * (ops.head_hi - ops.head_lo))[mine].sum())


@given(st.integers(2, 9), st.integers(1, 5))
def test_a_ring_s_backward_moves_what_transformer_engine_s_does(ranks: int, size: int) -> None:
    """Forward: kv on G - 1 hops. Backward, carried: dkv on G - 1, and kv back along the chain on G - 2.

    Transformer Engine sends kv on one hop more, back to the rank it started from, which here still has it.
    """
    forward = a_ring(np.array([2 * ranks * size]), ranks)
    tokens = 2 * ranks * size * 2  # x heads
    hops = {"keep": 0, "carry": ranks - 2, "regather": ranks - 1}
    for mode in MODES:
        plan = reverse(forward, mode)
        assert volume(plan, plan.forward, KV) == tokens * (ranks - 1)
        assert volume(plan, plan.backward, DKV) == tokens * (ranks - 1)
        assert volume(plan, plan.backward, KV) == tokens * hops[mode]
        kept = plan.forward.take(plan.forward.keep == 1)
        held = {"keep": ranks - 1, "carry": 1, "regather": 0}
        assert volume(plan, kept, KV) == tokens * held[mode]


@given(st.data(), costs())
def test_gradients_mirror_what_was_sent(data: st.DataObject, cost: Cost) -> None:
    forward = data.draw(forwards(cost))
    for mode in MODES:
        plan = reverse(forward, mode)
        verify(plan)
        assert plan.backward_mode == mode
        for tensor, gradient in MIRROR.items():
            assert volume(plan, plan.backward, gradient) == volume(plan, plan.forward, tensor)
        out, back = (
            [view for view in plan.views(ops) if isinstance(view, Transfer)] for ops in (plan.forward, plan.backward)
        )
        names = {"q": "dq", "kv": "dkv", "o": "do"}
        sent = [(view.tensor, view.src, view.dst, view.blocks, view.heads) for view in back]
        due = [(names[view.tensor], view.dst, view.src, view.blocks, view.heads) for view in out]
        assert [one for one in sent if one[0] != "kv"] == due[::-1]
        attends = [ops.take(ops.kind == ATTEND) for ops in (plan.forward, plan.backward)]
        for column in ("src", "head_lo", "head_hi", "blocks", "kv_blocks"):
            assert (getattr(attends[0], column) == getattr(attends[1], column)[::-1]).all()


@given(st.data(), costs())
def test_what_each_mode_keeps_and_fetches(data: st.DataObject, cost: Cost) -> None:
    """keep: all received q and kv stay, nothing travels again; regather: kv travels as before; carry: between."""
    forward = data.draw(forwards(cost))
    plans = {mode: reverse(forward, mode) for mode in MODES}
    sent = volume(forward, forward.forward, KV)
    again = {mode: volume(plan, plan.backward, KV) for mode, plan in plans.items()}
    kept = {mode: volume(plan, plan.forward.take(plan.forward.keep == 1), KV) for mode, plan in plans.items()}
    assert (again["keep"], kept["keep"]) == (0, sent)
    assert (again["regather"], kept["regather"]) == (sent, 0)
    assert again["carry"] + kept["carry"] == sent
    for plan in plans.values():
        assert volume(plan, plan.forward.take(plan.forward.keep == 1), Q) == volume(plan, plan.forward, Q)
        assert not (plan.forward.keep[plan.forward.kind == ATTEND] == 1).any()
        assert not plan.backward.keep.any()


@given(lengths(), st.integers(2, 8))
def test_carry_holds_at_most_one_received_copy_a_rank_in_a_ring(tokens: np.ndarray, ranks: int) -> None:
    plan = reverse(a_ring(tokens, ranks), "carry")
    kept = plan.forward.take(plan.forward.keep == 1)
    assert np.bincount(kept.dst, minlength=ranks).max() <= 1 or len(plan.blocks) < ranks


def test_ulysses_keeps_its_inputs_in_every_mode_but_regather() -> None:
    """kv of an all-to-all goes nowhere from where it arrives, so nobody could carry it back."""
    builder = Builder(np.array([640]), 4, 4)
    ulysses_ring(builder, np.array([0]), np.array([0]), np.arange(4).reshape(1, 1, 4))
    forward = builder.build()
    assert volume(forward, reverse(forward, "carry").backward, KV) == 0
    assert volume(forward, reverse(forward, "regather").backward, KV) == volume(forward, forward.forward, KV)


def test_a_gather_is_regathered_with_the_same_crossings() -> None:
    builder = Builder(np.array([640]), 6, 2)
    all_gather(builder, *pack_zigzag(np.array([640]), 6), np.arange(6).reshape(2, 3))
    plan = reverse(builder.build(), "regather")
    pairs = [
        sorted((v.src, v.dst) for v in plan.views(ops) if getattr(v, "tensor", "") == "kv")
        for ops in (plan.forward, plan.backward)
    ]
    assert pairs[0] == pairs[1]


def test_an_unknown_mode_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^backward is 'drop'; it takes keep, carry, regather$"):
        reverse(a_ring(np.array([8]), 2), "drop")  # type: ignore[arg-type]
