"""A batch's sums and its name."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import batches
from zbench.describe.batch import Batch


@given(batches())
def test_sums(batch: Batch) -> None:
    assert batch.num_tokens == sum(batch.lengths.tolist())
    assert batch.sum_squared == sum(length**2 for length in batch.lengths.tolist())
    assert isinstance(batch.num_tokens, int)
    assert isinstance(batch.sum_squared, int)


@given(batches())
def test_octaves_hold_every_sequence_by_its_length(batch: Batch) -> None:
    found = batch.octaves()
    for octave, (sequences, tokens) in enumerate(zip(found["sequences"], found["tokens"], strict=True)):
        inside = [length for length in batch.lengths.tolist() if 2**octave <= length < 2 ** (octave + 1)]
        assert (sequences, tokens) == (len(inside), sum(inside))
    assert sum(found["sequences"]) == len(batch.lengths)


def test_sum_of_squares_is_beyond_int64() -> None:
    assert Batch(np.full(5, 2**31), 0, 0).sum_squared == 5 * 2**62


def test_the_digest_names_the_content() -> None:
    one = Batch(np.array([3, 5, 8]), seed=0, step=0)
    assert one.digest == Batch(np.array([3, 5, 8], np.int32), seed=7, step=9).digest
    assert one.digest == Batch(np.array([3, 0, 5, 0, 8])[::2], seed=0, step=0).digest
    assert one.digest != Batch(np.array([5, 3, 8]), seed=0, step=0).digest
    assert len(one.digest) == 16


@given(batches(), st.randoms(use_true_random=False))
def test_labels_that_count(batch: Batch, random: Random) -> None:
    assert batch.counts_of_sequences is None
    assert batch.counted_labels == batch.num_tokens
    every = np.arange(len(batch.lengths))
    some = np.array([one for one in every if random.random() < 0.5], np.int64)
    assert batch.of_sequences(some).counted_labels == batch.lengths[some].sum()
    counts = np.array([random.random() < 0.5 for _ in range(batch.num_tokens)])
    fewer = replace(batch, counts=counts)
    assert fewer.counted_labels == np.count_nonzero(counts)
    parts = fewer.counts_of_sequences
    assert parts is not None
    assert [len(one) for one in parts] == batch.lengths.tolist()
    assert np.concatenate(parts).tolist() == counts.tolist()
    assert fewer.of_sequences(some).counted_labels == sum(parts[one].sum() for one in some)
    assert fewer.of_sequences(every).counted_labels == fewer.counted_labels


def test_the_digest_names_labels_that_count() -> None:
    one = Batch(np.array([3, 5]), seed=0, step=0)
    some = [replace(one, counts=np.arange(8) != at) for at in range(8)]
    assert len({one.digest, *(fewer.digest for fewer in some)}) == 9
