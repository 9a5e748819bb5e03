"""Group relative policy optimisation (GRPO, Shao et al. 2024, arXiv 2402.03300), as far as no process is in it.

Several responses to each prompt are a group, and the advantage of each is its reward less the group's mean, over the
group's standard deviation. A token's loss is PPO's clipped one of its advantage and of how much likelier it has become
since it was generated, so several updates may follow a batch of rollouts. The mean is over all tokens of all responses,
as in DAPO (arXiv 2503.14476), so that it is the same however a batch is divided. A reference policy has no term in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints

CLIP = 0.2  # PPO (arXiv 1707.06347), section 6.1
LEAST_DEVIATION = 1e-6  # added to a group's, as public trainers do, so that a group of equal rewards has no advantage


@dataclass(frozen=True)
class Rollout:
    """A prompt and the response to it. tokens: of both, of which the first `prompt` are the prompt's. before: of each
    token of the response, its negative log-likelihood when it was generated."""

    tokens: Ints
    prompt: int
    before: Floats

    @property
    def response(self) -> Ints:
        """The tokens of the response."""
        return self.tokens[self.prompt :]


@dataclass(frozen=True)
class TrainingTokens:
    """The tokens of a batch of rollouts, with the advantage of each one's target and the target's negative
    log-likelihood before, by the rollout's number; both are 0 where the target is of no response. counted: tokens of
    responses, over which the mean is. clip: how far ratios may be from 1."""

    tokens: Mapping[int, Ints]
    advantages: Mapping[int, Floats]
    before: Mapping[int, Floats]
    counted: int
    clip: float = CLIP


NOTHING = TrainingTokens({}, {}, {}, 0)


def group_advantages(rewards: Floats, group: int) -> Floats:
    """Returns the advantage of each response, float64 [responses]. group: how many of them follow each prompt."""
    each = rewards.reshape(-1, group)
    found = (each - each.mean(axis=1, keepdims=True)) / (each.std(axis=1, keepdims=True) + LEAST_DEVIATION)
    return np.asarray(found.reshape(-1), np.float64)


def training_tokens(rollouts: Sequence[Rollout], advantages: Floats) -> TrainingTokens:
    """Returns what a batch of rollouts trains with: a token's loss is that of the next one, which counts where that is
    of the response."""
    tokens = {number: one.tokens for number, one in enumerate(rollouts)}
    given = {number: np.zeros(len(one)) for number, one in tokens.items()}
    before = {number: np.zeros(len(one)) for number, one in tokens.items()}
    for number, one in enumerate(rollouts):
        given[number][one.prompt - 1 : -1] = advantages[number]
        before[number][one.prompt - 1 : -1] = one.before
    return TrainingTokens(tokens, given, before, sum(len(one.response) for one in rollouts))
