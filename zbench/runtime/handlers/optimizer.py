"""The updates of a step, on whatever cells a place updates: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), and
what a round of steps ends with."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from zbench.describe.sync import RoundSync
from zbench.runtime.handlers.formats import WHOLE, Fields
from zbench.runtime.job.job import AdamW
from zbench.step.outer_update import outer_update, taken

Parameter = tuple[str, int]  # its name, and the layer, 0 of one that is of no layer


class Update(Protocol):
    """An update of a parameter's cells."""

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        """Returns the state after the update, of which the first field is the parameter in the wide dtype.

        state: of the parameter, before the update. gradient: of the sum of all tokens' losses.
        """


@dataclass(frozen=True)
class AdamWUpdate:
    """The update number `count`, from 1, with the settings `of`. num_labels: of the batch, those that count, whose mean
    loss is minimised. State is the parameter in the wide dtype and its two moments."""

    of: AdamW
    count: int
    num_labels: int

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        weight, first, second = state
        of, mean = self.of, gradient.to(weight.dtype) / self.num_labels
        first = first.lerp(mean, 1 - of.beta1)
        second = (second * of.beta2).addcmul_(mean, mean, value=1 - of.beta2)
        size = (second.sqrt() / (1 - of.beta2**self.count) ** 0.5).add_(of.epsilon)
        decay = of.weight_decay if len(WHOLE[parameter[0]]) > 1 else 0.0  # only matrices decay, as the setting says
        rate = of.lr / (1 - of.beta1**self.count)
        return (weight * (1 - of.lr * decay)).addcdiv_(first, size, value=-rate), first, second


@dataclass(frozen=True)
class AcrossSteps:
    """The updates of a step that begins with gradients of the step before: `before` of those, `now` of its own.
    begun: the parameters whose gradients it begins with."""

    now: Update
    before: Update
    begun: Collection[Parameter]

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        return (self.before if parameter in self.begun else self.now)(parameter, state, gradient)


@dataclass(frozen=True)
class RoundUpdate:
    """The updates that a round ends with: of outer parameters and their momentum by the average, and of a worker's own,
    which go on from an outer parameter or take it up; the moments of its optimizer stay
    (zbench.step.passes.rounds.outer_step)."""

    sync: RoundSync

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        if parameter[0] in WHOLE:
            return taken(self.sync, state[0], gradient).clone(), *state[1:]  # in no piece of the outer parameter
        outer, momentum = state
        return outer_update(self.sync, outer, momentum, gradient)


@dataclass(frozen=True)
class NoUpdate:
    """The update of a step that trains nothing, as of a warm-up: what was there stays."""

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        return state


@dataclass
class NotedUpdate:
    """An update that notes the gradients that it is given. found: by name, in the order of updates."""

    of: Update
    found: list[tuple[str, Tensor]] = field(default_factory=list)

    def __call__(self, parameter: Parameter, state: Fields, gradient: Tensor) -> Fields:
        self.found.append((parameter[0], gradient))
        return self.of(parameter, state, gradient)
