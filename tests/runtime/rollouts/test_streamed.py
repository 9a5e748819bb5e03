"""Groups that have generated theirs score what has ended, whosever it is, each sequence once."""

import numpy as np
import torch.distributed as dist

from tests.runtime.rollouts.test_policy import WHOLE
from zbench.rollouts.experience import Rollout
from zbench.runtime.rollouts.streamed import StreamWatch

PROMPTS = {number: np.array([number + 1, 5]) for number in range(4)}


def test_a_free_group_scores_what_another_one_has_ended() -> None:
    store = dist.HashStore()
    early, late = (StreamWatch(store, "iteration 0", 4, 2, True) for _ in range(2))
    every = WHOLE.responses(PROMPTS, 12, (0, 0), lambda _: None)
    assert early.after_pass({0: every[0]}, [1]) == [1]
    assert late.after_pass({2: every[2], 3: every[3]}, []) == []
    early.after_pass({1: every[1]}, [])
    early.score(WHOLE)  # the other one has told all that it had, and not come to score
    late.score(WHOLE)
    assert (sorted(early.scores), early.meanwhile, early.of_others) == ([0, 1, 2, 3], 4, 2)
    assert (late.scores, late.meanwhile, late.of_others) == ({}, 0, 0)
    for number, found in early.scores.items():
        np.testing.assert_allclose(found, every[number].before, rtol=1e-12)


def test_what_is_scored_when_all_are_free_is_not_meanwhile() -> None:
    store, one = dist.HashStore(), Rollout(np.array([3, 4, 0]), 1, np.zeros(2))
    alone = StreamWatch(store, "iteration 1", 1, 1, True)
    alone.after_pass({0: one}, [])
    alone.score(WHOLE)
    assert (list(alone.scores), alone.meanwhile, alone.of_others) == ([0], 0, 0)
