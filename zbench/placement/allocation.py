"""The fastest layouts of models on GPUs that are given out: those are priced that may be part of it.

A layout is told by an offer, which knows what it takes at least. A placement with an offer takes no less than that, and
of all other models what the fastest of their offers take in each stage; so an offer that this puts at the fastest
placement that is known, or above, is left out without a price.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from zbench.placement.layout import (
    LayoutOffer,
    ModelLayout,
    ModelPlacement,
    Partition,
    PlacedSet,
    StageTimes,
    taking_turns,
    working_at_once,
)

T = TypeVar("T")


@dataclass
class Allocation:
    """The sets of a partition on so many GPUs each. memory: bytes of a GPU. offers: of every set, by model. limit:
    seconds of the fastest placement that is known."""

    partition: Partition
    gpus: tuple[int, ...]
    memory: float
    offers: Sequence[Mapping[str, Sequence[LayoutOffer]]]
    limit: float
    _floors: dict[str, StageTimes] = field(default_factory=dict, init=False, repr=False)
    _taken: dict[str, ModelLayout] = field(default_factory=dict, init=False, repr=False)

    def best(self) -> ModelPlacement | None:
        """Returns the fastest placement of these sets; None where it is no faster than the limit, or nothing fits."""
        left = {model: list(offers) for some in self.offers for model, offers in some.items()}
        self._floors = {model: _floor([one.least() for one in offers]) for model, offers in left.items() if offers}
        if len(self._floors) < len(left) or sum(self._stages("", ())) >= self.limit:
            return None
        found: dict[str, list[ModelLayout]] = {model: [] for model in left}
        every = [(self._bound(model, one.least()), model, one) for model, offers in left.items() for one in offers]
        for bound, model, one in sorted(every, key=_first):
            if bound >= self.limit:
                break
            left[model].remove(one)
            layout = self._priced(model, one)
            if layout is not None:
                found[model].append(layout)
                self._try(model, layout)
                known = [*(each.seconds for each in found[model]), *(each.least() for each in left[model])]
                self._floors[model] = _floor(known)
        return self._fastest(found)

    def _bound(self, model: str, least: StageTimes) -> float:
        """Returns the seconds that no placement can beat in which a model takes `least` or more."""
        return sum(self._stages(model, least))

    def _stages(self, model: str, least: StageTimes) -> StageTimes:
        sets = [[least if one == model else self._floors[one] for one in models] for models in self.partition]
        return working_at_once([taking_turns(some) for some in sets])

    def _priced(self, model: str, offer: LayoutOffer) -> ModelLayout | None:
        """Returns the layout of an offer; None where it has no room, or cannot be part of a faster placement."""
        for part in offer.parts:
            if self._bound(model, offer.least()) >= self.limit:
                return None
            part()
        return None if self._bound(model, offer.least()) >= self.limit else offer.layout()

    def _try(self, model: str, layout: ModelLayout) -> None:
        """Takes a layout in place of the one that its model has, if that is faster and fits; so the limit falls before
        all offers are looked at."""
        chosen = {**self._taken, model: layout}
        if len(chosen) < len(self._floors):
            self._taken.setdefault(model, layout)
            return
        one = self._placed([[chosen[name] for name in models] for models in self.partition])
        if one is not None and one.seconds < self.limit:
            self.limit, self._taken = one.seconds, chosen

    def _placed(self, layouts: Sequence[Sequence[ModelLayout]]) -> ModelPlacement | None:
        """Returns the placement of these layouts of every set's models; None: it does not fit."""
        sets = tuple(map(PlacedSet, self.partition, self.gpus, map(tuple, layouts)))
        return ModelPlacement(sets) if all(one.fits(self.memory) for one in sets) else None

    def _fastest(self, found: Mapping[str, Sequence[ModelLayout]]) -> ModelPlacement | None:
        """Returns the fastest placement of layouts that were priced; None: it is no faster than the limit was."""
        sets = []
        for models, each in zip(self.partition, self.gpus, strict=True):
            every = [_unbeaten(found[model], _all_of) for model in models]
            placed = [PlacedSet(models, each, chosen) for chosen in product(*every)]
            sets.append(_unbeaten([one for one in placed if one.fits(self.memory)], lambda one: one.seconds))
        every_placement = map(ModelPlacement, product(*sets))
        return min((one for one in every_placement if one.seconds <= self.limit), key=_seconds, default=None)


def _floor(times: Iterable[StageTimes]) -> StageTimes:
    """Returns the least seconds of each stage."""
    return tuple(map(min, zip(*times, strict=True)))


def _first(one: tuple[float, str, LayoutOffer]) -> float:
    return one[0]


def _seconds(one: ModelPlacement) -> float:
    return one.seconds


def _all_of(one: ModelLayout) -> StageTimes:
    return (one.kept, one.extra, *one.seconds)


def _unbeaten(every: Sequence[T], of: Callable[[T], StageTimes]) -> list[T]:
    """Returns those that no other one is as good as in everything that `of` gives; of equal ones the first."""
    kept: list[T] = []
    for one in sorted(every, key=of):
        if not any(all(a <= b for a, b in zip(of(other), of(one), strict=True)) for other in kept):
            kept.append(one)
    return kept
