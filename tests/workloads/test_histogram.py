"""Histograms against their own table, and the tables that are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.workloads.histogram import Histogram


def make(bins: object) -> Histogram:
    return Histogram(seed=0, tokens=1000, bins=bins)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(
    edges=st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True),
    seed=st.integers(0, 2**32),
)
def test_draws_follow_the_table(edges: list[int], seed: int) -> None:
    edges = sorted({max(edge, 1) for edge in edges} | {10**6 + 1})
    fractions = np.random.default_rng(seed).dirichlet(np.ones(len(edges) - 1))
    table = [[low, high, float(f)] for low, high, f in zip(edges[:-1], edges[1:], fractions, strict=True)]
    workload = make(table)
    lengths = workload.draw(np.random.default_rng(seed), 20_000)
    counts, _ = np.histogram(lengths, np.array(edges) - 0.5)
    assert lengths.min() >= edges[0]
    assert lengths.max() < edges[-1]
    assert np.abs(counts / lengths.size - fractions).max() < 0.02
    seen, repeats = np.unique(lengths, return_counts=True)
    assert np.abs(np.cumsum(repeats) / lengths.size - workload.cdf(seen)).max() < 0.02


def test_inside_a_bin_lengths_are_log_uniform() -> None:
    lengths = make([[1024, 1024 * 1024, 1.0]]).draw(np.random.default_rng(0), 100_000)
    octaves, _ = np.histogram(np.log2(lengths), np.arange(10, 21))
    assert octaves / lengths.size == pytest.approx(np.full(10, 0.1), abs=0.005)


def test_a_spike_is_one_length_and_gaps_stay_empty() -> None:
    workload = make([[1, 3, 0.25], [65536, 65537, 0.75]])
    assert set(workload.draw(np.random.default_rng(0), 10_000).tolist()) == {1, 2, 65536}
    assert workload.cdf(np.array([0, 2, 100, 65535, 65536, 10**6])) == pytest.approx([0, 0.25, 0.25, 0.25, 1, 1])


def test_a_low_of_zero_counts_as_one() -> None:
    assert make([[0, 2, 1.0]]).draw(np.random.default_rng(0), 100).tolist() == [1] * 100


def test_rounded_fractions_are_normalised() -> None:
    assert make([[1, 2, 0.333], [2, 3, 0.333], [3, 4, 0.333]]).cdf(np.array([1])) == pytest.approx([1 / 3])


@pytest.mark.parametrize(
    ("bins", "said"),
    [
        (None, r"workload\.bins is None; it must be at least one row \[low, high, fraction\]"),
        ([], r"workload\.bins is \[\]"),
        ("1 2 1", r"workload\.bins is '1 2 1'"),
        ([5], r"workload\.bins\[0\] is 5; it must be a row of 3 numbers"),
        ([[1, 2]], r"workload\.bins\[0\] is \[1, 2\]"),
        ([[-1, 2, 1.0]], r"workload\.bins\[0\] low is -1; it takes a whole number of at least 0"),
        ([[4, 4, 1.0]], r"workload\.bins\[0\] high is 4; it takes a whole number of at least 5"),
        ([[0, 1, 1.0]], r"workload\.bins\[0\] high is 1; it takes a whole number of at least 2"),
        ([[1, 9, 0.5], [8, 20, 0.5]], r"workload\.bins\[1\] low is 8; it takes a whole number of at least 9"),
        ([[1, 9, -0.5], [9, 20, 1.5]], r"workload\.bins\[0\] fraction is -0\.5; .* at least 0 and at most 1"),
        ([[1, 9, "half"]], r"workload\.bins\[0\] fraction is 'half'"),
        ([[1, 9.5, 1.0]], r"workload\.bins\[0\] high is 9\.5"),
        ([[1, 9, 0.5], [9, 20, 0.4]], r"workload\.bins has fractions that sum to 0\.9; the sum must be 1 within 0\.01"),
    ],
)
def test_bad_tables_are_refused(bins: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(bins)
