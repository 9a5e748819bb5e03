"""The steps of workers that train apart: each one's own, of its own plans, and what their rounds end with, proven."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np

from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.overlap import FLAT, USUAL, StepOverlap
from zbench.describe.sync import RoundSync
from zbench.describe.units import with_noun
from zbench.plans.plan import Plan
from zbench.plans.workers import plans_of_worker
from zbench.step.passes.memory.at_hosts import HostLayers, OnHosts
from zbench.step.passes.proven import ProvenSteps, zero_of
from zbench.step.passes.rounds.order import prove_ages
from zbench.step.passes.rounds.outer_on_hosts import outer_on_hosts
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import FIRST, NOW, outer_step
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step


class OwnChoice(Protocol):
    """The choice for one worker's part of a batch."""

    @property
    def steps(self) -> ProvenSteps:
        """The steps of the worker, with nothing left open."""


@dataclass(frozen=True)
class NothingOpen:
    """The choice of a run that leaves nothing open: the steps as they are."""

    steps: ProvenSteps


Choose = Callable[[ProvenSteps, Batch, tuple[Plan, ...]], OwnChoice]


def nothing_open(steps: ProvenSteps, batch: Batch, plans: tuple[Plan, ...]) -> OwnChoice:
    """Returns the choice of a run that leaves nothing open."""
    return NothingOpen(steps)


@dataclass(frozen=True)
class WorkerStep:
    """A worker's own part of a batch: its plans, what was chosen for them, their step, and its labels that count."""

    plans: tuple[Plan, ...]
    chosen: OwnChoice
    step: Step
    labels: int


@dataclass(frozen=True)
class FragmentEnd:
    """The end of a fragment's round, as a step of its layers alone. layers: the numbers that these have in the model,
    and at last that of what is after all layers."""

    fragment: int
    step: Step
    layers: tuple[int, ...]


