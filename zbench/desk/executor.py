"""The desk executor: the torch executor's ranks on emulated nodes, with real limited NICs and paced devices.

The driver's side: imports no torch.
"""

from dataclasses import dataclass, replace
from os import environ
from typing import Any

from zbench.batch import Batch
from zbench.desk.wiring import Wiring
from zbench.plan import Plan
from zbench.result import StepResult
from zbench.runtime.executor import TARGET, Torch
from zbench.runtime.fleet import Fleet
from zbench.runtime.job import Job
from zbench.runtime.world import found

HOPELESS = 0.25  # share of a step that real work was late: no disturbance, but a rate that cannot be held


@dataclass(slots=True)
class Desk(Torch):
    """zbench.runtime.executor.Torch on a desk cluster (zbench.desk.wiring); settings as there.

    NIC bytes are those of the emulated NICs' own counters, with all that crosses them: headers, gradients, barriers.

    Raises:
        ValueError: a setting cannot be, or the processes were started by torchrun or Slurm.
    """

    nic_counters: bool = True

    def __post_init__(self) -> None:
        Torch.__post_init__(self)
        if not self.nic_counters:
            raise ValueError(
                "executor.nic_counters is false; on emulated nodes the NICs' counters are what is measured"
            )
        Wiring.of(self.cost.cluster)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """
        Raises:
            ValueError: real work took so much longer than modelled that the device is none of this machine's.
            what zbench.runtime.executor.Torch.step raises.
        """
        result = Torch.step(self, batch, plans)
        overrun, cluster = result.phases["overrun"], self.cost.cluster
        if overrun > HOPELESS * result.seconds:
            raise ValueError(
                f"cluster.device is {cluster.device.name}; this machine cannot hold its rates for {cluster.num_ranks} "
                f"ranks (real work was {overrun:.2g} s late in a step of {result.seconds:.2g} s): choose a cluster "
                "made for it, as cluster=desk_2x4_a800 is (docs/desk.md)"
            )
        return result

    def _about(self, job: Job) -> dict[str, Any]:
        return {**Torch._about(self, job), "nic_bytes": "counters of the emulated NICs", "device": "paced"}

    def _job(self) -> Job:
        return replace(Torch._job(self), is_paced=True)

    def _open(self, job: Job) -> Fleet:
        from zbench.runtime.launch import LocalFleet

        if found(environ) is not None:
            raise ValueError("executor is desk; it starts its ranks itself, not under torchrun or Slurm")
        cluster = self.cost.cluster
        return LocalFleet(cluster.num_ranks, TARGET, job, timeout=self.timeout, wiring=Wiring.of(cluster))
