"""The torch executor: every step really runs, on processes of this machine or on those that torchrun or Slurm started.

The driver's side: imports no torch itself. Plans go to the ranks (zbench.runtime.training.trainer), their measurements
come back and become one StepResult.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zbench.console.extras import need
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.interfaces.protocols import Ready, Workload
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.runtime.checkpoints.folder import Hold, check_files, check_free, checkpoint_description
from zbench.runtime.checkpoints.same_run import check_same
from zbench.runtime.checkpoints.whole_steps import check_of_attention
from zbench.runtime.driver import (
    LIMITS,
    CheckFailed,
    check_difference,
    check_loss,
    check_own_nics,
    check_pickled,
    check_training,
    is_one_machine,
    open_fleet,
    setup_facts,
)
from zbench.runtime.job.footprint import LEVELS, LevelChoice, choose_level
from zbench.runtime.job.job import PARAMETERS, AdamW, Job, Report
from zbench.runtime.job.settings import (
    check_nic_counters,
    check_package,
    kind_of,
    one_of,
)
from zbench.runtime.measured import COUNTED, COUNTERS, step_result
from zbench.runtime.measured_trace import write_measured
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.traffic import Sent, expected

TARGET = "zbench.runtime.training.trainer:Trainer"
STATE = {
    "replicated": "whole on every rank; ZeRO-1's split, by which the simulator reckons memory under zero1, is not done",
    "sharded": "1/ranks on each rank",
}


@dataclass(slots=True)
class TorchAttention:
    """The executor that trains. One run at a time: start(), steps in order, stop().

    kernel: of zbench.runtime.job.job.KERNELS; "auto" is the fastest there is. parameters: "replicated" or "sharded";
    None: as the model says (zero3 is sharded). device: "auto" (a GPU if there is one), "cpu" or "cuda".
    timeout: seconds without progress after which the run ends. warmup: passes over the first batch before the first
    step, which are not recorded and train nothing. check: "exact" (in float64), "float32", "bytes".
    checkpoint_every: steps between checkpoints into the folder checkpoint; None: none. resume: a checkpoint.
    nic_counters: take NIC bytes from the machines' own counters (all traffic) instead of the executor's count.
    nic_interval: with nic_counters, seconds between looks at them while a step runs; None: before and after only.
    compile: elementwise work by torch.compile; None: on a GPU, where there is a compiler. recompute: what runs again in
    the backward, of zbench.runtime.job.footprint.LEVELS, "auto" for the first that fits; None: as the model says.

    Raises:
        ValueError: a setting cannot be; the message names it.
    """

    cost: Cost
    workload: Workload
    seed: int = 0
    kernel: str = "auto"
    parameters: str | None = None
    optimizer: dict[str, float] = field(default_factory=dict)
    timeout: float = 30.0
    warmup: int = 1
    check: Sequence[str] = ()
    checkpoint_every: int | None = None
    checkpoint: str = "results/checkpoint"
    resume: str | None = None
    nic_counters: bool = False
    nic_interval: float | None = None
    device: str = "auto"
    compile: bool | None = None
    recompute: str | None = None
    _fleet: Fleet | None = field(default=None, init=False)
    _hold: Hold | None = field(default=None, init=False)
    _warm: bool = field(default=False, init=False)
    _capacity: int = field(default=0, init=False)  # bytes, of the rank that has least

    def __post_init__(self) -> None:
        need("torch", "executor=torch_attention")
        model = self.cost.model
        common = ("seed", "kernel", "device", "timeout", "warmup", "optimizer")
        check_training(model, self.workload, {name: getattr(self, name) for name in common})
        model.check_alike("executor=torch_attention trains layers of one kind (executor=torch trains both)")
        if model.sharding == "zero2":
            raise ValueError(
                "sharding is zero2; executor=torch_attention shards gradients together with parameters or not at all, "
                "so it takes none, zero1 or zero3 (executor=torch has all)"
            )
        if self.parameters is not None:
            one_of("executor.parameters", self.parameters, PARAMETERS)
        check_whole_number("executor.checkpoint_every", self.checkpoint_every, 1, or_null=True)
        check_nic_counters(self.nic_counters, self.nic_interval)
        if self.compile not in (None, True, False):
            raise ValueError(f"executor.compile is {self.compile!r}; it takes true, false or null")
        if self.recompute is not None:
            one_of("executor.recompute", self.recompute, ("auto", *LEVELS))
        if self.checkpoint_every is not None:
            check_free(self.checkpoint)
            Hold.of(self.checkpoint).end()  # told now, and not when the baseline has run
        if self.resume is not None:
            check_of_attention(self.resume)
            check_same(self.resume, self.job().told())
            check_files(self.resume)

    @property
    def first_step(self) -> int:
        """The first step to run: 0, or where the checkpoint goes on."""
        return 0 if self.resume is None else int(checkpoint_description(self.resume)["next_step"])

    # -- Executor -------------------------------------------------------------------------------------
    def start(self) -> Ready:
        """Starts the ranks, and loads a checkpoint where there is one.

        Raises:
            ValueError: other than the cluster's number of ranks were started.
            zbench.runtime.processes.fleet.RankFailed: a rank could not start.
        """
        job = self.job()
        check_pickled(job, self.workload)
        if self.checkpoint_every is not None:
            self._hold = Hold.of(self.checkpoint)
        self._fleet = self._open(job)
        self._warm = False
        about = self._fleet.call("about")
        self._capacity = min(one.memory_bytes for one in about)
        if self.resume is not None:
            self._fleet.call("load", self.resume)
        return Ready(self.first_step, {**self.about(job), "ranks": setup_facts(about)})

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Runs a step without a trace.

        Raises:
            as traced_step.
        """
        return self.traced_step(batch, plans, None)

    def traced_step(self, batch: Batch, plans: tuple[Plan, ...], trace: str | None) -> StepResult:
        """Runs a step on all ranks. trace: a file that gets what every rank did and when
        (zbench.runtime.measured_trace).

        Raises:
            Diverged: the loss is not finite. CheckFailed: a check did. zbench.runtime.processes.fleet.RankFailed: a
            rank did. ValueError: the package that is to compute attention is not there, or cannot be checked as asked;
            the plans have pipelines; the trace cannot be written.
        """
        assert self._fleet is not None
        if any(plan.pipelines is not None for plan in plans):
            raise ValueError(
                "plan.pipelines has groups of ranks; executor=torch_attention has no tensor or pipeline parallelism "
                "and takes plans without them"
            )
        for other in {plan.attention for plan in plans} - {""}:
            check_package(other, self.check)
        choice = self._choice(plans)
        for _ in range(0 if self._warm else self.warmup):
            self._fleet.call("step", batch, plans, False, False, choice.level)
        self._warm = True
        reports: list[Report] = self._fleet.call("step", batch, plans, True, trace is not None, choice.level)
        check_loss(reports[0].loss, batch.step)
        checked = self.checked(batch, plans, reports, choice.level)
        if self.checkpoint_every and (batch.step + 1) % self.checkpoint_every == 0:
            self._fleet.call("save", self.checkpoint, batch.step + 1)
        kind = self.job().parameters
        if trace is not None:
            write_measured(trace, self.cost.cluster, reports, is_one_machine())
        return step_result(batch, len(plans), self.cost, reports, kind, self.nic_counters, checked, choice)

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

    def job(self) -> Job:
        """Returns what every rank is told: the cost model, the workload and how to train."""
        kind = kind_of(self.parameters, self.cost.model)
        return Job(
            self.cost,
            self.workload,
            self.seed,
            self.kernel,
            kind,
            AdamW(**self.optimizer),
            exact=any(check in LIMITS for check in self.check),
            nic_interval=self.nic_interval,
            device=self.device,
            compile=self.compile,
        )

    def about(self, job: Job) -> dict[str, Any]:
        """Returns the facts about this executor for the record."""
        source = COUNTERS if self.nic_counters else COUNTED
        return {"nic_bytes": source, "parameters": job.parameters, "optimizer_state": STATE[job.parameters]}

    # -- inside ---------------------------------------------------------------------------------------
    def _open(self, job: Job) -> Fleet:
        if self.nic_counters:
            check_own_nics(self.cost.cluster.num_nodes)
        return open_fleet(self.cost.cluster.num_ranks, TARGET, job, self.timeout)

    def _choice(self, plans: tuple[Plan, ...]) -> LevelChoice:
        """Chooses what runs again in this step's backward."""
        levels = LEVELS if self.recompute == "auto" else (self.recompute or self.cost.model.recompute,)
        return choose_level(plans, self.cost, self.job().parameters, self._capacity, levels)

    def checked(self, batch: Batch, plans: tuple[Plan, ...], reports: list[Report], level: str) -> dict[str, float]:
        """Returns what the checks found, by name. level: of recomputation."""
        told: dict[str, float] = {}
        for check in (one for one in self.check if one in LIMITS):
            assert reports[0].worst is not None
            told[check] = check_difference(check, reports[0].worst, batch.step)
        if "bytes" in self.check:
            sent = Sent.of(self.cost.cluster, [one.inside for one in reports], [one.across for one in reports])
            model = replace(self.cost.model, recompute="full" if level == "full" else "none")
            fault = sent.differs(expected(plans, replace(self.cost, model=model)))
            told["bytes"] = float(sum(sent.rank_tx))
            if fault:
                raise CheckFailed(f"check=bytes failed in step {batch.step}: {fault}")
        return told
