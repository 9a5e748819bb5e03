"""A job shrunk to a desk cluster so that what competes for time keeps its proportions, as in a wind tunnel. Pure.

Per token and layer there are attention over L tokens (seconds ~ L h / F), linear modules (~ h h / F), and keys and
values on a link (~ h e / B), with hidden size h, device rate F, element bytes e, bandwidth B. Lengths and hidden size
shrink by the same factor s, which keeps attention : linear; every bandwidth B becomes B (e'/e) (F'/F) s, which keeps
links, and memory, in proportion to both. One rank's linear seconds grow by (T'/T) (1/s)^2 (F/F'), with T tokens a
GPU: latencies and what a kernel's start costs grow as much. docs/desk.md derives it, and says what is not kept.
"""

import math
from dataclasses import dataclass, replace

from zbench.describe.checks import check_whole_number
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model

EFFICIENCY = 0.987  # of a limited link's rate that payload gets: python -m zbench.desk measure (docs/desk.md)
MEMORY_BYTES = 2e9  # of a rank: its share of a small machine; it is not scaled


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale by which a job is shrunk to a desk cluster. shrink: s, by which lengths and hidden size shrink. flops:
    F', matmul FLOP/s of a rank. num_nodes, gpus_per_node, nics_per_node: of the desk. tokens_per_gpu: of the job that
    is shrunk."""

    shrink: int
    flops: float
    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    tokens_per_gpu: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.flops < math.inf:
            raise ValueError(f"--flops is {self.flops:g}; it has to be above 0 and finite")
        check_whole_number("tokens_per_gpu", self.tokens_per_gpu, 1)

    def tokens(self, cluster: Cluster) -> int:
        """Returns how many tokens a rank of the desk has: those of the whole batch shrink with lengths."""
        return self.tokens_per_gpu * cluster.num_ranks // (self.shrink * self.num_nodes * self.gpus_per_node)

    def cluster(self, cluster: Cluster, model: Model, desk: Model) -> Cluster:
        """Returns the desk cluster that is to `desk` what `cluster` is to `model`.

        Raises:
            ValueError: a desk has no links like the cluster's.
        """
        if cluster.domains:
            name = cluster.domains[0].name
            raise ValueError(f"cluster.domains has {name}; a desk cluster has links of nodes and NICs, and no others")
        device = cluster.device
        slower = self.flops / device.matmul_flops
        links = desk.element_bytes / model.element_bytes * slower * self.shrink
        seconds = self.tokens(cluster) / self.tokens_per_gpu / self.shrink**2 / slower
        return Cluster(
            name=f"desk_{self.num_nodes}x{self.gpus_per_node}",
            num_nodes=self.num_nodes,
            gpus_per_node=self.gpus_per_node,
            nics_per_node=self.nics_per_node,
            nic_bandwidth=cluster.nic_bandwidth * cluster.nic_efficiency * links / EFFICIENCY,
            nic_efficiency=EFFICIENCY,
            nic_latency=cluster.nic_latency * seconds,
            nvlink_bandwidth=cluster.nvlink_bandwidth * cluster.nvlink_efficiency * links / EFFICIENCY,
            nvlink_efficiency=EFFICIENCY,
            nvlink_latency=cluster.nvlink_latency * seconds,
            device=self._device(device, slower, links, seconds),
            nic_channels=cluster.nic_channels,
            nvlink_channels=cluster.nvlink_channels,
        )

    def _device(self, device: Device, slower: float, links: float, seconds: float) -> Device:
        return replace(
            device.without_curves(),  # they are of whole tiles, which do not shrink
            name=f"1/{self.shrink} {device.name}",
            peak_flops=device.peak_flops * slower,
            matmul_flops=device.matmul_flops * slower,
            attention_forward_flops=device.attention_forward_flops * slower,
            attention_backward_flops=device.attention_backward_flops * slower,
            copy_bandwidth=device.copy_bandwidth * links,
            strided_rate=device.strided_rate * links,
            kernel_seconds=device.kernel_seconds * seconds,
            call_seconds=device.call_seconds * seconds,
            memory_bytes=MEMORY_BYTES,
            tile=1 if self.shrink > 1 else device.tile,  # 128 rows shrink to a few
            matmul_shapes=False,  # those of a desk model fill no wave of a GPU
            empty_block_seconds=0.0 if self.shrink > 1 else device.empty_block_seconds * seconds,
        )
