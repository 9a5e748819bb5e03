"""The desk executor: the torch executor's ranks on emulated nodes, with real limited NICs and paced devices.

The driver's side: imports no torch.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.desk.emulated import NIC_BYTES, check_emulated, fault_of, open_emulated, step_counts, too_fast
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.runtime.attention_executor import TARGET, TorchAttention
from zbench.runtime.job.job import Job
from zbench.runtime.processes.fleet import Fleet


@dataclass(slots=True)
class DeskAttention(TorchAttention):
    """Executes plans as zbench.runtime.attention_executor.TorchAttention does, on a desk cluster
    (zbench.runtime.network.wiring); settings as there.

    fault: what is to happen to a NIC, by fields of zbench.runtime.network.fault.Fault; None: nothing.

    device: what a rank computes with is the CPU, paced as the cluster's device is, whatever GPUs the machine has.

    NIC bytes are those of the emulated NICs' own counters, with all that crosses them: headers, gradients, barriers.

    Raises:
        ValueError: a setting cannot be, or the processes were started by torchrun or Slurm.
    """

    nic_counters: bool = True
    nic_interval: float | None = 0.05
    device: str = "cpu"
    fault: dict[str, float] | None = None

    def __post_init__(self) -> None:
        check_emulated(self.device, self.cost.cluster, self.nic_counters)
        if self.recompute is not None:
            raise ValueError(
                f"executor.recompute is {self.recompute!r}; paced devices do what the cost model knows: leave it null "
                "and set the group recompute"
            )
        if self.cost.model.sharding != "none" or self.parameters == "sharded":
            raise ValueError(
                f"sharding is {self.cost.model.sharding} and executor.parameters {self.parameters}; emulated "
                "nodes have sharding=none and executor.parameters=replicated only: gloo gathers parameters round "
                "one ring of ranks, through one NIC of each node, which no cluster that is emulated does"
            )
        TorchAttention.__post_init__(self)
        fault_of(self.fault, self.cost.cluster)

    def start(self) -> Ready:
        """Starts the ranks on emulated nodes, and checks that this machine is fast enough for them.

        Raises:
            ValueError: this machine takes longer for the ranks' work than their devices would.
            what zbench.runtime.attention_executor.TorchAttention.start raises.
        """
        ready = TorchAttention.start(self)
        assert self._fleet is not None
        cluster = self.cost.cluster
        plan = _apart(self.cost, max(1, self.workload.batch(0).num_tokens // cluster.num_ranks))
        real, modelled = max(self._fleet.call("burst", plan), key=lambda one: float(one[0] / one[1]))
        if real > modelled:
            raise too_fast(cluster, real, modelled)
        return replace(ready, about={**ready.about, "burst": {"real_seconds": real, "device_seconds": modelled}})

    def traced_step(self, batch: Batch, plans: tuple[Plan, ...], trace: str | None) -> StepResult:
        """Runs a step as TorchAttention does, and marks it invalid where the machine was too busy for it."""
        result = TorchAttention.traced_step(self, batch, plans, trace)
        return replace(result, valid=step_counts(result.phases, result.seconds))

    def about(self, job: Job) -> dict[str, Any]:
        return {**TorchAttention.about(self, job), "nic_bytes": NIC_BYTES, "device": "paced"}

    def job(self) -> Job:
        return replace(TorchAttention.job(self), is_paced=True, fault=fault_of(self.fault, self.cost.cluster))

    def _open(self, job: Job) -> Fleet:
        return open_emulated("desk", self.cost.cluster, TARGET, job, self.timeout)


def _apart(cost: Cost, tokens: int) -> Plan:
    """Returns a batch of one sequence of `tokens` on every rank: work without messages."""
    ranks = cost.cluster.num_ranks
    builder = Builder(np.full(ranks, tokens, np.int64), ranks, cost.model.num_heads, cost.model.mask)
    local(builder, np.arange(ranks), np.arange(ranks))
    return reverse(builder.build(), "keep")
