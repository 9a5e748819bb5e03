"""Seconds of matmuls by their shape: whole tiles, whole waves, and no less than memory takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import REAL
from zbench.cost.matmul import WeightMatmuls, Weights, head_matmuls, layer_matmuls, matmul_seconds
from zbench.describe.arrays import Floats
from zbench.describe.model import Model

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


# -- a layer's, by tokens -------------------------------------------------------------------------------
HIDDEN, BYTES = 1000, 2


def weights(drawn: list[tuple[int, bool]], rows: float = 1.0, alike: float = 1.0) -> WeightMatmuls:
    """Weights of so many columns, which multiply hidden states or make them, on a GPU whose memory matters."""
    columns, reads = np.array([[width, reads] for width, reads in drawn], np.float64).T
    each = np.ones_like(columns)
    of = Weights(columns, rows * each, alike * each, np.inf * each, reads > 0)
    return WeightMatmuls(replace(A100, copy_bandwidth=1e12), HIDDEN, BYTES, of)


WEIGHTS = st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=4)


@given(WEIGHTS, st.lists(st.integers(0, 70_000), min_size=1, max_size=4), st.sampled_from((1.0, 0.375)))
def test_a_layer_s_are_those_of_each_weight(drawn: list[tuple[int, bool]], tokens: list[int], rows: float) -> None:
    """Rows of a table and those beyond it: both passes are sums of single matmuls."""
    of = weights(drawn, rows, 3.0)
    many = np.array(tokens, np.float64)
    ahead, back = np.zeros((2, len(many)))
    for width, reads in drawn:
        hidden, columns, own = np.full(len(many), float(HIDDEN)), np.full(len(many), float(width)), rows * many
        through, made = (hidden, columns), (columns, hidden)
        for found, (inner, result) in ((ahead, through if reads else made), (back, made if reads else through)):
            found += 3 * matmul_seconds(of.device, own, result, inner, BYTES)
        back += 3 * matmul_seconds(of.device, hidden, columns, own, BYTES)
    np.testing.assert_allclose(of.forward(many), ahead, rtol=1e-12)
    np.testing.assert_allclose(of.backward(many), back, rtol=1e-12)


@given(WEIGHTS, st.integers(1, 200_000))
def test_no_tokens_exceed_the_best_rate(drawn: list[tuple[int, bool]], tokens: int) -> None:
    of = weights(drawn)
    many, flops = np.array([float(tokens)]), 2.0 * HIDDEN * tokens * sum(width for width, _ in drawn)
    forward, backward = float(of.forward(many)[0]), float(of.backward(many)[0])
    assert forward >= flops / of.best_rate(1) * (1 - 1e-9)
    assert forward + backward >= 3 * flops / of.best_rate(3) * (1 - 1e-9)
    assert 2 * forward + backward >= 4 * flops / of.best_rate(4) * (1 - 1e-9)
    assert of.best_rate(3) <= A100.matmul_flops * (1 + 1e-9)
    assert of.large_rate <= of.best_rate(3) * (1 + 1e-9)


def test_tokens_at_a_time_are_even_parts_of_all() -> None:
    whole = Model("m", 2, 4096, 32, 8, 128, 11008, 32000)
    chunked = replace(whole, loss_chunk_tokens=300)
    found = head_matmuls(chunked, A100, 1).forward(np.array([750.0]))[0]
    assert found == pytest.approx(3 * head_matmuls(whole, A100, 1).forward(np.array([250.0]))[0])


def test_experts_have_rows_of_all_gpus_that_hold_them() -> None:
    """Eight experts on four GPUs, two each, whose tokens choose two: half of all GPUs' tokens are an expert's."""
    dense = Model("m", 2, 4096, 32, 8, 128, 1408, 32000)
    routed = replace(dense, num_experts=8, experts_per_token=2)
    ahead = [layer_matmuls(model, A100, 1, gpus, 1).forward(np.array([1000.0]))[0]
             for model, gpus in ((dense, 1), (routed, 1), (routed, 4))]  # fmt: skip
    fixed = ahead[0] - seconds(1000, 2 * 1408, 4096) - seconds(1000, 4096, 1408) + seconds(1000, 8, 4096)
    assert ahead[1] == pytest.approx(fixed + 8 * (seconds(250, 2 * 1408, 4096) + seconds(250, 4096, 1408)))
    assert ahead[2] == pytest.approx(fixed + 2 * (seconds(1000, 2 * 1408, 4096) + seconds(1000, 4096, 1408)))
