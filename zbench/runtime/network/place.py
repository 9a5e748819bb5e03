"""A rank's place on a desk cluster: its namespace, and the counters of its node's NICs."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from zbench.runtime.network.namespaces import Network, enter, interface_bytes
from zbench.runtime.network.wiring import SWITCH

INTERFACE = "nic"  # of a rank's namespace; gloo binds its address


@dataclass(frozen=True, slots=True)
class Place:
    """A place on a desk cluster: descriptors of the namespaces of the rank, of its node and of the switch; the node's
    NICs' interfaces by name."""

    rank: int
    node: int
    switch: int
    uplinks: tuple[str, ...]

    @staticmethod
    def of(network: Network, rank: int) -> "Place":
        """Returns the place of a rank on a network."""
        wiring = network.wiring
        node = rank // (wiring.num_ranks // wiring.num_nodes)
        uplinks = tuple(f"up{nic}" for nic in range(wiring.nics_per_node))
        descriptors = network.descriptors
        return Place(descriptors[wiring.rank(rank)], descriptors[wiring.node(node)], descriptors[SWITCH], uplinks)

    def enter(self) -> None:
        """Moves the rank there; before it starts threads."""
        enter(self.rank)
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE

    def counters(self) -> "NodeCounters":
        """Returns the counters of the node's NICs."""
        return NodeCounters(self.node, self.uplinks)


class NodeCounters:
    """The counters of a node's NICs: the kernel's counters of their uplinks, read from inside the node."""

    def __init__(self, node: int, uplinks: tuple[str, ...]) -> None:
        self._uplinks = uplinks
        self._inside = ThreadPoolExecutor(1, "zbench-counters", enter, (node,))  # only that thread is in the node

    def read(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of every NIC since it came up, (sent, received) by name."""
        listed = self._inside.submit(Path("/proc/thread-self/net/dev").read_text).result()
        every = interface_bytes(listed)
        return {name: every[name] for name in self._uplinks}
