"""Measures what a desk's limited links give: the share of their rate that payload gets, to all peers at once and to
one, and the latency of a small message.

Measured by the ranks of the desk themselves, with gloo's messages as plans send them, by what zbench.calibrate measures
links with (zbench.calibrate.exchanges). The driver's side; imports no torch.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from zbench.calibrate.gauge import Gauge
from zbench.calibrate.subject import Subject
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.runtime.network.wiring import Wiring
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.processes.launch import LocalFleet

TARGET = "zbench.calibrate.measure:Measure"
SECONDS = 0.5  # that a large message takes at the full rate: hundreds of times the latency, which is left in it
SMALL = 8  # bytes
ROUNDS, TIMES = 3, 5  # messages in one measurement, and of how many the median counts


@dataclass(frozen=True, slots=True)
class LinkEfficiency:
    """The measured properties of one kind of link. efficiency: what all peers together get of the link, one: what one
    of them alone does, shares of the rate; where there are fewer peers than channels, nobody can have all. latency:
    seconds. bandwidth: the rate, bytes/s."""

    efficiency: float
    one: float
    latency: float
    bandwidth: float


def measure(cluster: Cluster, model: Model, tell: Callable[[str], None]) -> tuple[dict[str, LinkEfficiency], float]:
    """Measures the links that there are; returns them by name ("nic", "nvlink"), and the share of the processors that
    others used.

    tell: gets a line of progress each.

    Raises:
        ValueError: the cluster cannot be a desk, or messages at its links' rates are more than this machine has memory
            for.
        zbench.runtime.processes.fleet.RankFailed: the desk cannot be made, or a rank failed.
    """
    wiring = Wiring.of(cluster)
    check_link_memory(cluster, SECONDS)
    subject = Subject(model, cluster.num_nodes, cluster.gpus_per_node, cluster.nics_per_node, 1, "auto")
    with LocalFleet(cluster.num_ranks, TARGET, subject, wiring=wiring) as fleet:
        gauge, found = Gauge(fleet, SECONDS, tell), {}
        with gauge.watched("links"):
            if cluster.num_nodes > 1:
                found["nic"] = _link(fleet, True, subject.ranks_per_nic, cluster.nic_bandwidth)
            if cluster.gpus_per_node > 1:
                found["nvlink"] = _link(fleet, False, 1, cluster.nvlink_bandwidth)
    return found, gauge.others["links"]


def check_link_memory(cluster: Cluster, seconds: float) -> None:
    """Refuses links too fast for this machine's memory: every rank sends and receives a large message at once, all of
    them in it. seconds: of a link, that messages take."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    links = {"nic": cluster.num_nics if cluster.num_nodes > 1 else 0}
    links["nvlink"] = cluster.num_ranks if cluster.gpus_per_node > 1 else 0
    for name, count in links.items():
        bandwidth = getattr(cluster, f"{name}_bandwidth")
        if (need := 2 * seconds * bandwidth * count) > memory:
            raise ValueError(
                f"cluster.{name}_bandwidth is {bandwidth:.3g} bytes/s; {seconds} s of it on {count} links take "
                f"{need / 2**30:.3g} GiB, and this machine has {memory / 2**30:.3g}: choose a cluster made for a desk, "
                "as cluster=desk_2x4_a800 is (docs/desk.md)"
            )


def _link(fleet: Fleet, across: bool, ranks: int, bandwidth: float) -> LinkEfficiency:
    """Measures one kind of link. ranks: that share one."""

    def seconds(method: str, *arguments: Any) -> float:
        """Returns the seconds on the slowest rank that takes part: those that share a link may have uneven shares of
        it."""
        calls = (fleet.call(method, *arguments, ROUNDS) for _ in range(TIMES))
        return float(median(max(one for one in call if one is not None) for call in calls))

    size = int(SECONDS * bandwidth / ranks)
    seconds("together", across, size)  # connections and windows grow
    all_peers = size * ranks / seconds("together", across, size)
    one_peer = size / seconds("exchange", across, True, size)
    return LinkEfficiency(
        all_peers / bandwidth, one_peer / bandwidth, seconds("exchange", across, False, SMALL), bandwidth
    )
