"""Advantages by hand, and the tokens whose loss they weigh."""

import numpy as np
import pytest

from zbench.rollouts.grpo import Rollout, group_advantages, training_tokens


def test_an_advantage_is_of_its_group() -> None:
    found = group_advantages(np.array([1.0, 3.0, 5.0, 5.0]), 2)
    assert found == pytest.approx([-1, 1, 0, 0], abs=1e-5)


def test_a_response_counts_and_its_prompt_does_not() -> None:
    """Token i is told by token i - 1: the last token of the prompt has the first advantage, and the last one none."""
    rollouts = [
        Rollout(np.array([4, 5, 6, 7]), 2, np.array([0.1, 0.2])),
        Rollout(np.array([4, 0]), 1, np.array([0.3])),
    ]
    found = training_tokens(rollouts, np.array([0.5, -2.0]))
    assert [found.advantages[number].tolist() for number in (0, 1)] == [[0, 0.5, 0.5, 0], [-2, 0]]
    assert [found.before[number].tolist() for number in (0, 1)] == [[0, 0.1, 0.2, 0], [0.3, 0]]
    assert found.counted == 3
    assert found.tokens[0].tolist() == [4, 5, 6, 7]
