"""Masks: words, and visible pairs against looking at every pair."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.describe.model import Model

MASKS = st.one_of(st.just(CAUSAL), st.just(FULL), st.builds(Mask, window=st.integers(1, 40)))


def seen(rows: np.ndarray, columns: np.ndarray, mask: Mask) -> np.ndarray:
    """Whether queries at `rows` see keys at `columns`, by the definition."""
    i, j = rows[:, None], columns[None, :]
    everything = np.ones((len(rows), len(columns)), bool)
    if mask.window:
        return (i - mask.window < j) & (j <= i)
    return j <= i if mask.causal else everything


def test_words_and_back() -> None:
    for words, mask in (
        ("causal", CAUSAL),
        ("full", FULL),
        ("window:1", Mask(window=1)),
        ("window:4096", Mask(True, 4096)),
    ):
        assert Mask.of(words) == mask
        assert str(mask) == words


LARGE = "window:99999999999999999999999999"


@pytest.mark.parametrize(
    "words", ["windw:4", "window:0", "window:x", "window:-1", "window:", "window", "window:1.5", "", None, 4, LARGE]
)
def test_other_words_are_refused(words: object) -> None:
    with pytest.raises(ValueError, match=r"^mask is .*; it takes causal, full, or window:N"):
        Mask.of(words)


def test_what_is_no_mask_is_refused() -> None:
    for bad in ({"causal": 1}, {"window": -1}, {"window": True}, {"window": 1.5}, {"causal": False, "window": 4}):
        with pytest.raises(ValueError, match="a mask"):
            Mask(**bad)
    model = Model("m", 1, 8, 2, 2, 4, 8, 8)
    with pytest.raises(ValueError, match=r"^model.mask is 'window:4'; it is a key of the run, as in mask=window:4096$"):
        replace(model, mask="window:4")


@given(MASKS, st.tuples(*[st.integers(0, 60)] * 4))
def test_pairs_between_ranges_equal_counting(mask: Mask, ends: tuple[int, int, int, int]) -> None:
    q0, q1, k0, k1 = *sorted(ends[:2]), *sorted(ends[2:])
    found = mask.between(*(np.array([x]) for x in (q0, q1, k0, k1)))
    assert found.tolist() == [seen(np.arange(q0, q1), np.arange(k0, k1), mask).sum()]


@given(MASKS, st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_pairs_of_whole_sequences_and_reach(mask: Mask, lengths: list[int]) -> None:
    assert mask.pairs(np.array(lengths)) == sum(seen(np.arange(n), np.arange(n), mask).sum() for n in lengths)
    if mask.causal:
        start = np.arange(60)
        assert (mask.reach(start) + 1 == seen(start, start, mask).sum(axis=1)).all()


def test_a_window_as_long_as_every_sequence_is_causal() -> None:
    assert Mask(window=7).for_lengths(np.array([3, 7])) == CAUSAL
    assert Mask(window=7).for_lengths(np.array([3, 8])) == Mask(window=7)
    assert FULL.for_lengths(np.array([3])) == FULL


@given(MASKS, st.integers(0, 50), st.integers(0, 50))
def test_who_sees_what_is_the_definition(mask: Mask, queries: int, keys: int) -> None:
    rows, columns = np.arange(queries) + 7, np.arange(keys)
    assert np.array_equal(mask.sees(rows[:, None], columns), seen(rows, columns, mask))
