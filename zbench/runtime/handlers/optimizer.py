"""The optimizer of a step: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), on whatever cells a place updates."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from zbench.runtime.handlers.formats import Fields


class Update(Protocol):
    """An update of a parameter's cells."""

    def __call__(self, name: str, state: Fields, gradient: Tensor) -> Fields:
        """Returns the state after the update, of which the first field is the parameter in the wide dtype.

        state: of the parameter, before it. gradient: of the sum of all tokens' losses.
        """


@dataclass(frozen=True)
class AdamW:
    """The update number `count`, from 1. num_tokens: of the batch, whose mean loss is minimised.

    State is the parameter in the wide dtype and its two moments. Defaults are torch's.
    """

    count: int
    num_tokens: int
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.01

    def __call__(self, name: str, state: Fields, gradient: Tensor) -> Fields:
        weight, first, second = state
        mean = gradient.to(weight.dtype) / self.num_tokens
        first = first.lerp(mean, 1 - self.betas[0])
        second = (second * self.betas[1]).addcmul_(mean, mean, value=1 - self.betas[1])
        corrected = [1 - beta**self.count for beta in self.betas]
        size = (second.sqrt() / corrected[1] ** 0.5).add_(self.epsilon)
        return (
            (weight * (1 - self.rate * self.decay)).addcdiv_(first, size, value=-self.rate / corrected[0]),
            first,
            second,
        )
