"""Lists of ids, and operations as columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proof.test_verify import laid
from zbench.describe.model import KV
from zbench.plans.columns import ATTEND, COLUMNS, TYPES, Lists, Ops, in_order
from zbench.proof.verify import PlanError, verify

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=8)


@given(ROWS)
def test_lists_hold_what_they_were_given(rows: list[list[int]]) -> None:
    lists = Lists.of(rows)
    assert len(lists) == len(rows)
    assert [lists[index].tolist() for index in range(len(rows))] == rows
    assert lists.lengths.tolist() == [len(row) for row in rows]
    assert lists.items.dtype == lists.offsets.dtype == np.int64


def test_singletons() -> None:
    assert [row.tolist() for row in map(Lists.singletons(3).__getitem__, range(3))] == [[0], [1], [2]]


def test_transfers_and_attends_broadcast_scalars() -> None:
    ops = Ops.transfers(KV, np.array([0, 1]), np.array([1, 2]), (0, np.array([2, 3])), np.array([5, 6]))
    assert ops.tensor.tolist() == [KV, KV]
    assert ops.head_lo.tolist() == [0, 0]
    assert ops.head_hi.tolist() == [2, 3]
    assert ops.kv_blocks.tolist() == ops.via.tolist() == [-1, -1]
    attends = Ops.attends(np.array([3]), (0, 4), np.array([1]), np.array([2]))
    assert (attends.src[0], attends.dst[0], attends.tensor[0]) == (3, 3, -1)
    both = Ops.concatenate([ops, attends])
    assert len(both) == 3
    assert all(getattr(both, name).dtype == TYPES[name] for name in COLUMNS)
    assert len(Ops.concatenate([])) == 0
    assert both.take(np.array([2])).kind.tolist() == [ATTEND]
    assert both.take(both.kind == ATTEND).src.tolist() == [3]


def test_columns_are_narrow_where_values_fit_and_wide_where_not() -> None:
    one = np.array([2**31 - 1])
    assert Ops.attends(one, (0, 1), one, one).blocks.dtype == np.int32
    wide = Ops.attends(np.array([0, 0]), (0, 1), np.array([0, 2**31]), np.array([0, 0])).blocks
    assert (wide.dtype, wide.tolist()) == (np.int64, [0, 2**31])  # for verify to tell


@pytest.mark.parametrize("value", [70001, np.int64(70001), np.array(70001), -(2**15) - 1])
def test_a_single_number_that_does_not_fit_makes_a_wide_column(value: int) -> None:
    ops = Ops.transfers(0, np.array([0, 1]), np.array([1, 0]), (np.int64(0), value), np.array([0, 0]))  # type: ignore[arg-type]
    assert ops.head_hi.tolist() == [value, value]
    assert ops.head_lo.dtype == np.int16
    plan = laid()
    with pytest.raises(
        PlanError, match=rf"^plan\.forward\.head_hi\[0\] is {value}; it takes whole numbers from -32768"
    ):
        verify(plan.with_(forward=ops))


@pytest.mark.parametrize("value", [2.5, 2**70])
def test_a_single_number_that_no_integers_hold_is_told_by_verify(value: int) -> None:
    ops = Ops.attends(np.array([0]), (0, value), np.array([0]), np.array([0]))
    with pytest.raises(
        PlanError, match=r"^plan\.forward\.head_hi is an array of (float64|object) and shape \(1,\); it"
    ):
        verify(laid().with_(forward=ops))


def test_masked_columns_stay_masked() -> None:
    masked = np.ma.masked_array([0, 1], [True, False])
    ops = Ops.attends(np.array([0, 1]), (0, 1), masked, np.array([0, 0]))
    with pytest.raises(PlanError, match=r"^plan\.forward\.blocks is of type MaskedArray; it takes"):
        verify(laid().with_(forward=ops))


def test_chunks_are_all_operations_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zbench.plans.columns.CHUNK", 3)
    ops = Ops.attends(np.arange(7), (0, 1), np.arange(7), np.arange(7))
    assert [(begin, part.src.tolist()) for begin, part in ops.chunks()] == [(0, [0, 1, 2]), (3, [3, 4, 5]), (6, [6])]


def test_pieces_are_in_order_or_not() -> None:
    seq = np.array([0, 0, 1])
    assert in_order(seq, np.array([0, 5, 0]))
    assert not in_order(seq, np.array([5, 0, 0]))
    assert not in_order(seq[::-1], np.array([0, 0, 5]))
