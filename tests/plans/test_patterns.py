"""The schemes: who owns what, how evenly, and how many messages of which size."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.strategies import clusters, lengths
from zbench.describe.cluster import Cluster
from zbench.describe.model import KV, O, Q
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, local, pack_zigzag, ring, sequence_zigzag, ulysses_ring
from zbench.plans.plan import ATTEND, TRANSFER, Plan
from zbench.proof.verify import verify


def one_group(tokens: np.ndarray, ranks: np.ndarray, heads: int = 4) -> Plan:
    builder = Builder(tokens, int(ranks.max()) + 1, heads)
    count = len(tokens)
    ulysses_ring(builder, np.arange(count), np.zeros(count, np.int64), ranks[None])
    return builder.build()


@given(lengths(), st.integers(1, 9))
def test_a_ring_is_even_to_two_tokens(tokens: np.ndarray, ranks: int) -> None:
    """Chunks differ by a token, remainders are dealt out in turn: a rank owns two chunks of every sequence."""
    plan = one_group(tokens, np.arange(ranks)[:, None])
    assert np.ptp(plan.tokens_per_rank) <= 2


@given(st.integers(1, 40), st.integers(2, 8), st.integers(1, 4))
def test_zigzag_gives_rank_i_chunks_i_and_last_minus_i(sequences: int, ranks: int, size: int) -> None:
    tokens = np.full(sequences, 2 * ranks * size)
    seq, start, stop, owner = sequence_zigzag(tokens, ranks)
    assert (stop - start == size).all()
    chunk = start // size
    assert (owner == np.minimum(chunk, 2 * ranks - 1 - chunk)).all()
    assert np.bincount(seq).tolist() == [2 * ranks] * sequences


def test_rounding_is_dealt_out_over_all_ranks() -> None:
    """1,000 sequences of 1,025 tokens over 512 ranks: always starting at chunk 0 would give rank 0 1,000 more."""
    _, start, stop, owner = sequence_zigzag(np.full(1000, 1025), 512)
    owned = np.bincount(owner, weights=stop - start, minlength=512)
    assert np.ptp(owned) <= 2


@given(lengths(), st.integers(1, 9))
def test_pack_cuts_the_batch_as_one_sequence(tokens: np.ndarray, ranks: int) -> None:
    seq, start, stop, owner = pack_zigzag(tokens, ranks)
    begin = np.cumsum(tokens) - tokens
    position = np.concatenate([np.arange(a, b) + begin[s] for s, a, b in zip(seq, start, stop, strict=True)])
    assert position.tolist() == list(range(int(tokens.sum())))
    who = np.repeat(owner, stop - start)
    sizes = np.array([len(part) for part in np.array_split(np.arange(len(who)), 2 * ranks)])
    expected = np.repeat(np.minimum(np.arange(2 * ranks), 2 * ranks - 1 - np.arange(2 * ranks)), sizes)
    assert who.tolist() == expected.tolist()


@given(lengths(), st.integers(1, 4), st.integers(1, 4), st.integers(4, 6))
def test_rows_are_cut_evenly_over_their_ranks(tokens: np.ndarray, rows: int, cols: int, heads: int) -> None:
    plan = one_group(tokens, np.arange(rows * cols).reshape(rows, cols), heads)
    owned = plan.tokens_per_rank.reshape(rows, cols)
    assert (np.ptp(owned, axis=1) <= 1).all()
    assert np.ptp(owned.sum(axis=1)) <= 2
    verify(reverse(plan, "keep"))


def test_a_ring_sends_kv_once_round() -> None:
    plan = one_group(np.array([640]), np.arange(5)[:, None])
    ops = plan.forward
    assert (ops.kind == ATTEND).sum() == 25
    assert (ops.kind == TRANSFER).sum() == 5 * 4
    assert set(ops.tensor[ops.kind == TRANSFER].tolist()) == {KV}
    moves = ops.take(ops.kind == TRANSFER)
    assert ((moves.src + 1) % 5 == moves.dst).all()


def test_ulysses_sends_every_pair_one_message_a_tensor() -> None:
    plan = one_group(np.array([640]), np.arange(4)[None], heads=6)
    ops = plan.forward.take(plan.forward.kind == TRANSFER)
    pairs = {(s, d) for s in range(4) for d in range(4) if s != d}
    for tensor in (Q, KV, O):
        mine = ops.take(ops.tensor == tensor)
        assert Counter(zip(mine.src.tolist(), mine.dst.tolist(), strict=True)) == Counter(pairs)
    attends = plan.forward.take(plan.forward.kind == ATTEND)
    heads = sorted(zip(attends.head_lo.tolist(), attends.head_hi.tolist(), strict=True))
    assert heads == [(0, 1), (1, 3), (3, 4), (4, 6)]


def test_ulysses_rounds_never_send_two_messages_to_one_rank() -> None:
    plan = one_group(np.array([640]), np.arange(4)[None], heads=4)
    q = plan.forward.take((plan.forward.kind == TRANSFER) & (plan.forward.tensor == Q))
    for turn in range(3):
        assert len(set(q.dst[4 * turn : 4 * turn + 4].tolist())) == 4
        assert len(set(q.src[4 * turn : 4 * turn + 4].tolist())) == 4


def test_more_ranks_than_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="an all-to-all over 4 ranks needs as many heads; the model has 3"):
        one_group(np.array([64]), np.arange(4)[None], heads=3)


@given(lengths(), clusters())
def test_all_gather_crosses_each_node_border_once_a_block(tokens: np.ndarray, cluster: Cluster) -> None:
    ranks = cluster.num_ranks
    builder = Builder(tokens, ranks, 2)
    grid = np.arange(ranks).reshape(cluster.num_nodes, -1)
    all_gather(builder, *pack_zigzag(tokens, ranks), grid)
    plan = builder.build()
    verify(reverse(plan, "regather"))
    assume(len(plan.blocks) == ranks)
    ops = plan.forward.take(plan.forward.kind == TRANSFER)
    across = cluster.node_of[ops.src] != cluster.node_of[ops.dst]
    assert across.sum() == ranks * (cluster.num_nodes - 1)
    assert (~across).sum() == ranks * cluster.num_nodes * (cluster.gpus_per_node - 1)
    assert (ops.src[across] % cluster.gpus_per_node == ops.dst[across] % cluster.gpus_per_node).all()
    assert (plan.forward.kind == ATTEND).sum() == ranks


def test_many_groups_at_once_are_the_groups_one_by_one() -> None:
    tokens = np.array([50, 60, 70, 80])
    together = Builder(tokens, 6, 2)
    ring(together, np.arange(4), np.array([0, 1, 0, 1]), np.array([[0, 1, 2], [3, 4, 5]]))
    apart = Builder(tokens, 6, 2)
    ring(apart, np.array([0, 2]), np.zeros(2, np.int64), np.array([[0, 1, 2]]))
    ring(apart, np.array([1, 3]), np.zeros(2, np.int64), np.array([[3, 4, 5]]))
    one, two = together.build(), apart.build()
    verify(reverse(one, "carry"))
    verify(reverse(two, "carry"))
    assert len(one.forward) == len(two.forward)
    assert abs(one.tokens_per_rank - two.tokens_per_rank).max() <= 2


def test_local_is_one_attend_a_rank_and_no_transfer() -> None:
    builder = Builder(np.array([5, 6, 7]), 4, 2)
    local(builder, np.arange(3), np.array([2, 0, 2]))
    plan = builder.build()
    assert plan.tokens_per_rank.tolist() == [6, 0, 12, 0]
    assert plan.forward.kind.tolist() == [ATTEND] * 2
    assert len(plan.blocks) == 2


def test_a_double_ring_brings_every_row_once_and_crosses_windows_once_a_lap() -> None:
    """8 rows in windows of 4: 7 arrivals a rank, one of them from the same place in the window before."""
    builder = Builder(np.array([800]), 8, 2)
    ulysses_ring(builder, np.zeros(1, np.int64), np.zeros(1, np.int64), np.arange(8).reshape(1, 8, 1), 4)
    plan = reverse(builder.build(), "carry")
    verify(plan)
    moves = plan.forward.take(plan.forward.kind == TRANSFER)
    assert sorted(zip(moves.dst.tolist(), moves.blocks.tolist(), strict=True)) == [
        (rank, block) for rank in range(8) for block in range(8) if block != rank
    ]
    across = moves.src // 4 != moves.dst // 4
    assert np.bincount(moves.dst[across]).tolist() == [1] * 8
    assert (moves.src[across] % 4 == moves.dst[across] % 4).all()


@pytest.mark.parametrize("inner", [0, 3])
def test_an_inner_ring_has_to_divide_the_ring(inner: int) -> None:
    builder = Builder(np.array([80]), 8, 2)
    with pytest.raises(ValueError, match=f"an inner ring of {inner} ranks does not divide a ring of 8"):
        ulysses_ring(builder, np.zeros(1, np.int64), np.zeros(1, np.int64), np.arange(8).reshape(1, 8, 1), inner)
