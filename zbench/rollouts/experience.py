"""Rollouts, and what models that learn from them train with.

A token's loss is a function of what its model makes of the token: of the negative log-likelihood of its target, or of
its value. All that this function takes beside (an advantage, a likelihood or a value of before, a return) is data of a
token as its target is. So a batch may be divided by any system, and of whatever rollouts an update is: the mean is over
the tokens of all of its responses.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.checks import check_whole_number

GRPO, PPO, REMAX, SAFE_RLHF = LEARNT_BY = ("grpo", "ppo", "remax", "safe_rlhf")
CRITIC, COST_CRITIC = CRITICS = ("critic", "cost_critic")  # of rewards, and of costs
CLIP = 0.2  # of ratios: PPO (arXiv 1707.06347), section 6.1
VALUE_CLIP = 0.2  # of values: TRL's PPOConfig.cliprange_value
DISCOUNT, TRACE = 1.0, 0.95  # gamma and lambda of GAE: TRL's PPOConfig.gamma and lam


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
class Learning:
    """The way in which models learn from a batch of rollouts. algorithm: of LEARNT_BY. epochs: how often each rollout
    is trained on; mini_batches: updates of an epoch, each of its share of the rollouts. kl: the coefficient of the
    KL term to the policy that training began with, 0: there is none; GRPO has it in the loss, the others in the
    rewards.

    Raises:
        ValueError: there is no such algorithm, or a number cannot be.
    """

    algorithm: str
    epochs: int = 1
    mini_batches: int = 1
    kl: float = 0.0

    def __post_init__(self) -> None:
        if self.algorithm not in LEARNT_BY:
            raise ValueError(f"algorithm is {self.algorithm!r}; it takes {', '.join(LEARNT_BY)}")
        check_whole_number("epochs", self.epochs, 1)
        check_whole_number("mini_batches", self.mini_batches, 1)
        if not 0 <= self.kl < np.inf:
            raise ValueError(f"kl is {self.kl}; it takes a number from 0 on")

    def updates(self, rollouts: int, seed: int, iteration: int) -> Iterator[list[int]]:
        """Yields the numbers of the rollouts of each update; each epoch divides them anew, by chance.

        Raises:
            ValueError: there are more mini-batches than rollouts.
        """
        if self.mini_batches > rollouts:
            raise ValueError(f"mini_batches is {self.mini_batches}; of {rollouts} rollouts it takes at most as many")
        for epoch in range(self.epochs):
            order = np.random.default_rng([seed, iteration, epoch, len("epoch")]).permutation(rollouts)
            for some in np.array_split(order, self.mini_batches):
                yield sorted(some.tolist())


@dataclass(frozen=True)
class PolicyTargets:
    """The numbers that a policy's losses take, by names of zbench.runtime.handlers.token_loss.PolicyLoss: of every
    token in `columns`, by the rollout's number, and for all of them clip and kl."""

    columns: Mapping[str, Mapping[int, Floats]]
    clip: float
    kl: float


@dataclass(frozen=True)
class ValueTargets:
    """The numbers that a critic's losses take, as of PolicyTargets, by names of ValueLoss there."""

    columns: Mapping[str, Mapping[int, Floats]]
    clip: float


@dataclass(frozen=True)
class TrainingTokens:
    """The tokens of a batch of rollouts by the rollout's number, of those that a GPU has, and what their losses take.
    counted: tokens of all responses of the batch, over which the mean is. targets: None of rollouts that are scored."""

    tokens: Mapping[int, Ints]
    counted: int
    targets: PolicyTargets | ValueTargets | None = None


NOTHING = TrainingTokens({}, 0)


def scored_tokens(rollouts: Sequence[Rollout]) -> TrainingTokens:
    """Returns the tokens of rollouts that are scored, or that a step's parameters are drawn for."""
    return TrainingTokens(dict(enumerate(one.tokens for one in rollouts)), sum(len(one.before) for one in rollouts))


@dataclass(frozen=True)
class ValueEstimates:
    """A critic's values of each token of each response before the first update, and the returns that it is trained
    to."""

    values: Sequence[Floats]
    returns: Sequence[Floats]


@dataclass(frozen=True)
class Experience:
    """The numbers that models learn from, by what they made of a batch of rollouts before the first update. advantages:
    of each token of each response. critics: what each of CRITICS is trained with, where there are some."""

    advantages: Sequence[Floats]
    critics: Mapping[str, ValueEstimates] = field(default_factory=dict)
