"""Pieces on any ranks: exact, with nothing sent twice, in rounds, whatever homes and workers are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.correctness.reference.interpreter import Tensors, dense_attention, execute
from zbench.describe.model import DKV, KV, O, Q
from zbench.passes.reverse import MODES, Mode
from zbench.plans.build import Builder
from zbench.plans.plan import ATTEND, TRANSFER, Ints, Plan
from zbench.proof.verify import verify
from zbench.systems.common.scattered import FULL, Pieces, needed, scatter, with_backward


@st.composite
def scattered(draw: st.DrawFn) -> tuple[Ints, int, Pieces]:
    """Lengths, ranks, and their pieces: cut, housed and worked on anywhere."""
    ranks = draw(st.integers(1, 6))
    lengths = np.array(draw(st.lists(st.integers(1, 30), min_size=1, max_size=6)), np.int64)
    seq, start, stop = [], [], []
    for index, length in enumerate(lengths.tolist()):
        cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=4))})
        seq += [index] * (len(cuts) - 1)
        start += cuts[:-1]
        stop += cuts[1:]
    some = st.lists(st.integers(0, ranks - 1), min_size=len(seq), max_size=len(seq))
    home = np.array(draw(some))
    worker = home if draw(st.booleans()) else np.array(draw(some))
    return lengths, ranks, Pieces(np.array(seq), np.array(start), np.array(stop), home, worker)


def laid(lengths: Ints, ranks: int, pieces: Pieces, per_message: int = 1, per_stage: int = 1) -> Plan:
    builder = Builder(lengths, ranks, 2)
    scatter(builder, pieces, per_message, per_stage)
    return builder.build()


@given(scattered(), st.sampled_from((1, 2, FULL)), st.integers(1, 3), st.sampled_from(MODES))
def test_outputs_and_gradients_are_those_of_dense_attention(
    case: tuple[Ints, int, Pieces], per_message: int, per_stage: int, mode: Mode
) -> None:
    lengths, ranks, pieces = case
    plan = with_backward(laid(lengths, ranks, pieces, per_message, per_stage), mode)
    verify(plan)
    given = Tensors.random(2, 1, int(lengths.sum()), 3)
    assert execute(plan, given).difference(dense_attention(lengths, given)) < 1e-12


@given(scattered())
def test_what_is_sent_is_what_is_needed_once(case: tuple[Ints, int, Pieces]) -> None:
    """kv of every piece to every other rank that works on it or later; q and o of pieces worked on elsewhere."""
    lengths, ranks, pieces = case
    plan = laid(lengths, ranks, pieces)
    index = list(zip(pieces.seq, pieces.home, pieces.worker, strict=True))
    wanted = {
        (piece, int(worker))
        for piece, (seq, home, _) in enumerate(index)
        for later, (other, _, worker) in enumerate(index)
        if other == seq and later >= piece and worker != home
    }
    assert sorted(zip(*(column.tolist() for column in needed(pieces)), strict=True)) == sorted(wanted)
    sent = plan.forward.take(plan.forward.kind == TRANSFER)
    away = int((pieces.home != pieces.worker).sum())
    assert {int(tensor): int((sent.tensor == tensor).sum()) for tensor in (Q, KV, O)} == {
        Q: away,
        KV: len(wanted),
        O: away,
    }


def test_kv_comes_in_rounds_and_attends_follow_their_stage() -> None:
    """One sequence in 6 blocks on 6 ranks: rank r needs r blocks, rank 0's is sent 5 times: 5 rounds."""
    starts = 10 * np.arange(6)
    pieces = Pieces(0 * starts, starts, starts + 10, np.arange(6), np.arange(6))
    plan = laid(np.array([60]), 6, pieces)
    kv = plan.forward.take(plan.forward.tensor == KV)
    assert len(kv) == 15
    attends = plan.forward.take(plan.forward.kind == ATTEND)
    assert np.bincount(attends.src).tolist() == [1, 2, 3, 4, 5, 6]
    one = laid(np.array([60]), 6, pieces, per_stage=5)
    assert np.bincount(one.forward.src[one.forward.kind == ATTEND]).tolist() == [1, 2, 2, 2, 2, 2]


def test_kv_fetched_again_comes_last_first() -> None:
    starts = 10 * np.arange(4)
    pieces = Pieces(0 * starts, starts, starts + 10, np.arange(4), np.arange(4))
    plan = with_backward(laid(np.array([40]), 4, pieces), "regather")
    forward = plan.forward.blocks[plan.forward.tensor == KV]
    again = plan.backward.tensor == KV
    assert plan.backward.blocks[again].tolist() == forward[::-1].tolist()
    assert again[: len(forward)].all()
    assert (plan.backward.tensor == DKV).sum() == len(forward)


def test_whole_sequences_share_a_rank_s_block() -> None:
    pieces = Pieces(np.arange(5), np.zeros(5, int), np.full(5, 9), np.array([0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1]))
    plan = laid(np.full(5, 9), 2, pieces)
    assert len(plan.blocks) == 2
    assert len(plan.forward) == 2


@pytest.mark.parametrize("per_message", [1, FULL])
def test_messages_carry_as_many_blocks_as_they_may(per_message: int) -> None:
    pieces = Pieces(np.zeros(4, int), np.arange(4), np.arange(1, 5), np.zeros(4, int), np.array([0, 0, 0, 1]))
    plan = laid(np.array([4]), 2, pieces, per_message)
    kv = plan.forward.take(plan.forward.tensor == KV)
    assert len(kv) == (4 if per_message == 1 else 1)
    assert plan.list_tokens[kv.blocks].sum() == 4
