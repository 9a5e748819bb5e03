"""Safe RLHF (Dai et al. 2023, arXiv 2310.12773): PPO with a cost beside the reward and a Lagrange multiplier, as far
as no process is in it.

A cost model gives every response a cost, and a second critic tells what costs are expected from a token on. Half of the
KL term goes to the reward of each token, and half to its cost, with the other sign. Advantages of both are by GAE
(zbench.rollouts.advantages.ppo), and the policy learns from (A_r - lambda A_c) / (1 + lambda), by PPO's clipped loss.
Then the multiplier follows: ln lambda grows by alpha lambda (c + d), with c the mean cost of the last responses and d a
margin. From memory of the paper, sections 3.3 and B.2, and of its public code, which scales no advantages; the loss of
pretraining is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from zbench.describe.arrays import Floats
from zbench.rollouts.advantages.ppo import estimated, token_rewards
from zbench.rollouts.experience import COST_CRITIC, CRITIC, Experience, Rollout

RATE, MARGIN = 0.1, 0.0  # alpha and d: lambda_lr and threshold of the public code's script, from memory
WINDOW = 128  # last responses of the mean cost: its episode_cost_window_size, from memory


@dataclass(frozen=True)
class Multiplier:
    """The Lagrange multiplier of the cost. log: its logarithm. costs: of the last responses, WINDOW at most."""

    log: float = 0.0
    costs: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """The multiplier, which begins with 1."""
        return exp(self.log)

    def after(self, costs: Floats) -> "Multiplier":
        """Returns what it is after responses with these costs."""
        last = (*self.costs, *costs.tolist())[-WINDOW:]
        return Multiplier(self.log + RATE * self.value * (float(np.mean(last)) + MARGIN), last)


def safe_rlhf_experience(
    rollouts: Sequence[Rollout],
    given: tuple[Floats, Floats],
    values: tuple[Sequence[Floats], Sequence[Floats]],
    multiplier: float,
    kl: float = 0.0,
    reference: Sequence[Floats] = (),
) -> Experience:
    """Returns what Safe RLHF learns from. given: rewards and costs of responses; values: of each token of each
    response, of the critic and of that of costs; multiplier: before this iteration's updates; kl and reference as of
    zbench.rollouts.advantages.ppo.ppo_experience."""
    rewards, critic = estimated(token_rewards(rollouts, given[0], kl / 2, reference), values[0])
    costs, cost_critic = estimated(token_rewards(rollouts, given[1], -kl / 2, reference), values[1])
    advantages = [(one - multiplier * other) / (1 + multiplier) for one, other in zip(rewards, costs, strict=True)]
    return Experience(advantages, critics={CRITIC: critic, COST_CRITIC: cost_critic})
