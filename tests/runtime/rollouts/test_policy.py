"""A policy that keeps keys and values has the logits of one that reads whole sequences, and draws the same tokens."""

import numpy as np
import torch

from zbench.correctness.loop.cases import POLICY
from zbench.correctness.loop.reference import policy_logits
from zbench.correctness.steps.dense import drawn_weights
from zbench.runtime.rollouts.policy import KeptKeys, PolicySlice
from zbench.runtime.rollouts.sampling import END, generator_of, sampled
from zbench.runtime.stepping.weights import OUTSIDE

WEIGHTS = drawn_weights(POLICY, 5)
WHOLE = PolicySlice(POLICY, lambda name, layer: WEIGHTS[name] if name in OUTSIDE else WEIGHTS[name][layer], 0, None)
PROMPTS = {3: np.array([4, 7, 2]), 8: np.array([9])}


def test_logits_are_those_of_whole_sequences() -> None:
    kept = [KeptKeys(), KeptKeys()]
    first = WHOLE.logits([[4, 7, 2], [9]], kept)
    then = WHOLE.logits([[5], [1, 6]], kept)  # sequences of different lengths, in one pass
    assert [len(one) for one in kept] == [4, 3]
    for row, words in zip(torch.cat([first, then]), ([4, 7, 2], [9], [4, 7, 2, 5], [9, 1, 6]), strict=True):
        torch.testing.assert_close(row, policy_logits(WEIGHTS, torch.tensor(words))[-1], rtol=1e-12, atol=1e-12)


def test_a_response_is_the_same_alone_and_beside_others() -> None:
    both = WHOLE.responses(PROMPTS, 12, (0, 1), lambda _: None)
    for number, prompt in PROMPTS.items():
        alone = WHOLE.responses({number: prompt}, 12, (0, 1), lambda _: None)[number]
        assert both[number].tokens.tolist() == alone.tokens.tolist()
        response = alone.response
        assert len(response) == 12 or response[-1] == END
        assert END not in response[:-1]
        logs = policy_logits(WEIGHTS, torch.from_numpy(alone.tokens)).log_softmax(1)[len(prompt) - 1 : -1]
        np.testing.assert_allclose(alone.before, -logs[range(len(response)), response], rtol=1e-12)
    other = WHOLE.responses(PROMPTS, 12, (0, 2), lambda _: None)
    assert any(both[number].tokens.tolist() != other[number].tokens.tolist() for number in PROMPTS)


def test_tokens_are_drawn_as_often_as_they_should_be() -> None:
    logits, rng = torch.tensor([0.5, 0.2, 0.3]).log().double(), generator_of(0, 0, 0)
    counts = np.bincount([sampled(logits, rng)[0] for _ in range(4000)], minlength=3) / 4000
    assert np.abs(counts - [0.5, 0.2, 0.3]).max() < 0.03  # four standard deviations


def test_likelihoods_of_a_response_are_those_it_was_drawn_with() -> None:
    for one in WHOLE.responses(PROMPTS, 12, (0, 3), lambda _: None).values():
        np.testing.assert_allclose(WHOLE.likelihoods(one), one.before, rtol=1e-12)
