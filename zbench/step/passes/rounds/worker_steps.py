"""The steps of workers that train apart: each one's own, of its own plans, and what their rounds end with, proven."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.overlap import USUAL, StepOverlap
from zbench.describe.sync import RoundSync
from zbench.plans.plan import Plan
from zbench.plans.workers import plans_of_worker
from zbench.step.passes.proven import ProvenSteps, zero_of
from zbench.step.passes.rounds.order import prove_ages, round_kind
from zbench.step.passes.rounds.outer_step import OuterParameters, outer_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step


@dataclass(frozen=True)
class WorkerStep:
    """A worker's own part of a batch: its plans, the step of these, and its tokens."""

    plans: tuple[Plan, ...]
    step: Step
    tokens: int


@dataclass(frozen=True)
class WorkerSteps:
    """The steps of a run whose workers train apart. executor: its name, for sentences. model: as GPUs have it. gpus: of
    the cluster, and of a worker. overlap, cluster: of a worker's own steps, as in ProvenSteps.

    Raises:
        ValueError: there are no such steps.
    """

    executor: str
    model: Model
    gpus: tuple[int, int]
    sync: RoundSync
    overlap: StepOverlap = USUAL
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError(
                f"sync.worker is {self.sync.worker}, and the cluster has one; sync={self.sync.method} takes several, "
                "as with sync.worker=rank or more cluster.num_nodes"
            )
        _ = self.own.parameters  # refuses what a worker cannot be
        prove_ages(self.sync, self.workers)

    @property
    def workers(self) -> int:
        """The workers."""
        return self.gpus[0] // self.gpus[1]

    @property
    def own(self) -> ProvenSteps:
        """The steps of one worker."""
        model, own = self.model, self.gpus[1]
        return ProvenSteps(self.executor, model, own, overlap=self.overlap, cluster=self.cluster, workers=self.workers)

    @property
    def parameters(self) -> OuterParameters:
        """The parameters of all workers."""
        return OuterParameters.of(self.model, *self.gpus, zero_of(self.model))

    def of(self, batch: Batch, plans: Sequence[Plan]) -> list[WorkerStep | None]:
        """Returns every worker's step of a batch's plans, proven; None of a worker without tokens.

        Raises:
            ValueError: plans send between workers.
            zbench.step.proof.prove.StepError: a step is wrong, which is a bug.
        """
        found: list[WorkerStep | None] = []
        for worker in range(self.workers):
            mine = plans_of_worker(plans, worker, self.gpus[1])
            tokens = sum(int(plan.own_lengths.sum()) for plan in mine)
            found.append(WorkerStep(mine, self.own.of(batch, mine), tokens) if mine else None)
        return found

    def ends(self, round_: int) -> Step:
        """Returns what a round, counted from 0, ends with."""
        return self._ends[round_kind(self.sync, round_)]

    @cached_property
    def _ends(self) -> dict[str, Step]:
        found = {}
        for kind in {round_kind(self.sync, round_) for round_ in (0, 1)}:
            found[kind] = outer_step(self.model, self.parameters, kind)
            prove_step(found[kind])
        return found
