"""Systems around systems: a batch in parts, for systems that do not choose a number of micro-batches themselves and for
workers that train apart, what is made for each batch, plans that are changed after planning, and the best of
several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.batch import Batch
from zbench.interfaces.abilities import UsesPackages
from zbench.interfaces.protocols import System
from zbench.plans.plan import Ints, Plan
from zbench.plans.workers import joined_plans


@dataclass(frozen=True, slots=True)
class AroundSystem:
    """A system around another one, of whose plans it makes its own."""

    system: System

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of `system` (zbench.interfaces.protocols)."""
        return self.system.packages if isinstance(self.system, UsesPackages) else ()


@dataclass(frozen=True, slots=True)
class Dealt(AroundSystem):
    """A system that is given a batch in `count` parts of about equal tokens, one after the other; in fewer where there
    are fewer sequences. What it needs more micro-batches for, as memory, it still decides.

    made: makes the system for a part that is the first of its step, or not, and the last, or not
    (zbench.cost.cost.Cost.of_part), as a step gathers and reduces some once; None: `system` plans all parts alike."""

    count: int
    made: Callable[[bool, bool], System] | None = None
    known: dict[tuple[bool, bool], System] = field(default_factory=dict, repr=False, compare=False)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the plans of all parts, one part after the other."""
        every = np.arange(len(batch.lengths), dtype=np.int64)
        plans: list[Plan] = []
        parts = dealt(every, batch.lengths, min(self.count, len(every)))
        for number, part in enumerate(parts):
            found = self._of_part(number == 0, number == len(parts) - 1).plan(batch.of_sequences(part))
            plans += [plan.with_(sequences=part[plan.sequences]) for plan in found]
        return tuple(plans)

    def _of_part(self, first: bool, last: bool) -> System:
        """Returns the system of such a part, made when the first of its kind is planned."""
        if self.made is None or (first and last):
            return self.system
        if (first, last) not in self.known:
            self.known[first, last] = self.made(first, last)
        return self.known[first, last]


@dataclass(frozen=True, slots=True)
class WorkerPlans(AroundSystem):
    """A system that plans for every worker by itself: a batch's sequences are dealt in `count` parts by their tokens,
    the longest first, whole, and which worker has which part is drawn (by the batch's seed and step), or the longest
    sequence of every batch would be the same worker's. A worker has none where there are fewer sequences."""

    count: int

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the plans of all workers, side by side."""
        every, groups = np.arange(len(batch.lengths), dtype=np.int64), list[tuple[Plan, ...]]()
        parts = dealt(every, batch.lengths, self.count)
        for at in np.random.default_rng((batch.seed, batch.step)).permutation(self.count).tolist():
            part = parts[at]
            if not len(part):
                groups.append(())
                continue
            found = self.system.plan(batch.of_sequences(part))
            groups.append(tuple(plan.with_(sequences=part[plan.sequences]) for plan in found))
        return joined_plans(groups)


@dataclass(frozen=True, slots=True)
class ChangedPlans(AroundSystem):
    """A system whose plans are changed before anything else sees them. change: a batch and its plans to other plans of
    the same micro-batches."""

    change: Callable[[Batch, tuple[Plan, ...]], tuple[Plan, ...]]

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the changed plans."""
        return self.change(batch, self.system.plan(batch))


@dataclass(frozen=True, slots=True)
class MadeForDraws(AroundSystem):
    """A system that is made anew for every batch, as what it plans for depends on what is drawn with it. system: as it
    is made for any batch; made: for a batch's seed and step."""

    made: Callable[[int, int], System]

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the plans of the system that is made for the batch."""
        return self.made(batch.seed, batch.step).plan(batch)


@dataclass(frozen=True, slots=True)
class BestPlans(AroundSystem):
    """A system that plans each batch in several ways, of which one is taken. system: as it is made for a run; tried:
    made for each way, by name. best: a batch and its plans by name to those that are taken."""

    tried: Mapping[str, System]
    best: Callable[[Batch, Mapping[str, tuple[Plan, ...]]], tuple[Plan, ...]]

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the plans of the way that is best for the batch."""
        return self.best(batch, {name: tuple(system.plan(batch)) for name, system in self.tried.items()})


def undealt(system: System) -> System:
    """Returns the system itself, without what gives it parts of batches, makes it anew, changes its plans or chooses
    among them around it."""
    return undealt(system.system) if isinstance(system, AroundSystem) else system


def dealt(seqs: Ints, lengths: Ints, count: int) -> list[Ints]:
    """Deals `seqs` to `count` parts of about equal tokens, the longest first, each to the part with the fewest
    tokens."""
    parts: list[list[int]] = [[] for _ in range(count)]
    held = np.zeros(count, np.int64)
    for seq in seqs[np.argsort(-lengths[seqs], kind="stable")]:
        part = int(held.argmin())
        parts[part].append(int(seq))
        held[part] += lengths[seq]
    return [np.sort(np.array(part, np.int64)) for part in parts]
