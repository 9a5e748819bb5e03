"""Advantages of groups by hand."""

import numpy as np
import pytest

from zbench.rollouts.advantages.grpo import group_advantages, grpo_experience
from zbench.rollouts.experience import Rollout


def test_an_advantage_is_of_its_group() -> None:
    found = group_advantages(np.array([1.0, 3.0, 5.0, 5.0]), 2)
    assert found == pytest.approx([-1, 1, 0, 0], abs=1e-5)


def test_all_tokens_of_a_response_have_its_advantage() -> None:
    rollouts = [Rollout(np.arange(4), 1, np.zeros(3)), Rollout(np.arange(3), 1, np.zeros(2))]
    found = grpo_experience(rollouts, np.array([0.0, 1.0]), 2)
    assert [one.tolist() for one in found.advantages] == [
        pytest.approx([-1] * 3, abs=1e-5),
        pytest.approx([1] * 2, abs=1e-5),
    ]
