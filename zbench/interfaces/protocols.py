"""The four protocols that a run is put together from: workload, system, executor, tracker.

A system and a workload have one method each, an executor three, a tracker six; each is a class and a yaml. What
some have besides is in zbench.interfaces.abilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zbench.describe.batch import Batch
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan


class Workload(Protocol):
    """A source of batches. Made with `seed` and `tokens` besides its yaml's keys. It may have a context limit, a
    vocabulary and lengths to draw from (zbench.interfaces.abilities)."""

    def batch(self, step: int) -> Batch:
        """Returns the batch of `step`: a function of (the workload's seed, step) alone, of exactly `tokens` tokens."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step's plans: operations of both lists; pieces that sequences are cut into."""

    operations: int
    pieces: int


class System(Protocol):
    """A planner: it turns a batch into plans. Plans every batch. What it may offer besides, as a configuration chosen
    before a run, is a protocol each in zbench.interfaces.abilities; one that chooses (`Chooses`) has no `plan`
    itself."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns one plan per micro-batch, in the order they run; gradients are summed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An executor's answer when it is ready: the first step to run, and facts about itself for the record."""

    first_step: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Runs steps or plays them. It may trace them and keep checkpoints (zbench.interfaces.abilities)."""

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
    """Sends the figures of runs somewhere. All six methods are asked for; one that has nothing to do returns."""

    def start(self, run: Tracked) -> None:
        """Begins a run, before its first step."""

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
