"""HybridFlow's search for a mapping of models to GPUs (arXiv 2409.19256, section 6, algorithm 1). Pure: no clock.

Models of a set share its GPUs and take turns; sets work beside each other. A stage of an iteration takes, on a set, the
sum of its models' seconds, and on the cluster the longest of all sets; an iteration is the sum of its stages.

1. Every way to divide the models into sets (of four models 15, of five 52).
2. For each set the fewest GPUs on which it has room.
3. Every way to give the sets so many GPUs or more, up to all there are.
4. For each set on its GPUs the layouts of its models. The paper takes the fastest of each model by itself; here those
   of a set are chosen together, as they share memory, and all choices stay that no other one beats in every stage.
5. The fastest of all of these.

What is given out is looked at in the order of the seconds that it takes at least, and so are the layouts of its models
(zbench.placement.allocation): what cannot be the fastest any more is not priced.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from zbench.placement.allocation import Allocation
from zbench.placement.layout import (
    LayoutOffer,
    ModelPlacement,
    Partition,
    Set,
    StageTimes,
    taking_turns,
    working_at_once,
)


@dataclass
class MappingSearch:
    """The search. gpus: of the cluster. sizes: numbers of GPUs that a set may have, ascending. memory: bytes of a GPU.
    offers: the layouts of a model on so many GPUs. least: seconds of each stage that none of these can beat. keeps:
    bytes that a model keeps at least, on all GPUs of its set together, whatever its layout."""

    gpus: int
    sizes: Sequence[int]
    memory: float
    offers: Callable[[str, int], Sequence[LayoutOffer]]
    least: Callable[[str, int], StageTimes]
    keeps: Callable[[str], float]

    def best(self, partitions: Iterable[Partition]) -> ModelPlacement | None:
        """Returns the fastest placement whose sets are those of one of the partitions; None: none has room."""
        every = [(partition, gpus) for partition in partitions for gpus in self._allocations(partition)]
        bounds = [self._bound(*one) for one in every]
        found: ModelPlacement | None = None
        for at in sorted(range(len(every)), key=bounds.__getitem__):
            if found is not None and bounds[at] >= found.seconds:
                break
            sets = zip(*every[at], strict=True)
            offers = [{model: self.offers(model, gpus) for model in models} for models, gpus in sets]
            limit = inf if found is None else found.seconds
            found = Allocation(*every[at], self.memory, offers, limit).best() or found
        return found

    def _bound(self, partition: Partition, gpus: tuple[int, ...]) -> float:
        """Returns the seconds that no placement of sets on so many GPUs each can beat."""
        sets = [taking_turns([self.least(model, each) for model in models])
                for models, each in zip(partition, gpus, strict=True)]  # fmt: skip
        return sum(working_at_once(sets))

    def fewest(self, models: Set) -> int | None:
        """Returns the fewest GPUs on which what the models of a set keep has room; None: all are too few."""
        kept = sum(map(self.keeps, models))
        return next((size for size in self.sizes if size <= self.gpus and kept / size <= self.memory), None)

    def _allocations(self, partition: Partition) -> Iterator[tuple[int, ...]]:
        """Yields the GPUs of each set, no fewer than it needs, no more than there are together."""
        fewest = [least for models in partition if (least := self.fewest(models)) is not None]
        if len(fewest) == len(partition):
            yield from _shares(fewest, self.sizes, self.gpus)


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
