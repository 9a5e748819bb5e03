"""Seconds of matmuls by their shape: whole tiles, whole waves, and no less than memory takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL
from zbench.cost.matmul import matmul_seconds
from zbench.describe.arrays import Floats

A100 = replace(REAL, matmul_flops=1e14, copy_bandwidth=1e30, multiprocessors=108, matmul_shapes=True)
SIZES = st.integers(1, 20_000)


def seconds(rows: float, columns: float, inner: float, shapes: bool = True, copy_bandwidth: float = 1e30) -> float:
    device = replace(A100, matmul_shapes=shapes, copy_bandwidth=copy_bandwidth)
    sizes: list[Floats] = [np.array([size], np.float64) for size in (rows, columns, inner)]
    return float(matmul_seconds(device, *sizes, 2)[0])


def test_the_guides_example() -> None:
    """1,792 x 1,792 is 98 tiles of 256 x 128, one wave of 108; a little more, and the best is three waves of halves."""
    full = 2 * 108 * 256 * 128 * 64 / 1e14
    assert seconds(1792, 1792, 64) == pytest.approx(full)
    assert seconds(1792, 1921, 64) == pytest.approx(1.5 * full)


@given(SIZES, SIZES, SIZES)
def test_no_shape_is_faster_than_full_waves(rows: int, columns: int, inner: int) -> None:
    flat = 2 * rows * columns * inner / 1e14
    assert seconds(rows, columns, inner, False) == pytest.approx(flat)
    assert seconds(rows, columns, inner) >= flat * (1 - 1e-12)
    assert seconds(rows, columns, inner) == seconds(columns, rows, inner)


@given(SIZES, st.integers(1, 4000), SIZES, st.integers(2, 16))
def test_slices_take_no_less_together(rows: int, columns: int, inner: int, slices: int) -> None:
    whole = seconds(rows, slices * columns, inner)
    assert slices * seconds(rows, columns, inner) >= whole * (1 - 1e-12)
    assert seconds(rows + 1, slices * columns, inner) >= whole


def test_large_matmuls_have_the_rate_of_full_waves() -> None:
    assert seconds(65_536, 16_384, 4096) / seconds(65_536, 16_384, 4096, False) == pytest.approx(1, abs=0.01)


def test_few_rows_wait_for_memory() -> None:
    assert seconds(1, 4096, 4096, True, 1e11) == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 1e11)


def test_small_tiles_serve_few_rows_at_a_lower_rate() -> None:
    """One row of tiles of 64 x 64, at half the rate: half of what tiles of 128 x 128 take."""
    assert seconds(64, 64 * 108, 4096) == pytest.approx(2 * 108 * 64 * 64 * 2 * 4096 / 1e14)


def test_no_rows_take_no_time() -> None:
    assert seconds(0, 4096, 4096, True, 1e12) == 0
    assert seconds(0, 4096, 4096, False, 1e12) == 0
