"""The sets of models that share GPUs, when a loop runs: each set has ranks of its own, one set behind the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.describe.checks import check_choice
from zbench.describe.rollouts.stages import ACTOR, COLOCATE, PLACEMENTS, placed_sets
from zbench.describe.units import with_noun


@dataclass(frozen=True)
class ModelSets:
    """Sets of models. models: the names of each set's, the actor's set first; gpus: of each set."""

    models: tuple[tuple[str, ...], ...]
    gpus: tuple[int, ...]

    @staticmethod
    def of(placement: str, models: Sequence[str], own: int, beside: Sequence[int]) -> "ModelSets":
        """Returns the sets of a placement (zbench.describe.rollouts.stages.placed_sets). models: without the actor.
        own: GPUs of the actor's set; beside: of each set behind it.

        Raises:
            ValueError: there is no such placement, no model for a second set, or other numbers than one of at least 1
                for each set.
        """
        check_choice("placement", placement, PLACEMENTS)
        sets = placed_sets(placement, (ACTOR, *models))
        told = "; ".join(map(", ".join, sets))
        if placement != COLOCATE and len(sets) == 1:
            raise ValueError(
                f"placement is {placement} and the models are {told}; there is no critic and no reward model for GPUs "
                f"beside the actor's, so it takes {COLOCATE}"
            )
        if len(beside) != len(sets) - 1:
            raise ValueError(
                f"beside is {list(beside)}; with placement={placement} it takes {with_noun(len(sets) - 1, 'number')}, "
                f"the GPUs of each set behind the actor's ({told})"
            )
        for some, count in zip(sets[1:], beside, strict=True):
            if count < 1:
                raise ValueError(
                    f"beside is {list(beside)}; the set of {', '.join(some)} has {count} GPUs, and takes at least 1"
                )
        return ModelSets(sets, (own, *beside))

    @property
    def of_ranks(self) -> list[int]:
        """The number of each GPU's set."""
        return [number for number, count in enumerate(self.gpus) for _ in range(count)]

    def place_of(self, model: str) -> tuple[int, int]:
        """Returns the first GPU of a model's set, and how many that has."""
        at = next(number for number, some in enumerate(self.models) if model in some)
        return sum(self.gpus[:at]), self.gpus[at]
