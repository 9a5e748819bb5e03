"""The loss of a token as a function of its negative log-likelihood where it is not that itself: a policy's objective.

The clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347), which GRPO (arXiv 2402.03300) has, too: with r
the ratio of the token's likelihood to that under the policy that generated it, and A its advantage, the loss is
-min(r A, clip(r) A). Its slope is r A where r A is the smaller one, 0 elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Floats, Ints


@dataclass(frozen=True)
class PolicyLoss:
    """The losses of some tokens. advantages, before: of each, [T], its advantage, and its negative log-likelihood when
    it was generated. clip: how far ratios may be from 1."""

    advantages: Tensor
    before: Tensor
    clip: float

    def values(self, now: Tensor) -> Tensor:
        """Returns losses. now: negative log-likelihoods, [T]."""
        plain, clipped = self._sides(now)
        return -torch.minimum(plain, clipped)

    def slopes(self, now: Tensor) -> Tensor:
        """Returns the derivatives of losses by negative log-likelihoods."""
        plain, clipped = self._sides(now)
        return torch.where(plain <= clipped, plain, 0.0)

    def _sides(self, now: Tensor) -> tuple[Tensor, Tensor]:
        ratio = (self.before.to(now.dtype) - now).exp()
        advantages = self.advantages.to(now.dtype)
        return ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages


@dataclass(frozen=True)
class PolicyTokens:
    """The advantage and the likelihood of every token, by the sequence's number in the batch, as of PolicyLoss; 0 where
    a token's target was not generated."""

    advantages: Mapping[int, Floats]
    before: Mapping[int, Floats]
    clip: float

    def of(self, sequence: Ints, position: Ints, like: Tensor) -> PolicyLoss:
        """Returns the losses at positions of sequences. like: of the dtype and on the device that is computed with."""
        advantages, before = np.zeros((2, len(sequence)))
        for one in np.unique(sequence).tolist():
            mine = sequence == one
            advantages[mine] = self.advantages[one][position[mine]]
            before[mine] = self.before[one][position[mine]]
        return PolicyLoss(torch.from_numpy(advantages).to(like), torch.from_numpy(before).to(like), self.clip)
