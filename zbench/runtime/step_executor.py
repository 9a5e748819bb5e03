"""The executor that trains by whole steps: what executor=simulated plays runs on processes of this machine or on those
that torchrun or Slurm started, tensor-parallel groups, stages, experts and sharded parameters included.

The driver's side: imports no torch itself. It builds and proves every step and sends it to the ranks
(zbench.runtime.stepping.rank), each of which takes its part of the one order; their reports become one StepResult.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from zbench.console.extras import need
from zbench.cost.cost import Cost
from zbench.cost.job import worker_gpus
from zbench.describe.batch import Batch
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.expert_schedule import DRAWN, USUAL_EXPERTS, Experts
from zbench.describe.links import Lanes
from zbench.describe.overlap import FLAT, LAYER, StepOverlap
from zbench.describe.sync import EVERY, RoundSync
from zbench.interfaces.protocols import Ready, Workload
from zbench.interfaces.result import StepResult, kept_rows
from zbench.plans.plan import Plan
from zbench.runtime.checkpoints.folder import Hold, checkpoint_description
from zbench.runtime.checkpoints.whole_steps import described, resting_then
from zbench.runtime.driver import (
    LIMITS,
    check_difference,
    check_loss,
    check_own_nics,
    check_pickled,
    check_training,
    is_one_machine,
    open_fleet,
    setup_facts,
)
from zbench.runtime.job.job import AdamW, relays_shares
from zbench.runtime.job.settings import check_nic_counters
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.measured import COUNTERS
from zbench.runtime.measured_steps import RanPart, write_measured_steps
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.round_driver import RANK as ROUND_RANK
from zbench.runtime.round_driver import RoundDriver, check_checkpoints
from zbench.runtime.step_checks import check_dense, check_played_plans, checked_bytes, routed_rows
from zbench.runtime.step_measured import step_loss, told_of_update, whole_step_result
from zbench.runtime.steps.device_seconds import DeviceSeconds
from zbench.runtime.steps.tokens import tokens_of
from zbench.runtime.worker_clocks import StepClock
from zbench.simulated.gradient_order import common_pieces
from zbench.simulated.open_choices import chosen_by_workers, chosen_steps, told_of_workers
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.memory.last_update import last_update
from zbench.step.passes.memory.resting_step import resting_step
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step
from zbench.step.switch_law import process_bytes
from zbench.step.template import Step

RANK = "zbench.runtime.stepping.rank:SteppingRank"
SWAPPED = "swapped_choices"  # of routers, which a dense model would have made otherwise, of equals but for rounding
COUNTED = "the size of every message, counted where it is posted, by what it is for"


@dataclass(slots=True)
class Torch:
    """The executor that trains by whole steps. One run at a time: start(), steps in order, stop().

    window, gradient_bucket, collectives, expert_parallel, expert_tensor_parallel, experts, exchanges, sync,
    adaptive_recompute: of the strategy, as of zbench.simulated.executor.Simulated. kernel: of
    zbench.runtime.job.job.KERNELS; "auto" is the fastest there is. device: "auto" (a GPU if there is one), "cpu" or
    "cuda". timeout: seconds without progress after which the run ends. warmup: passes over the first batch before the
    first step, which are not recorded and train nothing. check: "exact" (in float64), "float32", "bytes".
    checkpoint_every, checkpoint, resume, nic_counters, nic_interval: as of
    zbench.runtime.attention_executor.TorchAttention.

    Raises:
        ValueError: a setting cannot be, or there are no such steps; the message names it.
    """

    cost: Cost
    workload: Workload
    seed: int = 0
    kernel: str = "auto"
    optimizer: dict[str, float] = field(default_factory=dict)
    timeout: float = 30.0
    warmup: int = 1
    check: Sequence[str] = ()
    resume: str | None = None
    device: str = "auto"
    checkpoint_every: int | None = None
    checkpoint: str = "results/checkpoint"
    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    expert_parallel: int = 1
    experts: Experts = USUAL_EXPERTS
    exchanges: ExchangeOverlap = WHOLE
    sync: RoundSync = EVERY
    adaptive_recompute: bool = False
    expert_tensor_parallel: int = 1
    collectives: str = FLAT
    nic_counters: bool = False
    nic_interval: float | None = None
    name: ClassVar[str] = "torch"  # by which sentences call it
    _rounds: RoundDriver | None = field(default=None, init=False)  # where workers come together in rounds
    _fleet: Fleet | None = field(default=None, init=False)
    _warm: bool = field(default=False, init=False)
    _lanes: Lanes | None = field(default=None, init=False)  # over which ranks spread transfers
    _hold: Hold | None = field(default=None, init=False)
    _left: Step | None = field(default=None, init=False)  # the step that ranks have parameters where it ends
    _last: Callable[[], Step] | None = field(default=None, init=False)  # as it would be behind another one

    def __post_init__(self) -> None:
        need("torch", f"executor={self.name}")
        common = ("seed", "kernel", "device", "timeout", "warmup", "optimizer")
        check_training(self.cost.gpus.model, self.workload, {name: getattr(self, name) for name in common})
        check_nic_counters(self.nic_counters, self.nic_interval)
        _ = self.steps  # refuses what there are no steps of
        if self.experts.skew and self.experts.counted:
            raise ValueError(
                f"experts.skew is {self.experts.skew}; with experts.routing={self.experts.routing} and "
                f"executor={self.name} routers choose, and nothing is drawn for a clock, so it takes 0"
            )
        check_dense(self.check, self.cost.gpus.model.sharding, self.sync)
        if self.sync.in_rounds:
            _ = self.worker_steps
        check_checkpoints(self.job(), self.checkpoint_every, self.checkpoint, self.resume)

    @property
    def overlap(self) -> StepOverlap:
        """The exchanges that are beside the layers' work."""
        chunks = self.experts.exchanges.chunks
        return StepOverlap(self.window, self.gradient_bucket, self.exchanges, chunks, self.collectives)

    @property
    def steps(self) -> ProvenSteps:
        """The steps that plans become."""
        cost = self.cost
        cluster = cost.gpus.cluster
        degrees = self.expert_parallel, self.expert_tensor_parallel
        experts = ExpertParallel.chosen(*degrees, self.experts, cluster.gpus_per_node)
        return ProvenSteps(
            self.name, cost.gpus.model, cluster.num_ranks, cost.tp, cost.pp, self.overlap, experts, cluster
        )

    @property
    def worker_steps(self) -> WorkerSteps:
        """The steps that plans become where workers come together in rounds."""
        cluster, model = self.cost.gpus.cluster, self.cost.gpus.model
        gpus = cluster.num_ranks, worker_gpus(self.cost, self.sync)
        choose = chosen_by_workers(self.experts.exchanges, self.cost, self.sync)
        own = self.sync, self.overlap, cluster, self.steps.experts, choose, (self.cost.tp, self.cost.pp)
        pieces = common_pieces(self.experts.exchanges, self.steps.parameters)
        return WorkerSteps(self.name, model, gpus, *own, pieces)

    @property
    def first_step(self) -> int:
        """The first step to run."""
        return 0 if self.resume is None else int(checkpoint_description(self.resume)["next_step"])

    # -- Executor -------------------------------------------------------------------------------------
    def start(self) -> Ready:
        """Starts the ranks, one for every GPU of the cluster.

        Raises:
            ValueError: other than the cluster's number of GPUs were started.
            zbench.runtime.processes.fleet.RankFailed: a rank could not start.
        """
        job = self.job()
        check_pickled(job, self.workload)
        rank = ROUND_RANK if self.sync.in_rounds else RANK
        if self.checkpoint_every is not None:
            self._hold = Hold.of(self.checkpoint)
        self._fleet = self._open(rank, job)
        self._warm, self._left, self._last = False, None, None
        self._rounds = self._new_rounds(self._fleet) if self.sync.in_rounds else None
        if self.resume is not None:
            if self._rounds is not None:
                self._rounds.load(self.resume)
            else:
                self._left, num_labels = resting_then(self.resume)
                self._fleet.call("take_over", self.resume, self._left, num_labels)
        source, setups = COUNTERS if self.nic_counters else COUNTED, self._fleet.call("about")
        relays = relays_shares(setups[0].backend, setups[0].staged) and self._rounds is None
        self._lanes = self.cost.gpus.cluster.lanes if relays else None
        return Ready(self.first_step, {"nic_bytes": source, "ranks": setup_facts(setups)})

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Runs a step without a trace.

        Raises:
            as traced_step.
        """
        return self.traced_step(batch, plans, None)

    def traced_step(self, batch: Batch, plans: tuple[Plan, ...], trace: str | None) -> StepResult:
        """Runs a step on all ranks. trace: a file that gets what every rank did and when
        (zbench.runtime.measured_steps).

        Raises:
            zbench.runtime.driver.Diverged: the loss is not finite. zbench.runtime.driver.CheckFailed: a check did.
            zbench.runtime.processes.fleet.RankFailed: a rank did. ValueError: a package computes attention, plans have
            padding or pipelines that cannot be, or the trace cannot be written.
        """
        assert self._fleet is not None
        check_played_plans(plans, self.name)
        if self._rounds is not None:
            return self._step_of_round(self._rounds, batch, plans, trace)
        chosen = chosen_steps(self.experts.exchanges, self.adaptive_recompute, self.steps, batch, plans, self.cost.gpus)
        of = chosen.steps
        tokens = tokens_of(of.parts(batch, plans))
        first = of.first_of(batch, plans) if of.model.layers_carried and not self._warm else None
        step = of.of(batch, plans) if first is None or self.resume is not None else first
        seconds = self.modelled.of(step, plans)
        if not self._warm and self.warmup:
            if first is not None and first is not step:  # these begin without gradients, which the checkpoint has
                self._fleet.call("arrange", resting_step(step))
            for _ in range(self.warmup):
                self._fleet.call("step", batch, first or step, tokens, False, False, seconds)
            self._left = step
        self._warm, self._last = True, lambda: step if first is None else of.of(batch, plans)
        reports: list[StepReport] = self._fleet.call("step", batch, step, tokens, True, trace is not None, seconds)
        check_loss(step_loss(reports), batch.step)
        checked = self.checked(batch, step, reports)
        self._left = step
        if self.checkpoint_every and (batch.step + 1) % self.checkpoint_every == 0:
            rests, meta = described(self.job().told(), batch.step + 1, self._last(), batch.counted_labels)
            self._fleet.call("keep", self.checkpoint, rests, meta)
        if trace is not None:
            write_measured_steps(trace, self.cost.gpus.cluster, [RanPart(step, 0, reports)], is_one_machine())
        result = chosen.told(self.result(batch, reports, checked), batch, plans)
        return self._with_rows(result, batch, reports)

    def finish(self) -> dict[str, Any]:
        """Runs what the last step has left to update, where CPUs update across steps; returns what the record's end
        says of it, {} of others.

        Raises:
            as traced_step.
        """
        if not self.cost.gpus.model.layers_carried or self._fleet is None or self._last is None:
            return {}
        step = last_update(self._last())
        prove_step(step)
        reports: list[StepReport] = self._fleet.call("last_update", step)
        if "bytes" in self.check:
            checked_bytes("the last update", stated_bytes(step), reports)
        return {"last_update": told_of_update(reports)}

    def stop(self) -> None:
        """Ends the ranks and gives the checkpoint's folder back."""
        fleet, self._fleet = self._fleet, None
        hold, self._hold = self._hold, None
        try:
            if fleet is not None:
                fleet.close()
        finally:
            if hold is not None:
                hold.end()

    def job(self) -> StepJob:
        """Returns what every rank is told."""
        exact = any(check in LIMITS for check in self.check)
        optimizer = AdamW(**self.optimizer)
        own = self.cost, self.workload, self.seed, self.kernel, optimizer, exact, self.device, self.sync
        degrees = self.expert_parallel, self.expert_tensor_parallel
        job = StepJob(*own, experts=self.experts, expert_gpus=degrees)
        return replace(job, nic_counters=self.nic_counters, nic_interval=self.nic_interval)

    @property
    def modelled(self) -> DeviceSeconds:
        """The seconds of computes on paced devices, which these are not."""
        return DeviceSeconds()

    def result(
        self,
        batch: Batch,
        reports: Sequence[StepReport],
        checks: dict[str, float],
        clock: StepClock | None = None,
    ) -> StepResult:
        """Makes a step's result of the reports of all ranks. clock: as of
        zbench.runtime.step_measured.whole_step_result."""
        return whole_step_result(batch, self.cost, reports, checks, clock, self.nic_counters)

    def _with_rows(self, result: StepResult, batch: Batch, reports: Sequence[StepReport]) -> StepResult:
        """Returns a result with the rows that routers chose, and the bound that follows."""
        rows = routed_rows(self.experts, self.cost.gpus.model, batch, reports) or result.expert_rows
        if (kept := kept_rows(rows)) != 1:
            result = replace(result, bound_seconds=step_bound_seconds(batch, self.cost, kept))
        return replace(result, expert_rows=rows)

    def _open(self, rank: str, job: StepJob) -> Fleet:
        """Starts the ranks. rank: what each is, as of zbench.runtime.driver.open_fleet."""
        if self.nic_counters:
            check_own_nics(self.cost.gpus.cluster.num_nodes)
        return open_fleet(self.cost.gpus.cluster.num_ranks, rank, job, self.timeout)

    def _new_rounds(self, fleet: Fleet) -> RoundDriver:
        """Returns the rounds of a run of which nothing was run."""
        return RoundDriver(self.worker_steps, fleet)

    def _step_of_round(
        self, rounds: RoundDriver, batch: Batch, plans: tuple[Plan, ...], trace: str | None
    ) -> StepResult:
        """Runs a step of every worker, and what its round ends with where it is the last one."""
        for _ in range(0 if self._warm else self.warmup):
            rounds.warm_up(batch, plans)
        self._warm = True
        ran = rounds.step(batch, plans, trace is not None)
        check_loss(step_loss(ran.reports), batch.step)
        checked = checked_bytes(f"step {batch.step}", ran.stated, ran.reports) if "bytes" in self.check else {}
        if self.checkpoint_every and (batch.step + 1) % self.checkpoint_every == 0:
            rounds.save(self.checkpoint, self.job(), batch.step + 1)
        if trace is not None:
            write_measured_steps(trace, self.cost.gpus.cluster, ran.parts, is_one_machine())
        found = told_of_workers(self.result(batch, ran.reports, checked, ran.clock), batch, ran.workers)
        found = self._with_rows(found, batch, ran.reports)
        return replace(found, phases=dict(found.phases) | ({"round_end": ran.ended} if ran.ended else {}))

    def checked(self, batch: Batch, step: Step, reports: Sequence[StepReport]) -> dict[str, float]:
        """Returns what the checks found, by name.

        Raises:
            zbench.runtime.driver.CheckFailed: one failed.
        """
        told: dict[str, float] = {}
        found = [one.worst for one in reports if one.worst is not None]
        for check in (one for one in self.check if one in LIMITS):
            worst = max(found, key=lambda one: (one[0] != one[0], one[0]))  # NaN first
            told[check] = check_difference(check, worst, batch.step)
            if self.experts.routing != DRAWN:
                told[SWAPPED] = float(sum(one.swapped for one in reports))
        if "bytes" in self.check:
            every = stated_bytes(step, chosen_rows(one.rows for one in reports) or None, self._lanes)
            node = self.cost.gpus.cluster.gpus_per_node
            for stated, moved in zip(every, process_bytes(self._left or step, step, node), strict=True):
                for name, (sent, received) in moved.items():
                    of_step = stated.get(name, (0, 0))
                    stated[name] = of_step[0] + sent, of_step[1] + received
            told |= checked_bytes(f"step {batch.step}", every, reports)
        return told
