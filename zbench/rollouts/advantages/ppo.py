"""Proximal policy optimisation (PPO, Schulman et al. 2017, arXiv 1707.06347) with a critic, and ReMax (Li et al. 2023,
arXiv 2310.10505) without one, as far as no process is in them.

The reward of a response comes with its last token; every token is charged for how much likelier it is under the policy
than under the reference model, kl (log p - log p_ref), as in InstructGPT (arXiv 2203.02155) and by default in TRL
(PPOTrainer, kl_estimator k1) and verl (kl_penalty kl). With the critic's values V and d_t = r_t + gamma V_t+1 - V_t the
advantage of a token is the sum of (gamma lambda)^i d_t+i (GAE, arXiv 1506.02438), its return that and its value. Before
they are used advantages are shifted and scaled to mean 0 and variance 1, over all tokens of the batch (as TRL and verl
do). With ReMax the advantage of a token is all that comes from it on, less the reward of the greedy response to its
prompt.
"""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Floats
from zbench.rollouts.experience import CRITIC, DISCOUNT, TRACE, Experience, Rollout, ValueEstimates

LEAST_VARIANCE = 1e-8  # added to that of advantages, as TRL and verl do


def ppo_experience(
    rollouts: Sequence[Rollout],
    rewards: Floats,
    values: Sequence[Floats],
    kl: float = 0.0,
    reference: Sequence[Floats] = (),
) -> Experience:
    """Returns what PPO learns from. values: of each token of each response, the critic's; kl: the coefficient of the KL
    term; reference: negative log-likelihoods under the reference model, () without that term."""
    given = token_rewards(rollouts, rewards, kl, reference)
    advantages, critic = estimated(given, values)
    return Experience(whitened(advantages), critics={CRITIC: critic})


def estimated(rewards: Sequence[Floats], values: Sequence[Floats]) -> tuple[list[Floats], ValueEstimates]:
    """Returns the advantages of each token of each response, and what a critic with these values learns from its
    rewards."""
    advantages = [generalized_advantages(*pair) for pair in zip(rewards, values, strict=True)]
    returns = [one + value for one, value in zip(advantages, values, strict=True)]
    return advantages, ValueEstimates(values, returns)


def remax_experience(
    rollouts: Sequence[Rollout],
    rewards: Floats,
    greedy: Floats,
    kl: float = 0.0,
    reference: Sequence[Floats] = (),
) -> Experience:
    """Returns what ReMax learns from. greedy: of each rollout, the reward of the greedy response to its prompt; kl and
    reference as of ppo_experience."""
    given = token_rewards(rollouts, rewards, kl, reference)
    advantages = [one[::-1].cumsum()[::-1] - base for one, base in zip(given, greedy.tolist(), strict=True)]
    return Experience(advantages)


def token_rewards(rollouts: Sequence[Rollout], rewards: Floats, kl: float, reference: Sequence[Floats]) -> list[Floats]:
    """Returns the reward of each token of each response. Arguments as of ppo_experience."""
    found = []
    for number, (one, reward) in enumerate(zip(rollouts, rewards.tolist(), strict=True)):
        given = -kl * (reference[number] - one.before) if kl else np.zeros(len(one.before))
        given[-1] += reward
        found.append(given)
    return found


def generalized_advantages(rewards: Floats, values: Floats, discount: float = DISCOUNT, trace: float = TRACE) -> Floats:
    """Returns the advantage of each token of a response by GAE; after the last one there is no value."""
    found, after, advantage = np.zeros(len(rewards)), 0.0, 0.0
    for at in range(len(rewards) - 1, -1, -1):
        difference = rewards[at] + discount * after - values[at]
        advantage = difference + discount * trace * advantage
        found[at], after = advantage, values[at]
    return found


def whitened(advantages: Sequence[Floats]) -> list[Floats]:
    """Returns advantages with mean 0 and variance 1 over all tokens."""
    every = np.concatenate(advantages)
    scale = (every.var() + LEAST_VARIANCE) ** -0.5
    return [(one - every.mean()) * scale for one in advantages]
