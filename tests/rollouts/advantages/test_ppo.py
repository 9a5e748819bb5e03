"""Rewards of tokens, advantages and returns by hand."""

import numpy as np
import pytest

from zbench.rollouts.advantages.ppo import (
    generalized_advantages,
    ppo_experience,
    remax_experience,
    token_rewards,
    whitened,
)
from zbench.rollouts.experience import CRITIC, Rollout

ROLLOUTS = [Rollout(np.arange(4), 1, np.array([0.5, 0.1, 0.2])), Rollout(np.arange(2), 1, np.array([1.0]))]
REWARDS = np.array([1.0, 3.0])
REFERENCE = [np.array([0.7, 0.1, 0.0]), np.array([2.0])]


def test_a_token_is_charged_for_being_likelier_than_under_the_reference() -> None:
    found = token_rewards(ROLLOUTS, REWARDS, 0.5, REFERENCE)
    assert [one.tolist() for one in found] == [pytest.approx([-0.1, 0, 1.1]), pytest.approx([2.5])]
    assert [one.tolist() for one in token_rewards(ROLLOUTS, REWARDS, 0.0, [])] == [[0, 0, 1], [3]]


def test_advantages_by_hand() -> None:
    """d = (0.9 * 2 - 1, 0.9 * 4 - 2, 1 - 4) = (0.8, 1.6, -3); with 0.9 * 0.5 = 0.45: 1.6 - 1.35, 0.8 + 0.1125."""
    found = generalized_advantages(np.array([0.0, 0, 1]), np.array([1.0, 2, 4]), 0.9, 0.5)
    assert found.tolist() == pytest.approx([0.9125, 0.25, -3])
    whole = generalized_advantages(np.array([0.0, 0, 1]), np.array([1.0, 2, 4]), 1.0, 1.0)
    assert whole.tolist() == pytest.approx([0, -1, -3])  # all rewards that come, less the value


def test_advantages_are_scaled_over_tokens_and_returns_are_not() -> None:
    values = [np.array([1.0, 2, 4]), np.array([2.0])]
    found = ppo_experience(ROLLOUTS, REWARDS, values)
    every = np.concatenate(found.advantages)
    assert (every.mean(), every.var()) == (pytest.approx(0), pytest.approx(1))
    returns = found.critics[CRITIC].returns
    assert returns[1].tolist() == [3]
    assert returns[0][2] == 1
    assert [len(one) for one in whitened(values)] == [3, 1]


def test_remax_takes_the_greedy_reward_off() -> None:
    found = remax_experience(ROLLOUTS, REWARDS, np.array([0.25, 1.0]), 0.5, REFERENCE)
    assert [one.tolist() for one in found.advantages] == [pytest.approx([0.75, 0.85, 0.85]), pytest.approx([1.5])]
