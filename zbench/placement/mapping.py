"""HybridFlow's search for a mapping of models to GPUs (arXiv 2409.19256, section 6, algorithm 1). Pure: no clock.

Models of a set share its GPUs and take turns; sets work beside each other. A stage of an iteration takes, on a set, the
sum of its models' seconds, and on the cluster the longest of all sets; an iteration is the sum of its stages.

1. Every way to divide the models into sets (of four models 15, of five 52).
2. For each set the fewest GPUs on which it has room.
3. Every way to give the sets so many GPUs or more, up to all there are.
4. For each set on its GPUs the layouts of its models. The paper takes the fastest of each model by itself; here those
   of a set are chosen together, as they share memory, and all choices stay that no other one beats in every stage.
5. The fastest of all of these.

What is given out is looked at in the order of the seconds that it takes at least, so that what cannot be the fastest
any more is not priced.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product, starmap
from typing import TypeVar

Set = tuple[str, ...]  # models that share GPUs
Partition = tuple[Set, ...]
StageTimes = tuple[float, ...]  # of each stage of an iteration
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """A way in which a model lies on the GPUs of a set. kept: bytes on each of them at all times; extra: bytes that the
    model needs besides while it works; seconds: in each stage of an iteration, 0 where it does nothing; words: what it
    is, for people."""

    kept: float
    extra: float
    seconds: StageTimes
    words: str = ""


@dataclass(frozen=True, slots=True)
class PlacedSet:
    """A set of models on GPUs of its own, with the layout of each."""

    models: Set
    gpus: int
    layouts: tuple[ModelLayout, ...]

    @property
    def seconds(self) -> StageTimes:
        """The seconds of each stage: its models take turns."""
        return _taking_turns([one.seconds for one in self.layouts])

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
        return _at_once([one.seconds for one in self.sets])

    @property
    def seconds(self) -> float:
        """The seconds of an iteration."""
        return sum(self.stages)


@dataclass
class MappingSearch:
    """The search. gpus: of the cluster. sizes: numbers of GPUs that a set may have, ascending. memory: bytes of a GPU.
    layouts: of a model on so many GPUs. least: seconds of each stage that none of these layouts can beat. keeps: bytes
    that a model keeps at least, on all GPUs of its set together, whatever its layout."""

    gpus: int
    sizes: Sequence[int]
    memory: float
    layouts: Callable[[str, int], Sequence[ModelLayout]]
    least: Callable[[str, int], StageTimes]
    keeps: Callable[[str], float]
    _sets: dict[tuple[Set, int], tuple[PlacedSet, ...]] = field(default_factory=dict, init=False, repr=False)

    def best(self, partitions: Iterable[Partition]) -> ModelPlacement | None:
        """Returns the fastest placement whose sets are those of one of the partitions; None: none has room."""
        every = [(partition, gpus) for partition in partitions for gpus in self._allocations(partition)]
        bounds = [self._bound(*one) for one in every]
        found: ModelPlacement | None = None
        for at in sorted(range(len(every)), key=bounds.__getitem__):
            if found is not None and bounds[at] >= found.seconds:
                break
            for sets in product(*starmap(self.placed, zip(*every[at], strict=True))):
                one = ModelPlacement(sets)
                if found is None or one.seconds < found.seconds:
                    found = one
        return found

    def _bound(self, partition: Partition, gpus: tuple[int, ...]) -> float:
        """Returns the seconds that no placement of sets on so many GPUs each can beat."""
        sets = [_taking_turns([self.least(model, each) for model in models])
                for models, each in zip(partition, gpus, strict=True)]  # fmt: skip
        return sum(_at_once(sets))

    def fewest(self, models: Set) -> int | None:
        """Returns the fewest GPUs on which what the models of a set keep has room; None: all are too few."""
        kept = sum(map(self.keeps, models))
        return next((size for size in self.sizes if size <= self.gpus and kept / size <= self.memory), None)

    def _allocations(self, partition: Partition) -> Iterator[tuple[int, ...]]:
        """Yields the GPUs of each set, no fewer than it needs, no more than there are together."""
        fewest = [least for models in partition if (least := self.fewest(models)) is not None]
        if len(fewest) == len(partition):
            yield from _shares(fewest, self.sizes, self.gpus)

    def placed(self, models: Set, gpus: int) -> tuple[PlacedSet, ...]:
        """Returns a set with every choice of layouts that fits and that no other beats; none: it does not fit."""
        if (models, gpus) not in self._sets:
            every = [_unbeaten(self.layouts(model, gpus), _all_of) for model in models]
            fitting = [one for chosen in product(*every) if (one := PlacedSet(models, gpus, chosen)).fits(self.memory)]
            self._sets[models, gpus] = tuple(_unbeaten(fitting, lambda one: one.seconds))
        return self._sets[models, gpus]


def set_partitions(models: Sequence[str]) -> Iterator[Partition]:
    """Yields every way to divide models into sets."""
    if not models:
        yield ()
        return
    first, *others = models
    for partition in set_partitions(others):
        yield ((first,), *partition)
        for at, one in enumerate(partition):
            yield (*partition[:at], (first, *one), *partition[at + 1 :])


def _shares(fewest: Sequence[int], sizes: Sequence[int], left: int) -> Iterator[tuple[int, ...]]:
    """Yields sizes, one for each of `fewest` and no smaller, that are together at most `left`."""
    if not fewest:
        yield ()
        return
    for size in sizes:
        if fewest[0] <= size <= left - sum(fewest[1:]):
            for others in _shares(fewest[1:], sizes, left - size):
                yield (size, *others)


def _taking_turns(seconds: Sequence[StageTimes]) -> StageTimes:
    return tuple(map(sum, zip(*seconds, strict=True)))


def _at_once(seconds: Sequence[StageTimes]) -> StageTimes:
    return tuple(map(max, zip(*seconds, strict=True)))


def _all_of(one: ModelLayout) -> StageTimes:
    return (one.kept, one.extra, *one.seconds)


def _unbeaten(every: Sequence[T], of: Callable[[T], StageTimes]) -> list[T]:
    """Returns those that no other one is as good as in everything that `of` gives; of equal ones the first."""
    kept: list[T] = []
    for one in sorted(every, key=of):
        if not any(all(a <= b for a, b in zip(of(other), of(one), strict=True)) for other in kept):
            kept.append(one)
    return kept
