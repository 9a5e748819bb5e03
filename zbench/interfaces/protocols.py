"""The four protocols that a run is put together from: workload, system, executor, tracker.

A system and a workload have one method each, an executor three, a tracker six; each is a class and a yaml.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zbench.describe.batch import Batch
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan


class Workload(Protocol):
    """A source of batches. Made with `seed` and `tokens` besides its yaml's keys."""

    def batch(self, step: int) -> Batch:
        """Returns the batch of `step`: a function of (the workload's seed, step) alone, of exactly `tokens` tokens."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step's plans: operations of both lists; pieces that sequences are cut into."""

    operations: int
    pieces: int


class System(Protocol):
    """A planner: it turns a batch into plans. May have `packages`, a tuple of names of distributions: other projects'
    code that its plans or their attention come from. Their versions go into the record.

    May have `plans_stages`, True: it chooses the number of micro-batches of a job with stages (zbench.cost.stacks)
    itself. To others zbench.interfaces.dealt gives a batch in parts.

    May have `choose(study)` and `planner(choice, cost)` in place of `plan`: it chooses a configuration once, before a
    run, from batches like the run's (zbench.interfaces.study), and what plans is made of that (zbench.run.chosen).

    May have `limits(tokens)`, sequences of keys to be tried where its yaml leaves a limit open that its users set once,
    before a run, with batches of so many tokens (zbench.run.fastest). What is fastest on other batches is set; `plan`
    of a system that is made without that has to do without.

    May have `size(lengths, count)`, the Size that its plans of `count` sequences with lengths like these have at least,
    where that grows faster than ranks and sequences do: a job too large for this machine is then refused before it is
    planned (zbench.run.price)."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns one plan per micro-batch, in the order they run; gradients are summed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An executor's answer when it is ready: the first step to run, and facts about itself for the record."""

    first_step: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """An executor of plans, which trains or simulates."""

    def start(self) -> Ready:
        """Starts, before a run's first step, what the executor needs, with nothing left of an earlier run."""

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Runs (or simulates) one training step."""

    def stop(self) -> None:
        """Ends what `start` started, after a run, however it ended."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The facts that a tracker is told of a run that starts.

    group: the runs of one command have it in common, or those of one experiment. kind: the executor. tags: the run's
    system, workload, cluster and model. config: the configuration, and what else the numbers depend on.
    """

    id: str
    name: str
    group: str
    kind: str
    tags: Sequence[str]
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A place to which a run's figures are sent while it runs."""

    def start(self, run: Tracked) -> None:
        """Begins a run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes a step's figures, by the names of docs/tracking.md."""

    def curves(self, step: int, title: str, interval: float, lines: Mapping[str, Sequence[float]]) -> None:
        """Takes lines by name: numbers of a step, one every `interval` seconds."""

    def attach(self, name: str, path: str) -> None:
        """Takes a file of the run, which may be gone afterwards."""

    def finish(self, status: str, figures: Mapping[str, float]) -> None:
        """Ends a run after the last step, or in place of one that failed. figures: of the whole run."""

    def where(self) -> str:
        """Tells people where the runs sent so far are."""
