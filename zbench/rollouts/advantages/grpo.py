"""Group relative policy optimisation (GRPO, Shao et al. 2024, arXiv 2402.03300), as far as no process is in it.

Several responses to each prompt are a group, and the advantage of each is its reward less the group's mean, over the
group's standard deviation. A token's loss is PPO's clipped one of its advantage and of how much likelier it has become
since it was generated, so several updates may follow a batch of rollouts. The mean is over all tokens of all responses,
as in DAPO (arXiv 2503.14476), so that it is the same however a batch is divided. To it comes a coefficient times the KL
term of every token (zbench.runtime.handlers.token_loss).
"""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Floats
from zbench.rollouts.experience import Experience, Rollout

LEAST_DEVIATION = 1e-6  # added to a group's, as public trainers do, so that a group of equal rewards has no advantage


def group_advantages(rewards: Floats, group: int) -> Floats:
    """Returns the advantage of each response, float64 [responses]. group: how many of them follow each prompt."""
    each = rewards.reshape(-1, group)
    found = (each - each.mean(axis=1, keepdims=True)) / (each.std(axis=1, keepdims=True) + LEAST_DEVIATION)
    return np.asarray(found.reshape(-1), np.float64)


def grpo_experience(rollouts: Sequence[Rollout], rewards: Floats, group: int) -> Experience:
    """Returns what GRPO learns from. rewards, group: as of group_advantages."""
    each = group_advantages(rewards, group).tolist()
    return Experience([np.full(len(one.before), value) for one, value in zip(rollouts, each, strict=True)])
