"""The loss of a token as a function of what its model makes of it: of the negative log-likelihood of its target, or of
its value, where the loss is not the likelihood itself.

Labels that do not count, as those of prompts where a model is fine-tuned on responses: their tokens have no loss.

A policy: the clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347), which GRPO (arXiv 2402.03300) has, too:
with r the ratio of the token's likelihood to that under the policy that generated it, and A its advantage, the loss is
-min(r A, clip(r) A). Its slope is r A where r A is the smaller one, 0 elsewhere. To it comes a KL term, kl (p - log p -
1), of the ratio p of the likelihood under a reference model to the policy's: GRPO's (equation 4), as TRL's GRPOTrainer
has it; verl calls it low_var_kl. It is the estimator k3 of Schulman's note Approximating KL divergence (2020).

A critic: half of (v - R)^2 of the value v and the return R, or of what that is with v kept within `clip` of the value
before, whichever is larger, as in OpenAI's baselines (ppo2), TRL (PPOTrainer, cliprange_value) and verl.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Floats, Ints


class TokenLoss(Protocol):
    """The losses of some tokens."""

    def values(self, made: Tensor) -> Tensor:
        """Returns losses. made: what the model makes of the tokens, [T]."""

    def slopes(self, made: Tensor) -> Tensor:
        """Returns the derivatives of losses by what the model makes of the tokens."""


class TokenLosses(Protocol):
    """The losses of all tokens of a batch."""

    def of(self, sequence: Ints, position: Ints, like: Tensor) -> TokenLoss:
        """Returns the losses at positions of sequences, these by their numbers in the batch. like: of the dtype and on
        the device that is computed with."""


@dataclass(frozen=True)
class CountedLoss:
    """The losses of tokens some of whose labels do not count. counts: 1 of those whose label counts, 0 of others,
    [T]."""

    counts: Tensor

    def values(self, made: Tensor) -> Tensor:
        """Returns losses. made: negative log-likelihoods, [T]."""
        return made * self.counts

    def slopes(self, made: Tensor) -> Tensor:
        """Returns the derivatives of losses by negative log-likelihoods."""
        return self.counts


@dataclass(frozen=True)
class PolicyLoss:
    """The losses of some tokens. counts: 1 of those whose target was generated, 0 of others, [T]; advantages, before,
    reference: of each its advantage, and its negative log-likelihood when it was generated and under the reference
    model, the latter with a KL term alone. clip: how far ratios may be from 1; kl: the coefficient of that term."""

    counts: Tensor
    advantages: Tensor
    before: Tensor
    clip: float
    kl: float = 0.0
    reference: Tensor | None = None

    def values(self, made: Tensor) -> Tensor:
        """Returns losses. made: negative log-likelihoods, [T]."""
        plain, clipped = self._sides(made)
        found = -torch.minimum(plain, clipped)
        if self.reference is not None:
            further = (made - self.reference) * self.counts
            found = found + self.kl * (further.exp() - further - 1)
        return found

    def slopes(self, made: Tensor) -> Tensor:
        """Returns the derivatives of losses by negative log-likelihoods."""
        plain, clipped = self._sides(made)
        found = torch.where(plain <= clipped, plain, 0.0)
        if self.reference is not None:
            found = found + self.kl * (((made - self.reference) * self.counts).exp() - 1)
        return found

    def _sides(self, made: Tensor) -> tuple[Tensor, Tensor]:
        ratio = ((self.before - made) * self.counts).exp()
        return ratio * self.advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * self.advantages


@dataclass(frozen=True)
class ValueLoss:
    """The losses of some tokens of a critic. counts: as of PolicyLoss; returns, before: of each what it is trained to,
    and its value before the first update. clip: how far values may be from those before."""

    counts: Tensor
    returns: Tensor
    before: Tensor
    clip: float

    def values(self, made: Tensor) -> Tensor:
        """Returns losses. made: values, [T]."""
        plain, clipped = self._sides(made)
        return torch.maximum(plain**2, clipped**2) / 2

    def slopes(self, made: Tensor) -> Tensor:
        """Returns the derivatives of losses by values."""
        plain, clipped = self._sides(made)
        return torch.where(plain**2 >= clipped**2, plain, 0.0)

    def _sides(self, made: Tensor) -> tuple[Tensor, Tensor]:
        near = torch.minimum(torch.maximum(made, self.before - self.clip), self.before + self.clip)
        return (made - self.returns) * self.counts, (near - self.returns) * self.counts


@dataclass(frozen=True)
class GivenLosses:
    """The losses of tokens of which some numbers are given. columns: by the name of each number and the sequence's
    number; make: the loss of tokens by these names."""

    columns: Mapping[str, Mapping[int, Floats]]
    make: Callable[..., TokenLoss]

    def of(self, sequence: Ints, position: Ints, like: Tensor) -> TokenLoss:
        """Returns the losses at positions of sequences, as of TokenLosses."""
        found = {name: np.zeros(len(sequence)) for name in self.columns}
        for one in np.unique(sequence).tolist():
            mine = sequence == one
            for name, column in self.columns.items():
                found[name][mine] = column[one][position[mine]]
        return self.make(**{name: torch.from_numpy(column).to(like) for name, column in found.items()})


Scored = tuple[Ints, Ints, Floats]  # sequences and positions of tokens, and what a model made of them


@dataclass
class NotedScores:
    """Notes what a model makes of tokens, whose losses are that. found: by the computes that made it."""

    found: list[Scored] = field(default_factory=list)

    def of(self, sequence: Ints, position: Ints, like: Tensor) -> TokenLoss:
        """Returns the losses at positions of sequences, as of TokenLosses."""
        return _Noted(self, sequence, position)


@dataclass(frozen=True)
class _Noted:
    scores: NotedScores
    sequence: Ints
    position: Ints

    def values(self, made: Tensor) -> Tensor:
        self.scores.found.append((self.sequence, self.position, made.detach().double().cpu().numpy()))
        return made

    def slopes(self, made: Tensor) -> Tensor:
        return torch.ones_like(made)
