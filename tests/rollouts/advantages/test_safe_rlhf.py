"""What Safe RLHF learns from, and its multiplier, by hand."""

from math import exp, log

import numpy as np
import pytest

from tests.rollouts.advantages.test_ppo import REFERENCE, REWARDS, ROLLOUTS
from zbench.rollouts.advantages.ppo import generalized_advantages, token_rewards
from zbench.rollouts.advantages.safe_rlhf import RATE, WINDOW, Multiplier, safe_rlhf_experience
from zbench.rollouts.experience import COST_CRITIC, CRITIC

COSTS = np.array([-2.0, 4.0])
VALUES = [np.array([1.0, 2, 4]), np.array([2.0])], [np.array([0.5, 0, 1]), np.array([-1.0])]


def test_costs_are_taken_off_by_the_multiplier() -> None:
    found = safe_rlhf_experience(ROLLOUTS, (REWARDS, COSTS), VALUES, 3.0)
    gained, lost = (
        [generalized_advantages(*pair) for pair in zip(token_rewards(ROLLOUTS, last, 0.0, []), values, strict=True)]
        for last, values in zip((REWARDS, COSTS), VALUES, strict=True)
    )
    for one, gain, loss in zip(found.advantages, gained, lost, strict=True):
        assert one.tolist() == pytest.approx((gain / 4 - 3 * loss / 4).tolist(), rel=1e-14)
    assert found.advantages[1].tolist() == [(3 - 2) / 4 - 3 * (4 + 1) / 4]
    assert {name: one.values for name, one in found.critics.items()} == {CRITIC: VALUES[0], COST_CRITIC: VALUES[1]}
    assert found.critics[COST_CRITIC].returns[1].tolist() == [4]


def test_half_of_the_kl_term_is_a_cost() -> None:
    """The last token of the second response is likelier than under the reference: 0.5 (2 - 1) is charged in all."""
    plain, charged = (
        safe_rlhf_experience(ROLLOUTS, (REWARDS, COSTS), VALUES, 1.0, kl, REFERENCE if kl else ()) for kl in (0.0, 0.5)
    )
    returns = [[one.critics[name].returns[1][0] for name in (CRITIC, COST_CRITIC)] for one in (plain, charged)]
    assert returns == [[3, 4], [2.75, 4.25]]
    assert plain.advantages[1][0] - charged.advantages[1][0] == pytest.approx(0.25)


def test_the_multiplier_follows_the_mean_of_the_last_costs() -> None:
    one = Multiplier().after(COSTS)
    assert (Multiplier().value, one.log) == (1.0, pytest.approx(RATE * 1.0))
    two = one.after(np.array([-7.0]))
    assert two.log == pytest.approx(one.log + RATE * exp(one.log) * (-5 / 3))
    assert two.value < one.value
    late = Multiplier(log(2), (100.0,) * WINDOW).after(np.ones(WINDOW))
    assert (late.log, len(late.costs)) == (pytest.approx(log(2) + RATE * 2), WINDOW)
