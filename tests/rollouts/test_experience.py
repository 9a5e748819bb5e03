"""Which rollouts an update is of, and what is scored."""

import numpy as np
import pytest

from zbench.rollouts.experience import Learning, Rollout, scored_tokens


def test_what_is_scored_has_all_tokens_and_counts_those_of_responses() -> None:
    found = scored_tokens([Rollout(np.array([4, 5, 6, 7]), 2, np.zeros(2)), Rollout(np.array([4, 0]), 1, np.zeros(1))])
    assert {number: words.tolist() for number, words in found.tokens.items()} == {0: [4, 5, 6, 7], 1: [4, 0]}
    assert (found.counted, found.targets) == (3, None)


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
