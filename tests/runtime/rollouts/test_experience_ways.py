"""What goes from rank to rank: tokens to who computes with them, scores to the first rank, targets to who trains."""

import numpy as np

from zbench.rollouts.columns import NUMBER_BYTES, ColumnMoves
from zbench.rollouts.experience import CRITIC
from zbench.runtime.rollouts.experience_ways import ExperienceWays
from zbench.runtime.rollouts.policy_job import POLICY, REFERENCE, REWARD
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step

# Ranks 0 and 1 have the actor, 2 and 3 critic and reward; 2 rollouts, and a greedy response.
SETS = [0, 0, 1, 1]
LENGTHS, PROMPTS = [9, 7, 6], [3, 2, 3]
RESPONSES = [6, 5]
WAYS = ExperienceWays(4, 2, LENGTHS, PROMPTS, [1, 0, 1])
SECOND = np.array([[False] * 3, [False] * 3, [True, False, True], [False, True, False]])


def received(moves: ColumnMoves | None) -> list[int]:
    assert moves is not None
    prove_step(moves.step)
    return [one.get("parameters", (0, 0))[1] // NUMBER_BYTES for one in stated_bytes(moves.step)]


def test_tokens_go_to_who_computes_with_them() -> None:
    """Rank 0 has the second one, and gets all others, and the likelihoods of the first, which rank 1 generated."""
    moves = WAYS.of_tokens(SECOND)
    assert received(moves) == [9 + 6 + RESPONSES[0], 0, 9 + 6, 7]
    assert moves is not None
    assert moves.bytes_between(SETS) == NUMBER_BYTES * sum(LENGTHS)


def test_scores_go_to_the_first_rank() -> None:
    held = {
        REFERENCE: [{(0, 2, 8)}, {(1, 1, 6)}, set(), set()],
        CRITIC: [set(), set(), {(0, 2, 5), (1, 1, 6)}, {(0, 5, 8)}],
        REWARD: [set(), set(), {(0, 8, 9), (2, 5, 6)}, {(1, 6, 7)}],
    }
    moves = WAYS.of_scores(held)
    assert received(moves) == [RESPONSES[1] + sum(RESPONSES) + 3, 0, 0, 0]
    assert moves is not None
    assert moves.bytes_between(SETS) == NUMBER_BYTES * (sum(RESPONSES) + 3)


def test_targets_go_to_who_trains_with_them_and_has_not() -> None:
    """The critic's values of the second response are whole on the rank that trains with it, which has them."""
    trained = {
        POLICY: np.array([[True, False], [True, True], [False] * 2, [False] * 2]),
        CRITIC: np.array([[False] * 2, [False] * 2, [True, False], [False, True]]),
    }
    held = {
        CRITIC: [set(), set(), {(0, 2, 5)}, {(0, 5, 8), (1, 1, 6)}],
        REFERENCE: WAYS.of_responses([1, 0]),
    }
    assert held[REFERENCE] == [{(1, 1, 6)}, {(0, 2, 8)}, set(), set()]
    advantages, before = sum(RESPONSES), RESPONSES[1]
    returns_and_values = [2 * RESPONSES[0], RESPONSES[1]]
    moves = WAYS.of_targets(trained, held, kl=False)
    assert received(moves) == [0, advantages + before, *returns_and_values]
    assert moves is not None
    assert moves.bytes_between(SETS) == NUMBER_BYTES * sum(returns_and_values)
    assert received(WAYS.of_targets(trained, held, kl=True)) == [
        0,
        advantages + before + RESPONSES[1],
        *returns_and_values,
    ]
