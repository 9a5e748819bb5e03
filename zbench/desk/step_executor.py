"""The desk's executor of whole steps: ranks of zbench.runtime.step_executor on emulated nodes, with limited NICs and
paced devices.

Every compute of a step takes as long as the clock of whole steps says, whatever it is of, so tensor parallelism,
parameters, gradients, experts and stages are measured as attention is. The driver's side: imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import sched_getaffinity
from typing import Any, ClassVar

from zbench.cost.job import worker_cost
from zbench.describe.batch import Batch
from zbench.desk.emulated import NIC_BYTES, check_emulated, fault_of, open_emulated, step_counts, too_fast
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.round_driver import RoundDriver
from zbench.runtime.step_executor import Torch
from zbench.runtime.steps.device_seconds import DeviceSeconds
from zbench.runtime.worker_clocks import StepClock, WorkerClocks


@dataclass(slots=True)
class Desk(Torch):
    """Executes whole steps as zbench.runtime.step_executor.Torch does, on a desk cluster; settings as there.

    fault, device, NIC bytes: as of zbench.desk.attention_executor.DeskAttention. In rounds workers have clocks of their
    own (zbench.runtime.worker_clocks).

    Raises:
        ValueError: a setting cannot be, or emulated nodes have nothing for what the strategy takes.
    """

    device: str = "cpu"
    nic_counters: bool = True
    nic_interval: float | None = 0.05
    fault: dict[str, Any] | None = None
    name: ClassVar[str] = "desk"

    def __post_init__(self) -> None:
        cluster, model = self.cost.gpus.cluster, self.cost.gpus.model
        check_emulated(self.device, cluster, self.nic_counters)
        fault_of(self.fault, cluster)
        if model.uses_hosts:
            raise ValueError(f"{model.told_of_hosts}; emulated nodes have no link to host memory, so it takes none")
        if self.experts.counted:
            raise ValueError(
                f"experts.routing is {self.experts.routing}; a paced device takes as long as is known before a step, "
                "and how many rows routers choose is not, so it takes drawn, or experts.padded=true"
            )
        if self.sync.age or self.sync.delay:
            raise ValueError(
                f"sync is {self.sync.method}; on emulated nodes workers pause between local steps, and an average that "
                "is under way would not, so it takes every_step, local_sgd, slowmo or diloco"
            )
        for key, value in (("executor.checkpoint_every", self.checkpoint_every), ("resume", self.resume)):
            if value is not None:
                raise ValueError(f"{key} is {value}; executor={self.name} measures rounds whole, so it takes null")
        Torch.__post_init__(self)

    @property
    def modelled(self) -> DeviceSeconds:
        """The seconds of computes on the cluster's devices."""
        return DeviceSeconds(self.cost.gpus)

    def start(self) -> Ready:
        """Starts the ranks on emulated nodes.

        Raises:
            what zbench.runtime.step_executor.Torch.start raises.
        """
        ready = Torch.start(self)
        return replace(ready, about={**ready.about, "nic_bytes": NIC_BYTES, "device": "paced"})

    def job(self) -> StepJob:
        """Returns what every rank is told."""
        fault = fault_of(self.fault, self.cost.gpus.cluster)
        return replace(Torch.job(self), is_paced=True, is_weighed=False, fault=fault)  # pacing leaves no time for it

    def result(
        self,
        batch: Batch,
        reports: Sequence[StepReport],
        checks: dict[str, float],
        clock: StepClock | None = None,
    ) -> StepResult:
        """Makes a step's result of the reports of all ranks, and marks it invalid where the machine was too busy.

        Raises:
            ValueError: this machine's processors worked for longer than the devices take, whoever else uses them.
        """
        worked = sum(one.paced["worked"] for one in reports) / len(sched_getaffinity(0))
        modelled = max(one.paced["modelled"] for one in reports)
        if self.warmup and worked > modelled:  # else much of it is the first step's alone
            raise too_fast(self.cost.gpus.cluster, worked, modelled)
        found = Torch.result(self, batch, reports, checks, clock)
        return replace(found, valid=step_counts(found.phases, max(one.seconds for one in reports)))

    def _open(self, rank: str, job: StepJob) -> Fleet:
        return open_emulated(self.name, self.cost.gpus.cluster, rank, job, self.timeout)

    def _new_rounds(self, fleet: Fleet) -> RoundDriver:
        own, steps = worker_cost(self.cost, self.sync), self.worker_steps
        modelled = DeviceSeconds(own.gpus), DeviceSeconds(self.cost.gpus)
        return RoundDriver(steps, fleet, modelled, WorkerClocks(steps.workers, steps.gpus[1]))
