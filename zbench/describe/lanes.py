"""The NICs of a node as lanes that a transfer between nodes may be spread over: which GPUs its shares pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.describe.cluster import Cluster


@dataclass(frozen=True)
class Lanes:
    """The lanes of a cluster's nodes, one a NIC: GPUs and NICs of each node, GPU l of a node tied to its NIC
    l * nics // gpus, as zbench.describe.cluster.Cluster.nic_of has it."""

    gpus: int
    nics: int

    @staticmethod
    def of(cluster: Cluster) -> "Lanes":
        """Returns the lanes of a cluster."""
        return Lanes(cluster.gpus_per_node, cluster.nics_per_node)

    def ways(self, src: int, dst: int, lanes: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the GPUs that each share of a transfer passes, from src to dst, a lane each; one way without GPUs
        between them where both are on one node."""
        if src // self.gpus == dst // self.gpus:
            return [(src, dst)]
        ways = ((src, self.carrier(src, lane), self.carrier(dst, lane), dst) for lane in lanes)
        return [tuple(dict.fromkeys(way)) for way in ways]

    def carrier(self, gpu: int, lane: int) -> int:
        """Returns the GPU that carries a lane for another one of its node: itself if it is tied to that NIC, else the
        one tied to it that has the other's place among its own NIC's GPUs, so that they share the work."""
        begin, local = gpu - gpu % self.gpus, gpu % self.gpus
        if local * self.nics // self.gpus == lane:
            return gpu
        first = begin + -(-lane * self.gpus // self.nics)
        return first + local % (self.gpus // self.nics)


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """Returns where a share of so many bytes begins and ends, of `parts` that are as even as they can be."""
    return size * part // parts, size * (part + 1) // parts
