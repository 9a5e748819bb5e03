"""What a desk's limited links give: the share of their rate that payload gets, and the latency of a small message.

Measured by the ranks of the desk themselves, all sending and receiving at once, with gloo's messages as plans send
them (zbench.runtime.measure). The driver's side; imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from zbench.calibrate.gauge import Gauge
from zbench.calibrate.subject import Subject
from zbench.cluster import Cluster
from zbench.desk.wiring import Wiring
from zbench.model import Model
from zbench.runtime.launch import LocalFleet

TARGET = "zbench.runtime.measure:Measure"
SIZES = (1 << 18, 1 << 20)  # bytes: half and twice a ring hop of the desk's presets
SMALL = 8  # bytes
WINDOW = 2.0  # seconds of one measurement


@dataclass(frozen=True, slots=True)
class Link:
    """efficiency: of the rate. latency: seconds. bandwidth: the rate, bytes/s."""

    efficiency: float
    latency: float
    bandwidth: float


def measure(cluster: Cluster, model: Model, tell: Callable[[str], None]) -> tuple[dict[str, Link], float]:
    """Links by name ("nic", "nvlink"), those that there are; and the share of the processors that others used.

    tell: gets a line of progress each.

    Raises:
        zbench.runtime.fleet.RankFailed: the desk cannot be made, or a rank failed.
    """
    subject = Subject(model, cluster.num_nodes, cluster.gpus_per_node, cluster.nics_per_node, 1, "auto")
    with LocalFleet(cluster.num_ranks, TARGET, subject, wiring=Wiring.of(cluster)) as fleet:
        gauge, found = Gauge(fleet, WINDOW, tell), {}
        with gauge.watched("links"):
            if cluster.num_nodes > 1:
                found["nic"] = _link(gauge, True, subject.ranks_per_nic, cluster.nic_bandwidth)
            if cluster.gpus_per_node > 1:
                found["nvlink"] = _link(gauge, False, 1, cluster.nvlink_bandwidth)
    return found, gauge.others["links"]


def _link(gauge: Gauge, across: bool, ranks: int, bandwidth: float) -> Link:
    """ranks: that share one. The rate is that of what a larger message has more than a smaller one."""
    small, large = (gauge.message(across, size) for size in SIZES)
    rate = (SIZES[1] - SIZES[0]) * ranks / (large - small)
    return Link(rate / bandwidth, gauge.message(across, SMALL), bandwidth)
