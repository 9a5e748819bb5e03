"""What tokens of rollouts are trained with, and which rollouts an update is of."""

import numpy as np
import pytest

from zbench.rollouts.experience import (
    CRITIC,
    Experience,
    Learning,
    PolicyTargets,
    Rollout,
    ValueEstimates,
    ValueTargets,
)

ROLLOUTS = [
    Rollout(np.array([4, 5, 6, 7]), 2, np.array([0.1, 0.2])),
    Rollout(np.array([4, 0]), 1, np.array([0.3])),
    Rollout(np.array([9, 9, 0]), 2, np.array([0.4])),
]
GIVEN = [np.array([0.5, 0.6]), np.array([-2.0]), np.array([3.0])]
EXPERIENCE = Experience(ROLLOUTS, GIVEN, GIVEN, {CRITIC: ValueEstimates(GIVEN, [2 * one for one in GIVEN])})


def test_a_response_counts_and_its_prompt_does_not() -> None:
    """Token i is told by token i - 1: the last token of the prompt has the first advantage, and the last one none."""
    found = EXPERIENCE.of_policy([0, 1], 0.0)
    assert isinstance(found.targets, PolicyTargets)
    columns = {name: [column[number].tolist() for number in (0, 1)] for name, column in found.targets.columns.items()}
    assert columns == {
        "counts": [[0, 1, 1, 0], [1, 0]],
        "advantages": [[0, 0.5, 0.6, 0], [-2, 0]],
        "before": [[0, 0.1, 0.2, 0], [0.3, 0]],
    }
    assert found.counted == 3
    assert found.tokens[0].tolist() == [4, 5, 6, 7]


def test_an_update_of_some_numbers_them_anew() -> None:
    found = EXPERIENCE.of_policy([2], 0.1)
    assert isinstance(found.targets, PolicyTargets)
    assert found.targets.columns["reference"][0].tolist() == [0, 3, 0]
    assert (found.targets.kl, found.counted, list(found.tokens)) == (0.1, 1, [0])
    critic = EXPERIENCE.of_critic(CRITIC, [1, 2]).targets
    assert isinstance(critic, ValueTargets)
    assert {name: column[1].tolist() for name, column in critic.columns.items()} == {
        "counts": [0, 1, 0], "returns": [0, 6, 0], "before": [0, 3, 0],
    }  # fmt: skip


def test_each_epoch_divides_all_rollouts_anew() -> None:
    updates = list(Learning("ppo", epochs=2, mini_batches=3).updates(10, 0, 1))
    assert [len(one) for one in updates] == [4, 3, 3] * 2
    for epoch in (updates[:3], updates[3:]):
        assert sorted(number for one in epoch for number in one) == list(range(10))
    assert updates[:3] != updates[3:]
    assert updates != list(Learning("ppo", epochs=2, mini_batches=3).updates(10, 0, 2))


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(ValueError, match=r"^algorithm is 'dpo'; it takes grpo, ppo, remax, safe_rlhf$"):
        Learning("dpo")
    with pytest.raises(ValueError, match=r"^kl is -1; it takes a number from 0 on$"):
        Learning("ppo", kl=-1)
    with pytest.raises(ValueError, match=r"^mini_batches is 4; of 3 rollouts it takes at most as many$"):
        list(Learning("ppo", mini_batches=4).updates(3, 0, 0))
