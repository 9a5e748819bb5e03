"""Shrunk documents: the same ones, a fraction as long."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.workloads.__main__ import load_workload
from zbench.workloads.fixed import Fixed
from zbench.workloads.longtail import Longtail
from zbench.workloads.shrunk import Shrunk

TAIL = partial(Longtail, mu=6.1, sigma=1.27, tail_share=0.05, tail_start=4096, alpha=1.5, max_length=131072)


@given(st.integers(0, 99), st.integers(1, 60_000), st.integers(1, 64), st.integers(1, 5000))
def test_a_batch_has_its_tokens_and_nothing_over_the_limit(seed: int, tokens: int, by: int, limit: int) -> None:
    lengths = Shrunk(seed, tokens, TAIL, by, limit).batch(3).lengths
    assert lengths.sum() == tokens
    assert 1 <= lengths.min() <= lengths.max() <= limit


@given(st.integers(0, 99), st.integers(1, 64))
def test_documents_are_those_of_the_other_workload(seed: int, by: int) -> None:
    shrunk, inner = Shrunk(seed, 1, TAIL, by), TAIL(seed=seed, tokens=1)
    drawn = inner.draw(np.random.default_rng(seed), 1000)
    small = shrunk.draw(np.random.default_rng(seed), 1000)
    assert ((small - 1) * by < drawn).all()
    assert (drawn <= small * by).all()
    assert shrunk.cdf(np.array([7])) == inner.cdf(np.array([7 * by]))


@pytest.mark.parametrize(("name", "longest"), [("wikipedia_4k", 4096), ("prolong64k_2k", 2048)])
def test_presets(name: str, longest: int) -> None:
    workload = load_workload(name, 0, 1 << 18, [])
    lengths = workload.batch(0).lengths
    assert lengths.max() == longest == workload.context_limit


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"divisor": 0}, r"workload.divisor is 0"), ({"lengths": Fixed(0, 1, 1)}, r"workload.lengths is Fixed")],
)
def test_what_cannot_be(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Shrunk(**{"seed": 0, "tokens": 10, "lengths": TAIL, "divisor": 32, **changes})  # type: ignore[arg-type]
