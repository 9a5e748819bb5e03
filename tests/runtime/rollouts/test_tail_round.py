"""A round ends when as many prompts have ended as are kept; what is left is given up in that pass."""

import numpy as np

from tests.runtime.rollouts.test_policy import WHOLE
from zbench.rollouts.experience import Rollout
from zbench.runtime.rollouts.tail_round import TailWatch

ENDED = Rollout(np.array([1, 0]), 1, np.zeros(1))


def test_prompts_are_kept_in_the_order_in_which_their_last_response_ends() -> None:
    watch = TailWatch(4, 2, 2, None, True)
    assert watch.after_pass({0: ENDED, 4: ENDED, 5: ENDED}, [1, 2, 3, 6, 7]) == [1, 2, 3, 6, 7]  # prompt 2 has ended
    assert watch.after_pass({2: ENDED}, [1, 3, 6, 7]) == [1, 3, 6, 7]
    assert not watch.is_over
    assert watch.after_pass({1: ENDED, 3: ENDED}, [6, 7]) == ()  # 0 and 1, of which the first one is kept
    assert watch.finish() == [0, 2]
    assert watch.done == [2, 0, 1]


def test_what_is_given_up_ends_with_the_pass() -> None:
    prompts = {number: np.array([number + 1, 3]) for number in range(6)}
    whole = WHOLE.responses(prompts, 24, (0, 1), lambda _: None)
    lengths = np.array([len(one.response) for one in whole.values()]).reshape(3, 2).max(1)
    watch = TailWatch(3, 2, 1, None, True)
    found = WHOLE.responses(prompts, 24, (0, 1), lambda _: None, watch)
    assert watch.finish() == [int(lengths.argmin())]
    assert lengths.min() < lengths.max()
    for number, one in found.items():
        least = min(len(whole[number].response), int(lengths.min()))
        assert one.tokens.tolist() == whole[number].tokens.tolist()[: 2 + least]
