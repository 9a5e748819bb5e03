"""The layouts of models on sets of GPUs: what each keeps and takes, and what a placement of all of them comes to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Set = tuple[str, ...]  # models that share GPUs
Partition = tuple[Set, ...]
StageTimes = tuple[float, ...]  # of each stage of an iteration


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """A way in which a model lies on the GPUs of a set. kept: bytes on each of them at all times; extra: bytes that the
    model needs besides while it works; seconds: in each stage of an iteration, 0 where it does nothing; words: what it
    is, for people."""

    kept: float
    extra: float
    seconds: StageTimes
    words: str = ""


class LayoutOffer(Protocol):
    """A layout that a model may have and that need not be priced yet."""

    @property
    def parts(self) -> Sequence[Callable[[], object]]:
        """The parts of its price, the cheaper ones first; each call makes one."""

    def least(self) -> StageTimes:
        """Returns the seconds of each stage that it cannot beat, by what is priced of it so far."""

    def layout(self) -> ModelLayout | None:
        """Returns the layout, of which all parts are priced; None: it has no room by itself."""


@dataclass(frozen=True, slots=True)
class PlacedSet:
    """A set of models on GPUs of its own, with the layout of each."""

    models: Set
    gpus: int
    layouts: tuple[ModelLayout, ...]

    @property
    def seconds(self) -> StageTimes:
        """The seconds of each stage: its models take turns."""
        return taking_turns([one.seconds for one in self.layouts])

    def fits(self, memory: float) -> bool:
        """Returns whether a GPU has room for what all models keep and what one of them needs besides."""
        return sum(one.kept for one in self.layouts) + max(one.extra for one in self.layouts) <= memory


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """The sets of all models."""

    sets: tuple[PlacedSet, ...]

    @property
    def stages(self) -> StageTimes:
        """The seconds of each stage: that of the set that takes longest."""
        return working_at_once([one.seconds for one in self.sets])

    @property
    def seconds(self) -> float:
        """The seconds of an iteration."""
        return sum(self.stages)


def taking_turns(seconds: Sequence[StageTimes]) -> StageTimes:
    """Returns the seconds of each stage of models that share GPUs."""
    return tuple(map(sum, zip(*seconds, strict=True)))


def working_at_once(seconds: Sequence[StageTimes]) -> StageTimes:
    """Returns the seconds of each stage of sets that work beside each other."""
    return tuple(map(max, zip(*seconds, strict=True)))
