"""What peers train is what zbench's step has, process by process; a process left out is told from rounding."""

import numpy as np
import pytest

from zbench.correctness.peers.cases import LIMITS, PEERS, step_of, training_of
from zbench.correctness.steps.dense import drawn_weights
from zbench.runtime.stepping.weights import network_weights
from zbench.runtime.training.dense import dense_loss


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_process_has_the_sequences_that_it_has_in_the_step(ranks: int) -> None:
    case, training = step_of("3", 8, ranks, 0), training_of(PEERS[0], ranks, 0)
    layout = case.step.layouts[0]
    home = layout.tensors[layout.number["x"]].home
    for rank, words in enumerate(training.words):
        sequence, _ = case.tokens[0].rows(tuple(np.flatnonzero(home == rank).tolist()))
        numbers, counts = np.unique(sequence, return_counts=True)
        assert len(words) > 0
        assert counts.tolist() == list(map(len, words))
        assert all((case.sequences[number] == one).all() for number, one in zip(numbers.tolist(), words, strict=True))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_process_left_out_is_far_beyond_the_limit(ranks: int) -> None:
    training = training_of(PEERS[0], ranks, 0)
    weights = network_weights(training.model, drawn_weights(training.model, training.seed))
    every = [one for words in training.words for one in words]
    whole = dense_loss(training.model, weights, every)[1]
    for left_out in range(ranks):
        some = [one for rank, words in enumerate(training.words) if rank != left_out for one in words]
        share = sum(map(len, some)) / sum(map(len, every))
        found = dense_loss(training.model, weights, some)[1]
        off = max(float((share * found[name] - one).abs().max() / one.abs().max()) for name, one in whole.items())
        assert off > 0.1
    assert 100 * max(LIMITS.values()) < 0.1
