"""Delayed documents: nothing lost, long ones together, and a batch a function of (seed, step)."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.workloads.__main__ import load_workload
from zbench.workloads.delayed import Delayed
from zbench.workloads.fixed import Fixed
from zbench.workloads.longtail import Longtail

TAIL = partial(Longtail, mu=6.1, sigma=1.27, tail_share=0.05, tail_start=4096, alpha=1.0, max_length=131072)


def make(**changes: Any) -> Delayed:
    given_ = {
        "seed": 0,
        "tokens": 1 << 18,
        "lengths": TAIL,
        "outlier_lengths": [8192, 32768],
        "released_together": 3,
        "window_steps": 6,
    }
    return Delayed(**{**given_, **changes})


@given(st.integers(0, 99), st.integers(1, 60_000), st.integers(1, 7), st.integers(1, 5), st.integers(2, 9000))
def test_a_window_has_the_tokens_and_documents_of_its_steps(
    seed: int, tokens: int, window: int, hold: int, first: int
) -> None:
    workload = make(
        seed=seed, tokens=tokens, window_steps=window, released_together=hold, outlier_lengths=[first, 2 * first]
    )
    inner = TAIL(seed=seed, tokens=tokens)
    for begin in (0, 3 * window):
        came = np.concatenate([inner.batch(begin + at).lengths for at in range(window)])
        batches = [workload.batch(begin + at) for at in range(window)]
        assert all(batch.num_tokens == tokens for batch in batches)
        went = np.concatenate([batch.lengths for batch in batches])
        assert went.min() >= 1
        # A batch's end splits at most one document.
        assert len(came) <= len(went) <= len(came) + window - 1
        same = np.intersect1d(*(np.unique(values) for values in (came, went)))
        kept = sum(min((came == value).sum(), (went == value).sum()) for value in same.tolist())
        assert kept >= len(came) - (window - 1)


def test_long_documents_come_together() -> None:
    """Between releases none, then at least three of a queue; without holding they come one by one."""
    held, free = make(tokens=1 << 20), TAIL(seed=0, tokens=1 << 20)
    counts = np.array([(held.batch(step).lengths >= 32768).sum() for step in range(5)])
    assert sum((free.batch(step).lengths >= 32768).sum() for step in range(6)) > 3
    assert set(counts[counts > 0].tolist()) <= {3, 6, 9, 12, 15, 18, 21}
    assert (counts > 0).any()


def test_a_held_document_is_late_but_not_beyond_its_window() -> None:
    workload = make(
        lengths=partial(Longtail, mu=6.1, sigma=1.0, tail_share=0.0, tail_start=4096, alpha=1.0, max_length=4096),
        outlier_lengths=[3000],
        released_together=1000,
        window_steps=3,
    )
    long = [int((workload.batch(step).lengths >= 3000).sum()) for step in range(6)]
    assert long[0] == long[1] == long[3] == long[4] == 0
    assert min(long[2], long[5]) > 3


def test_documents_that_are_all_long_fill_batches_all_the_same() -> None:
    workload = make(
        tokens=10_000,
        lengths=partial(Fixed, length=4000),
        outlier_lengths=[2, 3000],
        released_together=4,
        window_steps=4,
    )
    for step in range(8):
        assert workload.batch(step).num_tokens == 10_000


def test_a_window_of_one_step_changes_no_batch_but_its_order() -> None:
    workload, inner = make(window_steps=1), TAIL(seed=0, tokens=1 << 18)
    for step in range(3):
        assert sorted(workload.batch(step).lengths.tolist()) == sorted(inner.batch(step).lengths.tolist())


def test_the_yaml_delays_its_own_documents() -> None:
    workload, inner = (load_workload(name, 0, 1 << 20, []) for name in ("wlb_delayed", "wlb_pretrain"))
    held = [np.sort(workload.batch(step).lengths)[::-1][:4] for step in range(15)]
    free = [np.sort(inner.batch(step).lengths)[::-1][:4] for step in range(15)]
    assert sum(some[0] >= 65536 for some in held) < sum(some[0] >= 65536 for some in free)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"released_together": 0}, r"workload\.released_together is 0; it takes a whole number of at least 1"),
        ({"window_steps": 0}, r"workload\.window_steps is 0"),
        ({"outlier_lengths": []}, r"workload\.outlier_lengths is \[\]; it must be at least one length"),
        (
            {"outlier_lengths": [9000, 8000]},
            r"workload\.outlier_lengths\[1\] is 8000; it takes a whole number of at least 9001",
        ),
        ({"lengths": 5}, r"workload\.lengths is 5; it must be a workload with _partial_"),
        ({"lengths": dict}, r"workload\.lengths is a dict; it must be a workload that draws lengths"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(**changes)
