"""The numbers of tokens that a GPU has: what counts of what models make, and what is trained with."""

from typing import Any

import numpy as np
import pytest

from zbench.rollouts.experience import CRITIC, PolicyTargets, ValueTargets
from zbench.runtime.rollouts.columns import TokenColumns
from zbench.runtime.rollouts.policy_job import ADVANTAGES, BEFORE, REFERENCE, TOKENS, returns_of

WORDS = [[4, 5, 6, 7], [4, 0], [9, 9, 0]]
PROMPTS = [2, 1, 2]
GIVEN = [[0.5, 0.6], [-2.0], [3.0]]
NO_RUNNER: Any = None  # nothing is sent here


def columns_of(*names: str) -> TokenColumns:
    found = TokenColumns(0, NO_RUNNER)
    found.begin([len(one) for one in WORDS], PROMPTS)
    for number, words in enumerate(WORDS):
        found.write(TOKENS, (number, 0, len(words)), np.array(words, np.float64))
        for name in names:
            found.write_response(name, number, np.array(GIVEN[number]))
    return found


def test_a_response_counts_and_its_prompt_does_not() -> None:
    """Token i is told by token i - 1: the last token of the prompt has the first advantage, and the last one none."""
    found = columns_of(ADVANTAGES, BEFORE).of_policy([0, 1], 0.0)
    assert isinstance(found.targets, PolicyTargets)
    columns = {name: [column[number].tolist() for number in (0, 1)] for name, column in found.targets.columns.items()}
    assert columns == {
        "counts": [[0, 1, 1, 0], [1, 0]],
        "advantages": [[0, 0.5, 0.6, 0], [-2, 0]],
        "before": [[0, 0.5, 0.6, 0], [-2, 0]],
    }
    assert found.counted == 3
    assert found.tokens[0].tolist() == [4, 5, 6, 7]
    assert found.tokens[0].dtype == np.int64


def test_an_update_of_some_numbers_them_anew() -> None:
    found = columns_of(ADVANTAGES, BEFORE, REFERENCE).of_policy([2], 0.1)
    assert isinstance(found.targets, PolicyTargets)
    assert found.targets.columns["reference"][0].tolist() == [0, 3, 0]
    assert (found.targets.kl, found.counted, list(found.tokens)) == (0.1, 1, [0])
    critic = columns_of(CRITIC, returns_of(CRITIC)).of_critic(CRITIC, [1, 2]).targets
    assert isinstance(critic, ValueTargets)
    assert {name: column[1].tolist() for name, column in critic.columns.items()} == {
        "counts": [0, 1, 0], "returns": [0, 3, 0], "before": [0, 3, 0],
    }  # fmt: skip


def test_a_sequence_that_is_not_here_is_left_out_and_counts() -> None:
    """The mean is over all responses of the batch, wherever they are."""
    found = columns_of(ADVANTAGES)
    found.write_response(BEFORE, 2, np.array([1.0]))
    found.write(BEFORE, (0, 1, 2), np.array([1.0]))  # of two tokens one
    given = found.of_policy([0, 1, 2], 0.0)
    assert isinstance(given.targets, PolicyTargets)
    assert list(given.targets.columns["before"]) == list(given.targets.columns["counts"]) == [2]
    assert given.counted == 4
    with pytest.raises(AssertionError, match="before of sequence 0 is there"):
        found.read(BEFORE, found.response(0))


def test_of_what_models_make_responses_count() -> None:
    """Tokens come in any order and in pieces; runs are those that tell a response, or the last token of each."""
    found = columns_of()
    sequence, position = np.array([2, 2, 0, 0, 0, 0, 1]), np.array([1, 2, 2, 3, 0, 1, 0])
    made = np.arange(7.0)
    assert found.write_made(CRITIC, sequence, position, made, False) == {(2, 1, 2), (0, 2, 3), (0, 1, 2), (1, 0, 1)}
    assert found.read(CRITIC, found.response(0)).tolist() == [5, 2]
    assert found.read(CRITIC, found.response(1)).tolist() == [6]
    assert found.write_made("reward", sequence, position, made, True) == {(2, 2, 3), (0, 3, 4)}
    assert found.read("reward", (0, 3, 4)).tolist() == [3]
    assert found.write_made("cost", sequence[:1], position[:1], made[:1], True) == set()


def test_a_rollout_is_read_whole() -> None:
    one = columns_of(BEFORE).rollout(0)
    assert (one.tokens.tolist(), one.prompt, one.before.tolist(), one.response.tolist()) == (
        [4, 5, 6, 7], 2, [0.5, 0.6], [6, 7],
    )  # fmt: skip
