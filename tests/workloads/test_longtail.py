"""The lognormal body with a Pareto tail, against its own formulas."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.workloads.longtail import Longtail

SHAPE = {"mu": 6.1, "sigma": 1.27, "tail_share": 0.05, "tail_start": 4096, "alpha": 1.5, "max_length": 131072}
NUM = 200_000


def make(**changes: object) -> Longtail:
    return Longtail(seed=0, tokens=1000, **{**SHAPE, **changes})  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(
    mu=st.floats(-1, 9),
    sigma=st.floats(0.1, 3),
    tail_share=st.floats(0, 1),
    tail_start=st.integers(20_000, 50_000),
    alpha=st.floats(0.05, 30),
    extra=st.integers(0, 10**7),
)
def test_draws_follow_the_cdf(
    mu: float, sigma: float, tail_share: float, tail_start: int, alpha: float, extra: int
) -> None:
    if mu < 0.5:  # nearly all of a narrow lognormal is below one token: that is a refused body, tested below
        sigma = max(sigma, 1.0)
    shape = {"mu": mu, "sigma": sigma, "tail_share": tail_share, "tail_start": tail_start, "alpha": alpha}
    workload = make(max_length=tail_start + extra, **shape)
    lengths = workload.draw(np.random.default_rng(1), 20_000)
    assert lengths.size == 20_000
    assert lengths.min() >= 1
    assert lengths.max() <= workload.max_length
    seen, counts = np.unique(lengths, return_counts=True)
    assert np.abs(np.cumsum(counts) / lengths.size - workload.cdf(seen)).max() < 2.5 / math.sqrt(lengths.size)
    assert workload.cdf(np.array([0, workload.max_length])) == pytest.approx([0, 1])


def test_the_tail_has_its_share_and_its_slope() -> None:
    lengths = make(max_length=10**9).draw(np.random.default_rng(0), NUM)
    tail = lengths[lengths >= 4096]
    assert tail.size / NUM == pytest.approx(0.05, abs=0.002)
    hill = 1 / np.log(tail / 4096).mean()  # the Hill estimate of alpha, of a tail that is hardly truncated
    assert hill == pytest.approx(1.5, rel=0.03)


def test_truncation_is_exact_and_piles_nothing_up() -> None:
    lengths = make(max_length=8192).draw(np.random.default_rng(0), NUM)
    assert lengths.max() <= 8192
    assert (lengths == 8192).sum() < 5
    # P(length > 5000 | tail) of the power law cut off at 8193.
    left = (8193 / 4096) ** -1.5
    expected = ((5001 / 4096) ** -1.5 - left) / (1 - left)
    tail = lengths[lengths >= 4096]
    assert (tail > 5000).mean() == pytest.approx(expected, abs=0.015)


def test_the_body_is_lognormal() -> None:
    body = make(tail_share=0, tail_start=10**7, max_length=10**7).draw(np.random.default_rng(0), NUM)
    logs = np.log(body + 0.5)
    assert logs.mean() == pytest.approx(6.1, abs=0.01)
    assert logs.std() == pytest.approx(1.27, abs=0.01)


def test_a_tail_of_one_length_works() -> None:
    lengths = make(tail_share=1, max_length=4096).draw(np.random.default_rng(0), 100)
    assert (lengths == 4096).all()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("mu", "six", r"workload\.mu is 'six'; it must be a finite number$"),
        ("mu", math.nan, r"workload\.mu is nan"),
        ("sigma", 0, r"workload\.sigma is 0; it must be a finite number, above 0"),
        ("tail_share", 1.5, r"workload\.tail_share is 1\.5; it must be a finite number, at least 0 and at most 1"),
        ("tail_share", -0.1, r"workload\.tail_share is -0\.1"),
        ("alpha", -1, r"workload\.alpha is -1; it must be a finite number, at least 0\.01"),
        ("tail_start", 1, r"workload\.tail_start is 1; it takes a whole number of at least 2"),
        ("max_length", 4095, r"workload\.max_length is 4095; it takes a whole number of at least 4096"),
        ("mu", 20, r"workload\.mu is 20 and workload\.sigma 1\.27; at least 1% of that lognormal .* 4096"),
        ("mu", -20, r"workload\.mu is -20"),
    ],
)
def test_bad_parameters_are_named(field: str, value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(**{field: value})
