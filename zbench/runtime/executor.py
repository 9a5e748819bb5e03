"""The torch executor: every step really runs, on processes of this machine or on those that torchrun or Slurm started.

The driver's side: imports no torch itself. Plans go to the ranks (zbench.runtime.training.trainer), their measurements
come back and become one StepResult.
"""

import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from os import environ
from typing import Any

from zbench.console.extras import need
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.interfaces.abilities import HasVocabulary
from zbench.interfaces.protocols import Ready, Workload
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.runtime.checkpoints.folder import Hold, check_files, check_free, check_same, checkpoint_description
from zbench.runtime.job.footprint import LEVELS, LevelChoice, choose_level
from zbench.runtime.job.job import DEVICES, PARAMETERS, AdamW, Job, Report
from zbench.runtime.job.settings import (
    at_least,
    check_kernel,
    check_model,
    check_package,
    kind_of,
    one_of,
    with_known_keys,
)
from zbench.runtime.measured import COUNTED, COUNTERS, step_result
from zbench.runtime.measured_trace import write_measured
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.processes.world import found
from zbench.runtime.traffic import Sent, expected

LIMITS = {"exact": 1e-12, "float32": 1e-4}  # of the relative difference to the dense model, by check
LEAST_INTERVAL = 1e-3  # seconds: a look takes a tenth of that
TARGET = "zbench.runtime.training.trainer:Trainer"
STATE = {
    "replicated": "whole on every rank; ZeRO-1's split, by which the simulator reckons memory under zero1, is not done",
    "sharded": "1/ranks on each rank",
}


class CheckFailed(Exception):
    """A step did not come out as it has to; the message is one sentence."""


class Diverged(Exception):
    """The loss is no number any more; the message is one sentence."""


@dataclass(slots=True)
class Torch:
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
        need("torch", "executor=torch")
        model = self.cost.model
        check_kernel(self.kernel, model.element_bytes, environ)
        if self.parameters is not None:
            one_of("executor.parameters", self.parameters, PARAMETERS)
        one_of("executor.device", self.device, DEVICES)
        at_least("executor.timeout", self.timeout, 1)
        check_whole_number("executor.warmup", self.warmup, 0)
        check_whole_number("executor.checkpoint_every", self.checkpoint_every, 1, or_null=True)
        AdamW(**with_known_keys("executor.optimizer", self.optimizer, AdamW.__dataclass_fields__))
        check_model(model, self.workload.vocab if isinstance(self.workload, HasVocabulary) else None)
        check_boolean("executor.nic_counters", self.nic_counters)
        if self.nic_interval is not None:
            at_least("executor.nic_interval", self.nic_interval, LEAST_INTERVAL)
            if not self.nic_counters:
                raise ValueError(
                    f"executor.nic_interval is {self.nic_interval}; it needs the NICs' counters, executor.nic_counters"
                    "=true"
                )
        if self.compile not in (None, True, False):
            raise ValueError(f"executor.compile is {self.compile!r}; it takes true, false or null")
        if self.recompute is not None:
            one_of("executor.recompute", self.recompute, ("auto", *LEVELS))
        check_whole_number("executor.seed", self.seed, 0)
        if self.checkpoint_every is not None:
            check_free(self.checkpoint)
            Hold.of(self.checkpoint).end()  # told now, and not when the baseline has run
        if self.resume is not None:
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
        try:
            pickle.dumps(job)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            kind = type(self.workload).__name__
            raise ValueError(f"workload is a {kind}, which cannot be pickled for the ranks: {error}") from error
        if self.checkpoint_every is not None:
            self._hold = Hold.of(self.checkpoint)
        self._fleet = self._open(job)
        self._warm = False
        about = self._fleet.call("about")
        self._capacity = min(one.memory_bytes for one in about)
        if self.resume is not None:
            self._fleet.call("load", self.resume)
        ranks = sorted({json.dumps(asdict(one), sort_keys=True) for one in about})
        return Ready(self.first_step, {**self.about(job), "ranks": [json.loads(one) for one in ranks]})

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
            the
                plans have pipelines; the trace cannot be written.
        """
        assert self._fleet is not None
        if any(plan.pipelines is not None for plan in plans):
            raise ValueError(
                "plan.pipelines has groups of ranks; executor=torch has no tensor or pipeline parallelism and takes "
                "plans without them"
            )
        for other in {plan.attention for plan in plans} - {""}:
            check_package(other, self.check)
        choice = self._choice(plans)
        for _ in range(0 if self._warm else self.warmup):
            self._fleet.call("step", batch, plans, False, False, choice.level)
        self._warm = True
        reports: list[Report] = self._fleet.call("step", batch, plans, True, trace is not None, choice.level)
        if not math.isfinite(reports[0].loss):
            raise Diverged(f"the loss is {reports[0].loss} in step {batch.step}; the run stops")
        checked = self.checked(batch, plans, reports, choice.level)
        if self.checkpoint_every and (batch.step + 1) % self.checkpoint_every == 0:
            self._fleet.call("save", self.checkpoint, batch.step + 1)
        kind = self.job().parameters
        if trace is not None:
            world = found(environ)
            write_measured(trace, self.cost.cluster, reports, world is None or world.is_one_machine)
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
        world = found(environ)
        nodes = self.cost.cluster.num_nodes
        if self.nic_counters and nodes > 1 and (world is None or world.is_one_machine):
            raise ValueError(
                f"executor.nic_counters is true; one machine plays {nodes} nodes, whose traffic its counters mix"
            )
        asked = self.cost.cluster.num_ranks
        if world is None:
            from zbench.runtime.processes.launch import LocalFleet

            return LocalFleet(asked, TARGET, job, timeout=self.timeout)
        if world.num_ranks != asked:
            raise ValueError(
                f"cluster.num_nodes x cluster.gpus_per_node is {asked}; {world.num_ranks} processes were started"
            )
        from zbench.runtime.processes.join import JoinedFleet

        return JoinedFleet(world, TARGET, job, timeout=self.timeout)

    def _choice(self, plans: tuple[Plan, ...]) -> LevelChoice:
        """Chooses what runs again in this step's backward."""
        levels = LEVELS if self.recompute == "auto" else (self.recompute or self.cost.model.recompute,)
        return choose_level(plans, self.cost, self.job().parameters, self._capacity, levels)

    def checked(self, batch: Batch, plans: tuple[Plan, ...], reports: list[Report], level: str) -> dict[str, float]:
        """Returns what the checks found, by name. level: of recomputation."""
        told: dict[str, float] = {}
        for check in (one for one in self.check if one in LIMITS):
            assert reports[0].worst is not None
            difference, where = reports[0].worst
            told[check] = difference
            if not difference <= LIMITS[check]:
                raise CheckFailed(
                    f"check={check} failed in step {batch.step}: {where} differs from the dense model's by "
                    f"{difference:.2g} of its largest value, and {LIMITS[check]:g} is allowed"
                )
        if "bytes" in self.check:
            sent = Sent.of(self.cost.cluster, [one.inside for one in reports], [one.across for one in reports])
            model = replace(self.cost.model, recompute="full" if level == "full" else "none")
            fault = sent.differs(expected(plans, replace(self.cost, model=model)))
            told["bytes"] = float(sum(sent.rank_tx))
            if fault:
                raise CheckFailed(f"check=bytes failed in step {batch.step}: {fault}")
        return told
