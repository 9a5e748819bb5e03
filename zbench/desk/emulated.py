"""Common parts of executors on emulated nodes: how ranks get there, faults, and which steps count.

The driver's side: imports no torch.
"""

from collections.abc import Mapping
from os import environ
from typing import Any

from zbench.describe.cluster import Cluster
from zbench.runtime.job.settings import with_known_keys
from zbench.runtime.network.fault import Fault
from zbench.runtime.network.wiring import Wiring
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.processes.world import found

MOST_OVERRUN = 0.05  # share of a step by which real work may be late: what a simulator should be right to
# Messages wait for processors without anybody else at work, too: eight ranks on two cores, for 4 to 8 % of a step, half
# of which the step is longer for (docs/desk.md).
MOST_LATE = 0.10
NIC_BYTES = "counters of the emulated NICs"


def check_emulated(device: str, cluster: Cluster, nic_counters: bool) -> None:
    """Refuses what emulated nodes cannot be.

    Raises:
        ValueError: ranks are to compute on something else than the CPU, the cluster has links that a desk has not, or
            NICs' counters are not to be read.
    """
    if device != "cpu":
        raise ValueError(f"executor.device is {device!r}; emulated nodes compute on the CPU, cpu")
    if not nic_counters:
        raise ValueError("executor.nic_counters is false; on emulated nodes the NICs' counters are what is measured")
    Wiring.of(cluster)


def open_emulated(name: str, cluster: Cluster, target: str, job: Any, timeout: float) -> Fleet:
    """Starts ranks on emulated nodes. name: of the executor; target: as of zbench.runtime.processes.launch.LocalFleet.

    Raises:
        ValueError: the processes were started by torchrun or Slurm.
        zbench.runtime.processes.fleet.RankFailed: the nodes cannot be made, or a rank could not start.
    """
    from zbench.runtime.processes.launch import LocalFleet

    if found(environ) is not None:
        raise ValueError(f"executor is {name}; it starts its ranks itself, not under torchrun or Slurm")
    return LocalFleet(cluster.num_ranks, target, job, timeout=timeout, wiring=Wiring.of(cluster))


def fault_of(given: Mapping[str, Any] | None, cluster: Cluster) -> Fault | None:
    """Returns what is to happen to a NIC. given: executor.fault, by fields of Fault; None: nothing.

    Raises:
        ValueError: it cannot be.
    """
    if given is None:
        return None
    known = with_known_keys("executor.fault", given, Fault.__dataclass_fields__)
    for name in ("nic", "step"):
        if name not in known:
            raise ValueError(f"executor.fault.{name} is missing; a fault is of a NIC and begins in a step")
    fault = Fault(**known)  # type: ignore[arg-type]
    fault.check(cluster)
    return fault


def step_counts(phases: Mapping[str, float], seconds: float) -> bool:
    """Returns whether a step counts: neither ranks' work nor messages were late by too much of its seconds."""
    return phases["overrun"] / seconds <= MOST_OVERRUN and phases["late"] / seconds <= MOST_LATE


def too_fast(cluster: Cluster, real: float, modelled: float) -> ValueError:
    """Returns the error of devices that this machine cannot be. real, modelled: seconds of the same work."""
    return ValueError(
        f"cluster.device is {cluster.device.name}; this machine cannot hold its rates for {cluster.num_ranks} "
        f"ranks (what takes the device {modelled:.2g} s took a rank {real:.2g} s, all at work at once): choose "
        "a cluster made for it, as cluster=desk_2x4_a800 is (docs/desk.md)"
    )
