"""A described cluster: nodes, GPUs (zbench.describe.device), NICs and their constants.

Constants come from `conf/cluster`, each with its source beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Ints
from zbench.describe.checks import check_name, check_whole_number
from zbench.describe.device import Device
from zbench.describe.links import (
    FIRST_DOMAIN,
    NIC,
    NVLINK,
    Domain,
    Lanes,
    Link,
    check_channels,
    check_share,
    checked_quantity,
    domains_of,
)

# One peer of a NIC of 400 Gbit/s gets half of what all peers get together: 20.3 of 40 GB/s in ring steps of 33.5 and
# 67 MB on 16 H100 (zbench.anchors, attention), 24.2 in NCCL's issues 464 and 1272; of 200 Gbit/s one peer gets all.
NARROW_NIC = 25e9
# What each quantity is, by field; whoever reads a person's text asks here which numbers need a unit.
CLUSTER_KINDS = {
    **dict.fromkeys(("nic_bandwidth", "nvlink_bandwidth"), "bytes/s"),
    **dict.fromkeys(("nic_latency", "nvlink_latency"), "seconds"),
    "host_bandwidth": "bytes/s",
    "host_latency": "seconds",
    "host_memory": "bytes",
    "host_adam_bandwidth": "bytes/s",
}
MOST_RANKS = 2**20  # above any training cluster there is (some 200,000 GPUs)
PLAN, LONGEST_WAITING, SHARED = PORT_ORDERS = "plan", "longest_waiting", "shared"
HOST_LINK = ("host_bandwidth", "host_efficiency", "host_latency")
Ranks = NDArray[np.signedinteger[Any]]


def check_port_order(key: str, value: object) -> None:
    """Raises ValueError where a value is no order in which ports serve."""
    if value not in PORT_ORDERS:
        raise ValueError(f"{key} is {value!r}; it takes {PLAN}, {LONGEST_WAITING} or {SHARED}")


def usual_channels(nic_bandwidth: float) -> int:
    """Returns the number of channels that nic_channels: auto comes to; above 400 Gbit/s, where nothing was measured, it
    is extrapolated."""
    return 1 if nic_bandwidth <= NARROW_NIC else 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """A described cluster of num_nodes x gpus_per_node ranks; rank r is GPU r % gpus_per_node of node r //
    gpus_per_node.

    nvlink_bandwidth: bytes/s of one GPU's port to its node's switch, each direction; NVLink or what a node has for it.
    nic_bandwidth: bytes/s of one NIC, each direction; GPUs are tied to NICs in order, evenly.
    *_efficiency: share of it that large messages reach. *_latency: seconds of a message of no bytes.
    *_channels: a link's channels of an equal share of its bandwidth each, of which a message takes one, so that one
        peer alone reaches bandwidth / channels; collectives take all. nic_channels takes "auto", too: as NCCL has it,
        1 up to NARROW_NIC bytes/s and 2 above (usual_channels; beyond 400 Gbit/s that is extrapolated).
    domains: narrower than a node, with links of their own (zbench.describe.links), nearest first; a yaml has them by
    name. host_bandwidth and others of HOST_LINK, host_queues: a GPU's link to its node's memory, each direction, of as
        many copies at once as it has queues; all or none. host_memory: bytes of a node; host_adam_bandwidth: bytes/s,
        read plus written, with which its CPUs update parameters by Adam; None where they are not known.
    port_order: of messages that wait for one port, the first is "plan", what stands first in the plan, or
        "longest_waiting", what has waited longest; "shared": they take turns, piece by piece
        (zbench.simulator.clock).
    links: every class of links, by its number (zbench.describe.links).
    """

    name: str
    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    nic_bandwidth: float
    nic_efficiency: float
    nic_latency: float
    nvlink_bandwidth: float
    nvlink_efficiency: float
    nvlink_latency: float
    device: Device
    nic_channels: int = 1
    nvlink_channels: int = 1
    domains: tuple[Domain, ...] = ()
    host_bandwidth: float | None = None
    host_efficiency: float | None = None
    host_latency: float | None = None
    host_queues: int = 1
    host_memory: float | None = None
    host_adam_bandwidth: float | None = None
    port_order: str = PLAN
    links: tuple[Link, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("cluster.name", self.name)
        for name in ("num_nodes", "gpus_per_node", "nics_per_node"):
            check_whole_number(f"cluster.{name}", getattr(self, name), 1)
        if not isinstance(self.device, Device):
            raise ValueError(f"cluster.device is {self.device!r}; it takes a device, as in cluster/device=h100_80g")
        if self.nics_per_node > self.gpus_per_node:
            raise ValueError(
                f"cluster.nics_per_node is {self.nics_per_node}; "
                f"at most one per GPU, gpus_per_node={self.gpus_per_node}"
            )
        for name, kind in CLUSTER_KINDS.items():
            if getattr(self, name) is not None or not name.startswith("host"):
                object.__setattr__(self, name, checked_quantity(f"cluster.{name}", getattr(self, name), kind))
        given: object = self.nic_channels
        if given == "auto":
            object.__setattr__(self, "nic_channels", usual_channels(self.nic_bandwidth))
        check_channels("cluster.nic_channels", self.nic_channels, ", or auto")
        check_channels("cluster.nvlink_channels", self.nvlink_channels)
        check_share("cluster.nic_efficiency", self.nic_efficiency)
        check_share("cluster.nvlink_efficiency", self.nvlink_efficiency)
        check_port_order("cluster.port_order", self.port_order)
        object.__setattr__(self, "domains", domains_of(self.domains, self.gpus_per_node))
        object.__setattr__(self, "links", tuple(self._links()))

    def _links(self) -> Iterator[Link]:
        yield Link("node", self.nvlink_bandwidth * self.nvlink_efficiency, self.nvlink_latency, self.nvlink_channels)
        yield Link("NIC", self.nic_bandwidth * self.nic_efficiency, self.nic_latency, self.nic_channels)
        yield from (domain.link for domain in self.domains)
        rate, share, latency = self.host_bandwidth, self.host_efficiency, self.host_latency
        if rate is not None and share is not None and latency is not None:
            check_share("cluster.host_efficiency", share)
            check_channels("cluster.host_queues", self.host_queues)
            yield Link("host", rate * share, latency, self.host_queues)
        elif self.host_queues != 1 or any(given is not None for given in (rate, share, latency)):
            name = next(name for name in HOST_LINK if getattr(self, name) is None)
            raise ValueError(f"cluster.{name} is not given; a link to the host has {', '.join(HOST_LINK)}")

    @property
    def host(self) -> int | None:
        """The number of the host link's class; None where it is not described."""
        return None if self.host_bandwidth is None else len(self.links) - 1

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """The levels of links, (class of links, ranks that it connects), of every domain, nearest first, and of the
        node."""
        inner = [(FIRST_DOMAIN + place, domain.gpus) for place, domain in enumerate(self.domains)]
        return tuple((link, min(gpus, self.gpus_per_node)) for link, gpus in (*inner, (NVLINK, self.gpus_per_node)))

    def link_of(self, src: Ranks, dst: Ranks) -> Ints:
        """Returns int64: the class of links that a message from rank `src` to rank `dst` takes, element by element."""
        found = np.full(np.broadcast(src, dst).shape, NIC, np.int64)
        for link, gpus in reversed(self.levels):
            found[src // gpus == dst // gpus] = link
        return found

    def link_among(self, num_ranks: Ranks) -> Ints:
        """Returns int64 [n]: the class of links that so many ranks in a row need to reach each other, the farthest
        ones."""
        found = np.full(len(num_ranks), NIC, np.int64)
        for link, gpus in reversed(self.levels):
            found[num_ranks <= gpus] = link
        return found

    def part(self, num_nodes: int, gpus_per_node: int, nics_per_node: int) -> "Cluster":
        """Returns a cluster of fewer nodes with fewer GPUs and NICs each; without domains that such a node cannot be
        divided into."""
        fitting = tuple(one for one in self.domains if one.gpus >= gpus_per_node or gpus_per_node % one.gpus == 0)
        return replace(
            self, num_nodes=num_nodes, gpus_per_node=gpus_per_node, nics_per_node=nics_per_node, domains=fitting
        )

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.num_nodes * self.gpus_per_node

    @property
    def num_nics(self) -> int:
        """The number of NICs of all nodes."""
        return self.num_nodes * self.nics_per_node

    @property
    def lanes(self) -> Lanes:
        """The NICs of its nodes as lanes that a transfer may be spread over."""
        return Lanes(self.gpus_per_node, self.nics_per_node)

    @property
    def node_of(self) -> Ints:
        """The node of every rank, int64 [num_ranks]."""
        return np.arange(self.num_ranks, dtype=np.int64) // self.gpus_per_node

    @property
    def nic_of(self) -> Ints:
        """The NIC (counted over the whole cluster) that every rank is tied to, int64 [num_ranks]."""
        local = np.arange(self.num_ranks, dtype=np.int64) % self.gpus_per_node
        return self.node_of * self.nics_per_node + local * self.nics_per_node // self.gpus_per_node