@dataclass(frozen=True)
class WorkerSteps:
    """The steps of a run whose workers train apart. executor: its name, for sentences. model: as GPUs have it. gpus: of
    the cluster, and of a worker. overlap, experts: of a worker's own steps, as in ProvenSteps; all experts are inside
    each worker. cluster: of all GPUs, of which each worker has its part; None: nothing has to fit. degrees: of tensor
    parallelism and of stages, all of which are inside each worker, too.
    choose: what the strategy leaves open for every batch, of a worker's steps and its plans. pieces: as in ProvenSteps,
    of whatever is chosen.

    Raises:
        ValueError: there are no such steps.
    """

    executor: str
    model: Model
    gpus: tuple[int, int]
    sync: RoundSync
    overlap: StepOverlap = USUAL
    cluster: Cluster | None = None
    experts: ExpertParallel = TOGETHER
    choose: Choose = nothing_open
    degrees: tuple[int, int] = (1, 1)
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError(
                f"sync.worker is {self.sync.worker}, and the cluster has one; sync={self.sync.method} takes several, "
                "as with sync.worker=rank or more cluster.num_nodes"
                if self.degrees[1] == 1
                else f"parallel.pipeline_parallel is {self.degrees[1]}; with sync={self.sync.method} every stage of a "
                "worker is on a node of its own, and there are several workers, so it takes cluster.num_nodes of at "
                f"least {2 * self.degrees[1]}"
            )
        if self.overlap.collectives != FLAT:
            raise ValueError(
                f"sharding.collectives is {self.overlap.collectives}; with sync={self.sync.method} workers gather and "
                f"reduce apart, and once a round over all, at once, so it takes {FLAT}"
            )
        if self.gpus[1] % self.experts.degree:
            raise ValueError(
                f"all experts are on {self.experts.degree} GPUs (parallel.expert_parallel times "
                f"expert_tensor_parallel); with sync={self.sync.method} each worker has all of them, so that number "
                f"has to divide the {with_noun(self.gpus[1], 'GPU')} of a worker (sync.worker is {self.sync.worker})"
            )
        _ = self.own.parameters  # refuses what a worker cannot be
        layers, stages = min(self._laid.layers_of_stages), self.degrees[1]
        if self.sync.fragments > layers:
            where = self.model.name if stages == 1 else f"a stage of {self.model.name}"
            raise ValueError(
                f"sync.fragments is {self.sync.fragments}; {where} has {layers} layers, and every fragment some of "
                f"them, so it takes 1 to {layers}"
            )
        prove_ages(self.sync, self.workers)

    @property
    def workers(self) -> int:
        """The workers."""
        return self.gpus[0] // self.gpus[1]

    @property
    def own(self) -> ProvenSteps:
        """The steps of one worker."""
        return ProvenSteps(
            self.executor,
            self.model,
            self.gpus[1],
            *self.degrees,
            overlap=self.overlap,
            experts=self.experts,
            cluster=None if self.cluster is None else self.sync.worker_cluster(self.cluster, *self.degrees),
            workers=self.workers,
            pieces=self.pieces,
        )

    @property
    def parameters(self) -> OuterParameters:
        """The parameters of all workers."""
        own = zero_of(self.model), self.experts, self.degrees, self.pieces
        return OuterParameters.of(self._laid, self.gpus, *own)

    @property
    def _laid(self) -> Model:
        """The model with its layers on stages."""
        return self.model.with_stages(self.degrees[1])

    def of(self, batch: Batch, plans: Sequence[Plan]) -> list[WorkerStep | None]:
        """Returns every worker's step of a batch's plans, proven; None of a worker without tokens.

        Raises:
            ValueError: plans send between workers.
            zbench.step.proof.prove.StepError: a step is wrong, which is a bug.
        """
        found: list[WorkerStep | None] = []
        for worker in range(self.workers):
            mine = plans_of_worker(plans, worker, self.gpus[1] // prod(self.degrees))
            if not mine:
                found.append(None)
                continue
            chosen = self.choose(self.own, batch, mine)
            labels = sum(batch.of_sequences(plan.sequences).counted_labels for plan in mine)
            found.append(WorkerStep(mine, chosen, chosen.steps.of(batch, mine), labels))
        return found

    def end(self, fragment: int, kind: str, on_hosts: bool = True) -> FragmentEnd:
        """Returns what a fragment's round ends with, proven. Of as many fragments every so manieth layer is of one, as
        Streaming DiLoCo has it; what is outside the layers is averaged with the first fragment. kind: one of
        zbench.step.passes.rounds.outer_step.PHASES. on_hosts: with what the model has in host memory there, or all on
        GPUs, to compare with."""
        layers = tuple(range(fragment, self.model.num_layers, self.sync.fragments))
        step = self._made(kind, layers, fragment == 0, on_hosts)
        return FragmentEnd(fragment, step, (*layers, self.model.num_layers))

    @property
    def whole(self) -> Step:
        """The end of a round of all parameters together, of which one after the other is done; with an average that is
        used late the first, which leaves it under way."""
        return self._made(FIRST if self.sync.age else NOW, tuple(range(self.model.num_layers)), True)

    def _made(self, kind: str, layers: tuple[int, ...], outside: bool, on_hosts: bool = True) -> Step:
        """Returns an end of a round, proven. layers: the numbers that its own have in the model."""
        model, dense = self.model, sum(layer < self.model.dense_layers for layer in layers)
        counts, there = (dense, len(layers) - dense), (model.layers_updated_on_hosts, model.parameters_on_hosts)
        resting = HostLayers(model.num_layers, *(there if on_hosts else (0, 0)))
        uses_hosts = on_hosts and any(there)
        ends = np.cumsum(self._laid.layers_of_stages)[:-1].tolist()
        starts = (0, *(sum(layer < end for layer in layers) for end in ends))
        key = kind, counts, outside, uses_hosts, tuple(map(resting.of_layer, layers)), starts
        if key not in self._known:
            step = outer_step(self._laid, self.parameters, kind, outside, counts, starts)
            if uses_hosts:
                step = outer_on_hosts(step, resting, layers, self.gpus[1], self._laid.has_two_tables)
            prove_step(step)
            self._known[key] = step
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, tuple[int, int], bool, bool, tuple[OnHosts, ...], tuple[int, ...]], Step]:
        return {}
