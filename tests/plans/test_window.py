"""A window's segments against looking at every pair, and what attends are left out under one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.describe.test_mask import seen
from tests.plans.test_area import held, scattered
from zbench.describe.mask import FULL, Mask
from zbench.passes import reverse
from zbench.plans.area import HALF, STRIP, TILE, Work, work
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import ATTEND, Ops, Plan
from zbench.plans.segments import Segments, segments, whole_sequences
from zbench.proof.verify import PlanError, verify


def shown(one: Segments) -> list[np.ndarray]:
    """Of every segment, bool [queries, keys]: what a kernel that knows `left` lets its queries see."""
    found = []
    for m, n, diagonal, left in zip(one.queries, one.keys, one.diagonal, one.left, strict=True):
        back = np.arange(m)[:, None] + n - m - np.arange(n)  # behind the diagonal that ends at the bottom right
        visible = (back >= 0) | (not diagonal)
        found.append(visible & ((back <= left) | (left < 0)))
    return found


def rows_of(plan: Plan, index: int) -> np.ndarray:
    """int64 [rows, 2]: (sequence, position) of a list's rows, in list order."""
    b = plan.blocks
    return np.array(
        [
            (b.seq[p], t)
            for block in plan.lists[index]
            for p in np.flatnonzero(b.block == block)
            for t in range(b.start[p], b.stop[p])
        ]
    )


@given(scattered())
def test_segments_show_every_visible_pair_once(plan: Plan) -> None:
    q_list, kv_list = plan.forward.blocks.astype(np.int64), plan.forward.kv_blocks.astype(np.int64)
    for q, kv, one in zip(q_list, kv_list, segments(plan, q_list, kv_list), strict=True):
        queries, keys = rows_of(plan, q), rows_of(plan, kv)
        wanted = (queries[:, None, 0] == keys[:, 0]) & seen(queries[:, 1], keys[:, 1], plan.mask)
        found, at_q, at_k = np.zeros_like(wanted, int), 0, 0
        assert len(set(one.q_rows.tolist())) == len(one.q_rows)  # a query is in one segment
        assert ((one.left == -1) | one.diagonal).all()
        for visible in shown(one):
            m, n = visible.shape
            assert visible.any(axis=1).all()  # no query that sees nothing
            assert visible.any(axis=0).all()  # no key that nobody sees
            rows, columns = one.q_rows[at_q : at_q + m], one.kv_rows[at_k : at_k + n]
            found[np.ix_(rows, columns)] += visible
            at_q, at_k = at_q + m, at_k + n
        assert np.array_equal(found, wanted.astype(int))


@given(scattered())
def test_work_under_a_window_is_that_of_its_segments(plan: Plan) -> None:
    assume(plan.mask.window)
    _, found = work(plan, plan.forward)
    q_list, kv_list = plan.forward.blocks.astype(np.int64), plan.forward.kv_blocks.astype(np.int64)
    for at, one in enumerate(segments(plan, q_list, kv_list)):
        wanted = np.zeros(10, np.int64)
        for visible, diagonal in zip(shown(one), one.diagonal, strict=True):
            m, n = visible.shape
            rows, columns = -(-m // TILE), -(-n // TILE)
            tiles = np.array(
                [
                    [visible[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE].any() for c in range(columns)]
                    for r in range(rows)
                ]
            )
            spare = [tiles[-1].sum() * ((rows * TILE - m) // part) for part in (STRIP, HALF)]
            wanted[[0, 1, 2, 3, 4, 6, 7, 8, 9]] += [visible.sum(), tiles.sum(), m, n, 1, rows, int(diagonal), *spare]
            wanted[5] = max(wanted[5], columns)
        assert [int(getattr(found, name)[at]) for name in Work.__dataclass_fields__] == wanted.tolist()


@given(st.lists(st.integers(1, 700), min_size=1, max_size=4), st.integers(1, 800), st.data())
def test_work_of_pieces_is_that_of_plans(lengths: list[int], window: int, data: st.DataObject) -> None:
    """Whole sequences, and every sequence's second piece against all that it sees."""
    mask = data.draw(st.sampled_from((Mask(window=window), FULL, Mask())))
    cut = [data.draw(st.integers(0, length - 1)) for length in lengths]
    for length, start in zip(lengths, cut, strict=True):
        builder = Builder(np.array([length]), 2, 1, mask)
        parts = [np.array(column) for column in zip((0, 0, start, 0), (0, start, length, 1), strict=True)]
        builder.add_blocks(*parts, np.array([0, 1]))
        everything = builder.add_lists(np.array([[0, 1]]))[0]
        builder.add_ops(Ops.attends(np.array([1]), (0, 1), np.array([1]), np.array([everything if start else 1])))
        plan = builder.build()
        _, found = work(plan, plan.forward)
        piece = Work.pieces(np.array([start]), np.array([length]), np.array([length]), mask)
        assert [getattr(found, name)[0] for name in Work.__dataclass_fields__] == [
            getattr(piece, name)[0] for name in Work.__dataclass_fields__
        ]
    whole, least = Work.whole(np.array(lengths), mask), Work.least(np.array(lengths), mask)
    assert (least.tiles <= whole.tiles).all()
    assert (least.area == whole.area).all()
    assert whole.area.sum() == mask.pairs(np.array(lengths))


@given(st.lists(st.integers(1, 90), min_size=1, max_size=5), st.integers(1, 50))
def test_whole_sequences_are_a_segment_each(lengths: list[int], window: int) -> None:
    mask = Mask(window=window)
    queries, before, diagonal, left = whole_sequences(np.array(lengths), mask)
    one = Segments(np.zeros(0, np.int64), np.zeros(0, np.int64), queries, before, diagonal, left)
    for length, visible in zip(lengths, shown(one), strict=True):
        assert np.array_equal(visible, seen(np.arange(length), np.arange(length), mask))


def test_a_ring_sends_no_further_than_the_window_reaches() -> None:
    """800 tokens over 8 ranks: a window of 150 reaches over the rank before and half of the one before that."""
    builder = Builder(np.array([800]), 8, 2, Mask(window=150))
    ring(builder, np.array([0]), np.array([0]), np.arange(8)[None])
    plan = reverse(builder.build(), "carry")
    verify(plan)
    kind = plan.forward.kind
    assert (kind == ATTEND).sum() == 8 + 7 + 6
    assert (kind != ATTEND).sum() == 7 + 6
    assert (work(plan, plan.forward)[1].area > 0).all()
    assert plan.blocks.start.tolist() == list(range(0, 800, 100))  # consecutive chunks

    short = Builder(np.array([800]), 8, 2, Mask(window=500))
    ring(short, np.array([0]), np.array([0]), np.arange(8)[None])
    assert len(short.build().blocks.start) == 16  # a zigzag
    verify(reverse(short.build(), "keep"))


def test_a_pair_too_many_or_too_few_is_found() -> None:
    builder = Builder(np.array([100]), 4, 1, Mask(window=10))
    ring(builder, np.array([0]), np.array([0]), np.arange(4)[None])
    plan = reverse(builder.build(), "keep")
    verify(plan)
    with pytest.raises(PlanError, match="of 955"):  # 10 * 100 - 45
        verify(plan.with_(forward=plan.forward.take(plan.forward.src != 1)))
    with pytest.raises(PlanError, match="visible"):
        verify(plan.with_(mask=Mask(window=60)))
    assert held(plan, 0) == [0]
    with pytest.raises(PlanError, match=r"plan.mask is of type str; it takes a zbench.describe.mask.Mask"):
        verify(replace(plan, mask="window:10"))
