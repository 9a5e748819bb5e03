"""Abilities that a system, a workload or an executor may have, besides what zbench.interfaces.protocols asks of all.

Each ability is a protocol with one purpose. A class has it by having its attributes and methods, without inheriting
from it; zbench asks with isinstance, which looks at names alone.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import Size, System
from zbench.interfaces.result import StepResult
from zbench.interfaces.study import Choice, Study
from zbench.plans.plan import Plan

# -- of a system ------------------------------------------------------------------------------------------------------


@runtime_checkable
class UsesPackages(Protocol):
    """A system whose plans, or their attention, come from other projects' code.

    packages: names of distributions; their versions go into the record.
    """

    @property
    def packages(self) -> tuple[str, ...]: ...


@runtime_checkable
class PlansStages(Protocol):
    """A system that chooses the number of micro-batches of a job with stages (zbench.cost.ranks_of_gpus) itself.

    plans_stages: True where it does. To others zbench.interfaces.dealt gives a batch in parts.
    """

    @property
    def plans_stages(self) -> bool: ...


@runtime_checkable
class PlansPipelines(Protocol):
    """A system whose plans may have pipelines of its own (Plan.pipelines), where what runs them has these.

    plans_pipelines: True where they may. A run without pipelines says that such a system plans without.
    """

    @property
    def plans_pipelines(self) -> bool: ...


@runtime_checkable
class PlansPipelinesAlone(Protocol):
    """A system all of whose plans have pipelines of its own, where what runs them has these.

    plans_pipelines_alone: True where they do. What such plans cannot be run with is refused before a batch is drawn.
    """

    @property
    def plans_pipelines_alone(self) -> bool: ...


@runtime_checkable
class PlansHosts(Protocol):
    """A system that chooses itself how much waits in host memory, where a run leaves that open.

    plans_hosts: True where it does. Of others plans for several numbers of layers are compared
    (zbench.simulated.offloading).
    """

    @property
    def plans_hosts(self) -> bool: ...


@runtime_checkable
class Chooses(Protocol):
    """A system that chooses a configuration once, before a run, from batches like the run's (zbench.run.chosen).

    It has `choose` and `planner` in place of `plan`.
    """

    def choose(self, study: Study) -> Choice:
        """Chooses by what the study allows to look at."""

    def planner(self, choice: Choice, cost: Cost) -> System:
        """Makes what plans the run's batches; cost: of the model as it was chosen."""


@runtime_checkable
class HasLimits(Protocol):
    """A system whose yaml leaves a limit open that its users set once, before a run (zbench.run.fastest).

    What is fastest on other batches is set; `plan` of a system that is made without that has to do without.
    """

    def limits(self, tokens: int) -> list[dict[str, Any]]:
        """Lists the keys that are to be tried, with batches of so many tokens."""


@runtime_checkable
class PlansInWays(Protocol):
    """A system that can plan a batch in several ways and does not know which is best, as it plays no whole steps. A run
    plans in all of them, and takes what is played fastest (zbench.simulated.compared.by_fastest_way).

    `plan` of a system that is made without that plans in the first way.
    """

    def ways(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the keys of the system that each way has otherwise, by the way's name, the first way without any; one
        way or none where there is nothing to choose from."""


@runtime_checkable
class HasSize(Protocol):
    """A system whose plans grow faster than ranks and sequences do.

    A job too large for this machine is then refused before it is planned (zbench.run.checks.price).
    """

    def size(self, lengths: Ints, count: int) -> Size:
        """Returns the Size that plans of `count` sequences with lengths like these have at least."""


@runtime_checkable
class Finishes(Protocol):
    """An executor whose last step may leave something that is still to be done, as updates that the next one would
    begin with."""

    def finish(self) -> dict[str, Any]:
        """Does it, after the last step and before `stop`; returns what the record's end line says of it besides, by the
        names of zbench.record.fields."""


# -- of a workload ----------------------------------------------------------------------------------------------------


@runtime_checkable
class HasPromptLimit(Protocol):
    """A workload whose prompts have at most `prompt_limit` tokens, whatever the batch."""

    @property
    def prompt_limit(self) -> int: ...


@runtime_checkable
class HasContextLimit(Protocol):
    """A workload that makes no sequence longer than `context_limit` tokens; the limit goes into the record."""

    @property
    def context_limit(self) -> int: ...


@runtime_checkable
class HasVocabulary(Protocol):
    """A workload that may have tokens of its own.

    vocab: entries that a model has to have for them; None where tokens are made to fit the model, as without it.
    """

    @property
    def vocab(self) -> int | None: ...


@runtime_checkable
class DrawsLengths(Protocol):
    """A workload that draws documents from a distribution: others can be made of it, and a step's price estimated."""

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        """Draws lengths of documents, int64 [num], neither cut nor dropped."""


# -- of an executor ---------------------------------------------------------------------------------------------------


@runtime_checkable
class HasOperationBytes(Protocol):
    """An executor that needs memory of this machine for every operation of the plans that it runs.

    A job too large for this machine is then refused before it is planned (zbench.run.checks.price). operation_bytes:
    bytes an operation, at least.
    """

    @property
    def operation_bytes(self) -> int: ...


@runtime_checkable
class TracesSteps(Protocol):
    """An executor that traces what it ran; with others a run takes no trace."""

    def traced_step(self, batch: Batch, plans: tuple[Plan, ...], trace: str | None) -> StepResult:
        """Runs one step and writes its trace into the file `trace`; None: writes none."""


@runtime_checkable
class SavesCheckpoints(Protocol):
    """An executor, a dataclass, that keeps checkpoints of what it trains.

    checkpoint_every: steps between them, None for none; a run's baseline is given None. checkpoint: their folder.
    """

    @property
    def checkpoint_every(self) -> int | None: ...

    @property
    def checkpoint(self) -> str: ...
