"""Instruments of a rank: its node's NICs where their counters are read and, on an emulated node, its device's clock and
how late messages are.

Else there are none of them: the device takes as long as it takes, and messages are counted where they are posted.
"""

from dataclasses import dataclass, field
from time import perf_counter, process_time, sleep
from typing import Any

from zbench.describe.cluster import Cluster
from zbench.runtime.clocks.pace import Paced, Pacer, Unpaced
from zbench.runtime.job.step_job import Sizes, StepJob
from zbench.runtime.network.fault import Fault
from zbench.runtime.network.lateness import Lateness
from zbench.runtime.network.place import Place
from zbench.runtime.network.sampler import Sampler


def pace_of(job: StepJob) -> Pacer:
    """Returns the clock of a rank's device; made before threads that move messages are."""
    return Paced() if job.is_paced else Unpaced()


@dataclass
class Instruments:
    """The instruments of a rank. fault: what is to be tried on a NIC of its node, by this rank."""

    pace: Pacer
    cluster: Cluster
    place: Place | None = None
    nics: Sampler | None = None
    lateness: Lateness | None = None
    fault: Fault | None = None
    _worked: float = 0.0  # seconds of processors until a step's begin

    @staticmethod
    def of(job: StepJob, rank: int, place: Place | None, pace: Pacer) -> "Instruments":
        """Makes the instruments of a rank, once gloo is open. Its node's first one looks at NICs while a step runs, and
        tries a fault of one of them."""
        cluster = job.cost.gpus.cluster
        node, local = divmod(rank, cluster.gpus_per_node)
        nics = Sampler.of_node(local == 0, place, job.nic_interval) if job.nic_counters else None
        if place is None:
            return Instruments(pace, cluster, nics=nics)
        fault = job.fault if local == 0 else None
        mine = fault if fault is not None and fault.nic // cluster.nics_per_node == node else None
        return Instruments(pace, cluster, place, nics, Lateness(), mine)

    def begin(self, step: int | None, later: float = 0.0) -> float:
        """Begins to measure; returns when. step: whose fault is to be tried, None: no step's. later: seconds by which
        this rank begins after the first one; NICs are looked at from now on."""
        if self.nics is not None:
            self.nics.begin()
        if later:
            sleep(later)
        if self.fault is not None and self.place is not None and self.fault.step == step:
            self.fault.begin(self.cluster, self.place)
        self._worked = process_time()
        began = perf_counter()
        self.pace.begin()
        if self.lateness is not None:
            self.lateness.begin()
        return began

    def end(self) -> "NodeMeasurements":
        """Ends what `begin` began; returns what was measured since."""
        paced: dict[str, float] = {}
        if self.lateness is not None:
            paced = {
                "overrun": self.pace.overrun,
                "late": self.lateness.seconds(),
                "modelled": self.pace.modelled,
                "worked": process_time() - self._worked,
            }
        if self.nics is None:
            return NodeMeasurements(paced=paced)
        return NodeMeasurements(self.nics.end(), self.nics.series(), paced)


@dataclass(frozen=True)
class NodeMeasurements:
    """The measurements of a rank's instruments, as of zbench.runtime.job.step_job.StepReport; empty where there are
    none."""

    nic: dict[str, Sizes] = field(default_factory=dict)
    nic_series: dict[str, Any] = field(default_factory=dict)
    paced: dict[str, float] = field(default_factory=dict)
