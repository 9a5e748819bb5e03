"""Measures who goes first on a desk's NICs: a ring's messages beside an all-gather that began before them.

The clock knows three orders (Cluster.port_order). By the plan's, messages wait for all of a gather that stands before
them; where the longest waiting goes first, for the piece of it that is under way; where ports are shared, both have
half of it. The driver's side; imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from zbench.calibrate.gauge import Gauge
from zbench.calibrate.subject import Subject
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.desk.links import TARGET, check_link_memory
from zbench.runtime.network.wiring import Wiring
from zbench.runtime.processes.launch import LocalFleet

SECONDS = 2.0  # that the gather takes of a NIC at its full rate
SHARE = 0.25  # of it, that the ring's messages take
TIMES = 5  # of how many the median counts


@dataclass(frozen=True, slots=True)
class PortOrder:
    """Seconds of a ring and an all-gather, of the slowest rank: each alone, and begun together."""

    ring_alone: float
    gather_alone: float
    ring: float
    gather: float

    @property
    def waited(self) -> float:
        """The share of the gather that the ring's messages waited for: 1 in the plan's order, nearly 0 where the
        longest waiting goes first, `halves` where they share the NIC."""
        return (self.ring - self.ring_alone) / self.gather_alone

    @property
    def halves(self) -> float:
        """The share that `waited` would be if both had half of the NIC as long as both are there."""
        return self.ring_alone / self.gather_alone


def port_order(cluster: Cluster, model: Model, tell: Callable[[str], None]) -> tuple[PortOrder, float]:
    """Measures who goes first; returns it, and the share of the processors that others used.

    tell: gets a line of progress each.

    Raises:
        ValueError: the cluster cannot be a desk or has one node alone, or its NICs are too fast for this machine.
        zbench.runtime.processes.fleet.RankFailed: the desk cannot be made, or a rank failed.
    """
    if cluster.num_nodes == 1:
        raise ValueError("cluster.num_nodes is 1; who goes first at a NIC takes two nodes or more")
    wiring = Wiring.of(cluster)
    check_link_memory(cluster, SECONDS)
    subject = Subject(model, cluster.num_nodes, cluster.gpus_per_node, cluster.nics_per_node, 1, "auto")
    # A ring's hop crosses a node's border once each way, and so does all but one share of a ring's gather.
    size = SECONDS * cluster.nic_bandwidth / (cluster.num_ranks - 1)
    with LocalFleet(cluster.num_ranks, TARGET, subject, wiring=wiring) as fleet:
        gauge = Gauge(fleet, SECONDS, tell)

        def seconds(which: str) -> tuple[float, float]:
            calls = [fleet.call("beside", int(size), int(SHARE * size), which) for _ in range(TIMES)]
            ring, gather = zip(*([max(one) for one in zip(*call, strict=True)] for call in calls), strict=True)
            return float(median(ring)), float(median(gather))

        with gauge.watched("port order"):
            seconds("both")  # connections and windows grow
            ring_alone, gather_alone = seconds("ring")[0], seconds("gather")[1]
            found = PortOrder(ring_alone, gather_alone, *seconds("both"))
    return found, gauge.others["port order"]
