"""A described cluster: nodes, GPUs, NICs and their constants. Pure: no torch.

Constants come from `conf/cluster` and `conf/cluster/device`, each with its source beside it.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from zbench.units import parse


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. Rates in FLOP/s and bytes/s, times in seconds; strings with units are accepted.

    peak_flops: dense bf16 matmul peak, the denominator of MFU.
    memory_bytes: what the program can use. copy_bandwidth: bytes/s, read plus written, of elementwise kernels.
    strided_rate: bytes/s at which a kernel moves 2-byte elements one a thread (transposes, indexed writes).
    matmul_flops: rate that the large matmuls of a layer reach.
    attention_forward_flops, attention_backward_flops: rate of whole tiles in a long flash-attention call.
    kernel_seconds: start-up and tail of one kernel. call_seconds: least time of one attention call (host work).
    tile: rows and columns that attention kernels work on at a time: 128 as GPU kernels do, or 1, only what is visible.
    """

    name: str
    peak_flops: float
    memory_bytes: float
    copy_bandwidth: float
    strided_rate: float
    matmul_flops: float
    attention_forward_flops: float
    attention_backward_flops: float
    kernel_seconds: float
    call_seconds: float
    tile: int = 128

    def __post_init__(self) -> None:
        kinds = {
            "memory_bytes": "bytes", "copy_bandwidth": "bytes/s", "strided_rate": "bytes/s",
            "kernel_seconds": "seconds", "call_seconds": "seconds",
        }  # fmt: skip
        if self.tile not in (1, 128):
            raise ValueError(f"cluster.device.tile is {self.tile!r}; it takes 128 or 1")
        for field in fields(self):
            if field.name not in ("name", "tile"):
                value = parse(
                    f"cluster.device.{field.name}", getattr(self, field.name), kinds.get(field.name, "FLOP/s")
                )
                if not 0 < value < float("inf"):
                    raise ValueError(
                        f"cluster.device.{field.name} is {getattr(self, field.name)!r}; it has to be above 0"
                    )
                object.__setattr__(self, field.name, value)


@dataclass(frozen=True, slots=True)
class Cluster:
    """num_nodes x gpus_per_node ranks; rank r is GPU r % gpus_per_node of node r // gpus_per_node.

    nvlink_bandwidth: bytes/s of one GPU's port to its node's switch, each direction.
    nic_bandwidth: bytes/s of one NIC, each direction; GPUs are tied to NICs in order, evenly.
    *_efficiency: share of it that large messages reach. *_latency: seconds of a message of no bytes.
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

    def __post_init__(self) -> None:
        for field in ("num_nodes", "gpus_per_node", "nics_per_node"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"cluster.{field} is {value!r}; it takes a whole number of at least 1")
        if self.nics_per_node > self.gpus_per_node:
            raise ValueError(
                f"cluster.nics_per_node is {self.nics_per_node}; "
                f"at most one per GPU, gpus_per_node={self.gpus_per_node}"
            )
        for field, kind in (
            ("nic_bandwidth", "bytes/s"),
            ("nvlink_bandwidth", "bytes/s"),
            ("nic_latency", "seconds"),
            ("nvlink_latency", "seconds"),
        ):
            value = parse(f"cluster.{field}", getattr(self, field), kind)
            if not 0 <= value < float("inf") or (kind == "bytes/s" and value == 0):
                least = "above 0 and finite" if kind == "bytes/s" else "at least 0 and finite"
                raise ValueError(f"cluster.{field} is {getattr(self, field)!r}; it has to be {least}")
            object.__setattr__(self, field, value)
        for field in ("nic_efficiency", "nvlink_efficiency"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise ValueError(f"cluster.{field} is {value!r}; it takes a share above 0 and at most 1")

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def num_nics(self) -> int:
        return self.num_nodes * self.nics_per_node

    @property
    def node_of(self) -> NDArray[np.int64]:
        """int64 [num_ranks]: the node of every rank."""
        return np.arange(self.num_ranks, dtype=np.int64) // self.gpus_per_node

    @property
    def nic_of(self) -> NDArray[np.int64]:
        """int64 [num_ranks]: the NIC (counted over the whole cluster) every rank is tied to."""
        local = np.arange(self.num_ranks, dtype=np.int64) % self.gpus_per_node
        return self.node_of * self.nics_per_node + local * self.nics_per_node // self.gpus_per_node
