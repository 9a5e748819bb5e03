"""Group relative policy optimisation (GRPO, Shao et al. 2024, arXiv 2402.03300), as far as no process is in it.

Several responses to each prompt are a group, and the advantage of each is its reward less the group's mean, over the
group's standard deviation. One update follows each batch of rollouts, so the policy that is updated is the one that
generated: the ratio of both is 1, and the gradient of the objective is that of the advantage times the token's negative
log-likelihood. An advantage is then the weight of a token's loss. The mean is over all tokens of all responses, as in
DAPO (arXiv 2503.14476), so that it is the same however a batch is divided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints

LEAST_DEVIATION = 1e-6  # added to a group's, as public trainers do, so that a group of equal rewards has no advantage


@dataclass(frozen=True)
class Rollout:
    """A prompt and the response to it. tokens: of both."""

    tokens: Ints
    prompt: int

    @property
    def response(self) -> Ints:
        """The tokens of the response."""
        return self.tokens[self.prompt :]


@dataclass(frozen=True)
class TrainingTokens:
    """The tokens of a batch of rollouts and the weights of their losses, by the rollout's number. counted: of all
    responses, over which the mean is."""

    tokens: Mapping[int, Ints]
    weights: Mapping[int, Floats]
    counted: int


def group_advantages(rewards: Floats, group: int) -> Floats:
    """Returns the advantage of each response, float64 [responses]. group: how many of them follow each prompt."""
    each = rewards.reshape(-1, group)
    found = (each - each.mean(axis=1, keepdims=True)) / (each.std(axis=1, keepdims=True) + LEAST_DEVIATION)
    return np.asarray(found.reshape(-1), np.float64)


def training_tokens(rollouts: Sequence[Rollout], advantages: Floats) -> TrainingTokens:
    """Returns what a batch of rollouts trains with: a token's loss is that of the next one, which counts where that is
    of the response."""
    weights = {}
    for number, (one, advantage) in enumerate(zip(rollouts, advantages.tolist(), strict=True)):
        weights[number] = np.zeros(len(one.tokens))
        weights[number][one.prompt - 1 : -1] = advantage
    tokens = {number: one.tokens for number, one in enumerate(rollouts)}
    return TrainingTokens(tokens, weights, sum(len(one.response) for one in rollouts))
