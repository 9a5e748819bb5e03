"""The study before a run: what a configuration may be chosen by, and what was chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.plans.plan import Plan

# How many is a judgement: on 32 GPUs choosing takes some seconds.
DRAWN = 2000  # batches, of which all but one in a thousand have to fit
HARD = 0.999  # the batch that has to fit memory: where it stands among those drawn, by longest sequence
PLAYED = 20  # batches, evenly from those drawn by longest sequence
PLAYED_WHOLE = 4  # of them, on which a run's choice is judged: its clock plays whole steps


class Compares(Protocol):
    """A judge of candidates' steps: it tells whether they fit, how long they take, and how long at least, with
    nothing done that only a run needs."""

    def fits(self, batch: Batch, plans: tuple[Plan, ...]) -> bool:
        """Returns whether GPUs have room for a step."""

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, infinite where there is no room for it; it need not be proven, as it is not
        run."""

    def least_seconds(self, batch: Batch) -> float:
        """Returns the seconds that no step of a batch's plans can beat, of plans without pipelines of their own."""


Clock = Callable[[Cost], Compares]  # makes what compares steps on the cluster of a cost


@dataclass(frozen=True, slots=True)
class Study:
    """The study that a system is given which chooses a configuration before a run. cluster, model: as configured.
    batch: gives batch number 0, 1, ...; none of them is one of the run's.

    cost_of: the cost model that planners see, of a model with some parallelism (ValueError: it does not divide).
    clock: the run's own, of whole steps, by which the better ones are judged (ValueError: it does not play such a
        model). What is tried first is played by zbench.simulator.estimate.step.
    judged: how many batches of a sample the best are played on.
    trains: whether plans are run for real; then the model stays as configured.
    tell: takes a word on what is being done, as choosing may take a minute.
    free: groups that every system chooses (zbench.run.fastest.FREE).
    """

    cluster: Cluster
    model: Model
    batch: Callable[[int], Batch]
    cost_of: Callable[[Model], Cost]
    clock: Clock
    judged: int = PLAYED
    trains: bool = False
    tell: Callable[[str], None] = field(default=lambda _: None)
    free: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice made before a run: keys of the model, keys of whatever makes the plans, and both in words."""

    model: Mapping[str, Any]
    keys: Mapping[str, Any]
    words: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The batches by which a distribution of lengths is judged. hard: a batch that has to fit memory, as its longest
    sequence is exceeded in one batch of a thousand alone. played: batches whose steps are played, by longest
    sequence."""

    hard: Batch
    played: Sequence[Batch]

    @staticmethod
    def of(study: Study) -> "Sample":
        """Draws batches and picks those that are judged by."""
        study.tell(f"drawing {DRAWN:,} batches")
        drawn = sorted((study.batch(number) for number in range(DRAWN)), key=lambda batch: int(batch.lengths.max()))
        return Sample(drawn[int(HARD * DRAWN)], _spread(drawn, PLAYED))

    def some(self, count: int) -> Sequence[Batch]:
        """Gives `count` of those to be played, or all where they are fewer."""
        return _spread(self.played, min(count, len(self.played)))


def _spread(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Gives `count` of them, evenly from first to last."""
    return [batches[(2 * i + 1) * len(batches) // (2 * count)] for i in range(count)]
