"""The torch executor: every step really runs, on processes of this machine or on those that torchrun or Slurm started.

The driver's side: imports no torch itself. Plans go to the ranks (zbench.runtime.trainer), their measurements come
back and become one StepResult.
"""

import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from os import environ
from typing import Any

from zbench.batch import Batch
from zbench.bound import bound_seconds
from zbench.collective import nic_bytes
from zbench.cost import Cost
from zbench.plan import Plan
from zbench.protocols import Ready, Workload
from zbench.result import StepResult
from zbench.runtime.fleet import Fleet
from zbench.runtime.folder import check_free, check_same, told
from zbench.runtime.job import ATTENTIONS, KERNELS, PARAMETERS, AdamW, Job, Report
from zbench.runtime.traffic import Sent, expected
from zbench.runtime.world import found

EXACT = 1e-12  # largest relative difference to the dense model, in float64
TARGET = "zbench.runtime.trainer:Trainer"
COUNTED = "attention: counted where messages are posted; gradients and parameters: computed, not counted"


class CheckFailed(Exception):
    """A step did not come out as it has to; the message is one sentence."""


class Diverged(Exception):
    """The loss is no number any more; the message is one sentence."""


@dataclass(slots=True)
class Torch:
    """Executor that trains. One run at a time: start(), steps in order, stop().

    kernel: of zbench.runtime.job.KERNELS; "auto" is the fastest there is. parameters: "replicated" or "sharded"; None:
    as the model says (zero3 is sharded). timeout: seconds without progress after which the run ends. warmup: passes
    over the first batch before the first step, which are not recorded and train nothing. check: "exact", "bytes".
    checkpoint_every: steps between checkpoints into the folder checkpoint; None: none. resume: a checkpoint.
    nic_counters: take NIC bytes from the machines' own counters (all traffic) instead of the executor's count.

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
    _fleet: Fleet | None = field(default=None, init=False)
    _warm: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _one_of("executor.kernel", self.kernel, KERNELS)
        if self.parameters is not None:
            _one_of("executor.parameters", self.parameters, PARAMETERS)
        for name, least in (("timeout", 1), ("warmup", 0), ("checkpoint_every", 1)):
            value = getattr(self, name)
            fits = isinstance(value, int if name != "timeout" else (int, float)) and not isinstance(value, bool)
            if value is None and name == "checkpoint_every":
                continue
            if not fits or not least <= value < math.inf:
                raise ValueError(f"executor.{name} is {value!r}; it takes a number of at least {least}")
        AdamW(**_known("executor.optimizer", self.optimizer, AdamW.__dataclass_fields__))
        self._check_model()
        if not isinstance(self.nic_counters, bool):
            raise ValueError(f"executor.nic_counters is {self.nic_counters!r}; it takes true or false")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"executor.seed is {self.seed!r}; it takes a whole number of at least 0")
        if self.checkpoint_every is not None:
            check_free(self.checkpoint)
        if self.resume is not None:
            check_same(self.resume, self._job().told())

    @property
    def first_step(self) -> int:
        """0, or where the checkpoint goes on."""
        return 0 if self.resume is None else int(told(self.resume)["next_step"])

    # -- Executor -------------------------------------------------------------------------------------
    def start(self) -> Ready:
        """
        Raises:
            ValueError: other than the cluster's number of ranks were started.
            zbench.runtime.fleet.RankFailed: a rank could not start.
        """
        job = self._job()
        try:
            pickle.dumps(job)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            kind = type(self.workload).__name__
            raise ValueError(f"workload is a {kind}, which cannot be pickled for the ranks: {error}") from error
        self._fleet = self._open(job)
        self._warm = False
        about = self._fleet.call("about")
        if self.resume is not None:
            self._fleet.call("load", self.resume)
        source = "counters of the machines' NICs" if self.nic_counters else COUNTED
        ranks = sorted({json.dumps(asdict(one), sort_keys=True) for one in about})
        facts = {"nic_bytes": source, "parameters": job.parameters, "ranks": [json.loads(one) for one in ranks]}
        return Ready(self.first_step, facts)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """
        Raises:
            Diverged: the loss is not finite. CheckFailed: a check did. zbench.runtime.fleet.RankFailed: a rank did.
            ValueError: the package that is to compute attention is not there, or cannot be checked as asked.
        """
        assert self._fleet is not None
        for other in {plan.attention for plan in plans} - {""}:
            _check_other(other, self.check)
        for _ in range(0 if self._warm else self.warmup):
            self._fleet.call("step", batch, plans, False)
        self._warm = True
        reports: list[Report] = self._fleet.call("step", batch, plans, True)
        if not math.isfinite(reports[0].loss):
            raise Diverged(f"the loss is {reports[0].loss} in step {batch.step}; the run stops")
        checked = self._checked(batch, plans, reports)
        if self.checkpoint_every and (batch.step + 1) % self.checkpoint_every == 0:
            self._fleet.call("save", self.checkpoint, batch.step + 1)
        return self._result(batch, plans, reports, checked)

    def stop(self) -> None:
        if self._fleet is not None:
            fleet, self._fleet = self._fleet, None
            fleet.close()

    def _check_model(self) -> None:
        """What the network would refuse, told before any process is started."""
        model, needed = self.cost.model, getattr(self.workload, "vocab", None)
        if model.element_bytes not in (2, 4, 8):
            raise ValueError(
                f"model.element_bytes is {model.element_bytes}; training takes 2 (bfloat16), 4 (float32) or 8 (float64)"
            )
        if model.lse_bytes != max(4, model.element_bytes):
            raise ValueError(
                f"model.lse_bytes is {model.lse_bytes}; with model.element_bytes={model.element_bytes} kernels give "
                f"{max(4, model.element_bytes)}"
            )
        if model.head_dim % 2:
            raise ValueError(f"model.head_dim is {model.head_dim}; RoPE turns pairs, so it has to be even")
        if needed is not None and model.vocab < needed:
            raise ValueError(f"model.vocab is {model.vocab}; the workload's tokens are bytes, which need {needed}")

    # -- inside ---------------------------------------------------------------------------------------
    def _job(self) -> Job:
        kind = self.parameters or ("sharded" if self.cost.model.sharding == "zero3" else "replicated")
        return Job(
            self.cost, self.workload, self.seed, self.kernel, kind, AdamW(**self.optimizer), "exact" in self.check
        )

    def _open(self, job: Job) -> Fleet:
        world = found(environ)
        nodes = self.cost.cluster.num_nodes
        if self.nic_counters and nodes > 1 and (world is None or world.is_one_machine):
            raise ValueError(
                f"executor.nic_counters is true; one machine plays {nodes} nodes, whose traffic its counters mix"
            )
        asked = self.cost.cluster.num_ranks
        if world is None:
            from zbench.runtime.launch import LocalFleet

            return LocalFleet(asked, TARGET, job, timeout=self.timeout)
        if world.num_ranks != asked:
            raise ValueError(
                f"cluster.num_nodes x cluster.gpus_per_node is {asked}; {world.num_ranks} processes were started"
            )
        from zbench.runtime.join import JoinedFleet

        return JoinedFleet(world, TARGET, job, timeout=self.timeout)

    def _checked(self, batch: Batch, plans: tuple[Plan, ...], reports: list[Report]) -> dict[str, float]:
        """What the checks found, by name."""
        told: dict[str, float] = {}
        if "exact" in self.check:
            assert reports[0].worst is not None
            difference, where = reports[0].worst
            told["exact"] = difference
            if not difference <= EXACT:
                raise CheckFailed(
                    f"check=exact failed in step {batch.step}: {where} differs from the dense model's by "
                    f"{difference:.2g} of its largest value, and {EXACT:g} is allowed"
                )
        if "bytes" in self.check:
            sent = Sent.of(self.cost.cluster, [one.inside for one in reports], [one.across for one in reports])
            fault = sent.differs(expected(plans, self.cost))
            told["bytes"] = float(sum(sent.rank_tx))
            if fault:
                raise CheckFailed(f"check=bytes failed in step {batch.step}: {fault}")
        return told

    def _result(
        self, batch: Batch, plans: tuple[Plan, ...], reports: list[Report], checked: dict[str, float]
    ) -> StepResult:
        cluster = self.cost.cluster
        sent = Sent.of(cluster, [one.inside for one in reports], [one.across for one in reports])
        tx, rx = list(sent.nic_tx), list(sent.nic_rx)
        if self.nic_counters:
            tx, rx = _counted(reports, cluster.gpus_per_node, cluster.nics_per_node)
        elif cluster.num_nodes > 1:
            more = self._parameter_bytes(len(plans))
            tx, rx = [one + more for one in tx], [one + more for one in rx]
        peak = [one.peak_bytes for one in reports]
        capacity = min(one.capacity_bytes for one in reports)
        slowest = max(reports, key=lambda one: one.seconds)
        return StepResult(
            seconds=slowest.seconds,
            bound_seconds=bound_seconds(batch, self.cost),
            attention_seconds=[one.attention_seconds for one in reports],
            linear_seconds=[one.linear_seconds for one in reports],
            communication_seconds=[one.communication_seconds for one in reports],
            exposed_seconds=[one.exposed_seconds for one in reports],
            nic_tx_bytes=tx,
            nic_rx_bytes=rx,
            nvlink_bytes=sum(inside for inside, _ in (one.inside for one in reports)),
            peak_bytes=peak,
            capacity_bytes=capacity,
            out_of_memory=False,  # it ran
            loss=reports[0].loss,
            phases=slowest.phases,
            checks=checked,
        )

    def _parameter_bytes(self, num_micro_batches: int) -> int:
        """What each NIC sends (and receives) for gradients and parameters, if collectives run node by node.

        Replicated: one all-reduce of gradients. Sharded: layers are gathered for every forward and every backward,
        the rest for every forward, and gradients are reduced and scattered once. Sums are float32 or wider.
        """
        model = self.cost.model
        wide = max(4, model.element_bytes) * float(model.total_params)
        if self._job().parameters == "replicated":
            return 2 * nic_bytes(self.cost, wide)
        layers = model.element_bytes * float(model.num_layers * model.layer_params)
        rest = model.element_bytes * float(model.total_params) - layers
        return nic_bytes(self.cost, wide) + num_micro_batches * nic_bytes(self.cost, 2 * layers + rest)


def _counted(reports: list[Report], gpus_per_node: int, nics_per_node: int) -> tuple[list[int], list[int]]:
    """Bytes (sent, received) of every NIC of every node, as the first rank of each node read them.

    Raises:
        ValueError: a node has another number of NICs than the cluster.
    """
    tx, rx = [], []
    for node, report in enumerate(reports[::gpus_per_node]):
        if len(report.nic) != nics_per_node:
            names = ", ".join(report.nic) or "none"
            raise ValueError(f"cluster.nics_per_node is {nics_per_node}; node {node} has {len(report.nic)}: {names}")
        tx += [sent for sent, _ in report.nic.values()]
        rx += [received for _, received in report.nic.values()]
    return tx, rx


def _check_other(package: str, check: Sequence[str]) -> None:
    """Of a package that computes attention in the plan's place."""
    _one_of("plan.attention", package, ATTENTIONS)
    if find_spec(package) is None:
        raise ValueError(f"system has {package} compute attention, and it is missing; the extra 'peers' installs it")
    if "bytes" in check:
        raise ValueError(
            f"check=bytes cannot be where {package} computes attention: it sends messages of its own, not the plan's"
        )


def _one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(choices)}")


def _known(name: str, given: Any, fields: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} is {given!r}; it takes keys among {', '.join(fields)}")
    for key in given:
        if key not in fields:
            raise ValueError(f"{name}.{key} is no key; there are {', '.join(fields)}")
    return given
