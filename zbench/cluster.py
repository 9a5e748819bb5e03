"""A described cluster: nodes, GPUs, NICs and their constants. Pure: no torch.

Constants come from `conf/cluster` and `conf/cluster/device`, each with its source beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from zbench.curve import Curve
from zbench.named import check_name
from zbench.units import parse

# One peer of a NIC of 400 Gbit/s gets half of what all peers get together: 20.3 of 40 GB/s in ring steps of 33.5 and
# 67 MB on 16 H100 (zbench.anchors, attention), 24.2 in NCCL's issues 464 and 1272; of 200 Gbit/s one peer gets all.
NARROW_NIC = 25e9
MOST_CHANNELS = 32  # NCCL's own limit
# What each quantity is, by field; whoever reads a person's text asks here which numbers need a unit.
CLUSTER_KINDS = {
    "nic_bandwidth": "bytes/s", "nvlink_bandwidth": "bytes/s", "nic_latency": "seconds", "nvlink_latency": "seconds",
}  # fmt: skip
DEVICE_KINDS = {
    "peak_flops": "FLOP/s", "memory_bytes": "bytes", "copy_bandwidth": "bytes/s", "strided_rate": "bytes/s",
    "matmul_flops": "FLOP/s", "attention_forward_flops": "FLOP/s", "attention_backward_flops": "FLOP/s",
    "kernel_seconds": "seconds", "call_seconds": "seconds", "empty_block_seconds": "seconds",
}  # fmt: skip
MAY_BE_ZERO = ("empty_block_seconds",)  # of a device's quantities
MOST_RANKS = 2**20  # above any training cluster there is (some 200,000 GPUs)
CURVES = ("attention_forward_causal", "attention_forward_full", "attention_backward_causal", "attention_backward_full")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. Numbers are FLOP/s, bytes/s, bytes and seconds; text carries its unit (zbench.units).

    peak_flops: dense bf16 matmul peak, the denominator of MFU.
    memory_bytes: what the program can use. copy_bandwidth: bytes/s, read plus written, of elementwise kernels.
    strided_rate: bytes/s at which a kernel moves 2-byte elements one a thread (transposes, indexed writes).
    matmul_flops: rate that the large matmuls of a layer reach.
    attention_forward_flops, attention_backward_flops: rate of whole tiles in a long flash-attention call.
    kernel_seconds: start-up and tail of one kernel. call_seconds: least time of one attention call (host work).
    tile: rows and columns that attention kernels work on at a time: 128 as GPU kernels do, or 1, only what is visible.
    packed_rows: the rows of forward tiles are all query heads of a kv head, so that a segment's last tile has no more
        rows than these. backward_rows: queries of a backward's tiles, 128 or 64.
    empty_block_seconds: of the whole GPU, for each block without work that a variable-length attention backward
        starts: for every sequence and head as many blocks of keys as the longest has. 0 where a kernel starts none.
    attention_*_causal, attention_*_full: the attention rates as measured curves, of segments that see each other
        causally and of rectangles, against the keys (in whole tiles) that a row of tiles sees on average; all four or
        none, and where they are, they are what counts and not the two rates above.
    matmul_by_tokens: by model name, matmul_flops as a curve over a rank's tokens; other models have matmul_flops.
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
    packed_rows: bool = False
    backward_rows: int = 128
    empty_block_seconds: float = 0.0
    attention_forward_causal: Curve | None = None
    attention_forward_full: Curve | None = None
    attention_backward_causal: Curve | None = None
    attention_backward_full: Curve | None = None
    matmul_by_tokens: Mapping[str, Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("cluster.device.name", self.name)
        if self.tile not in (1, 128):
            raise ValueError(f"cluster.device.tile is {self.tile!r}; it takes 128 or 1")
        if not isinstance(self.packed_rows, bool):
            raise ValueError(f"cluster.device.packed_rows is {self.packed_rows!r}; it takes true or false")
        if self.backward_rows not in (64, 128):
            raise ValueError(f"cluster.device.backward_rows is {self.backward_rows!r}; it takes 64 or 128")
        for name, kind in DEVICE_KINDS.items():
            value = parse(f"cluster.device.{name}", getattr(self, name), kind)
            if not 0 <= value < float("inf") or (value == 0 and name not in MAY_BE_ZERO):
                least = "at least 0" if name in MAY_BE_ZERO else "above 0"
                raise ValueError(f"cluster.device.{name} is {getattr(self, name)!r}; it has to be {least}")
            object.__setattr__(self, name, value)
        self._take_curves()

    def _take_curves(self) -> None:
        """Makes curves of what a yaml has."""
        for name in CURVES:
            given = getattr(self, name)
            if given is not None and not isinstance(given, Curve):
                object.__setattr__(self, name, Curve.of(f"cluster.device.{name}", given))
        missing = [name for name in CURVES if getattr(self, name) is None]
        if 0 < len(missing) < len(CURVES):
            raise ValueError(f"cluster.device.{missing[0]} is not given; the curves of attention are four, or none")
        if not missing and self.tile == 1:
            raise ValueError("cluster.device.tile is 1; curves of attention are of whole tiles, so it takes 128")
        if not isinstance(self.matmul_by_tokens, Mapping):
            raise ValueError(f"cluster.device.matmul_by_tokens is {self.matmul_by_tokens!r}; it takes curves by model")
        curves = {
            model: one if isinstance(one, Curve) else Curve.of(f"cluster.device.matmul_by_tokens.{model}", one)
            for model, one in self.matmul_by_tokens.items()
        }
        object.__setattr__(self, "matmul_by_tokens", curves)

    def attention(self, backward: bool) -> tuple[Curve, Curve] | None:
        """(of causal segments, of rectangles), where there are curves."""
        way = "backward" if backward else "forward"
        causal, full = (getattr(self, f"attention_{way}_{mask}") for mask in ("causal", "full"))
        return None if causal is None else (causal, full)

    def without_curves(self) -> "Device":
        return replace(
            self, attention_forward_causal=None, attention_forward_full=None, attention_backward_causal=None,
            attention_backward_full=None, matmul_by_tokens={},
        )  # fmt: skip

    def at_best(self) -> "Device":
        """Gives the device with attention at the highest rates of its curves, whatever the pieces.

        It is itself where it has no curves. Matmuls stay as they are: a rank with fewer tokens is never faster at each.
        """
        if self.attention(False) is None:
            return self
        forward, backward = (max(max(one.rates) for one in self.attention(back) or ()) for back in (False, True))
        plain = replace(self.without_curves(), matmul_by_tokens=self.matmul_by_tokens)
        return replace(plain, attention_forward_flops=forward, attention_backward_flops=backward)


@dataclass(frozen=True, slots=True)
class Cluster:
    """num_nodes x gpus_per_node ranks; rank r is GPU r % gpus_per_node of node r // gpus_per_node.

    nvlink_bandwidth: bytes/s of one GPU's port to its node's switch, each direction.
    nic_bandwidth: bytes/s of one NIC, each direction; GPUs are tied to NICs in order, evenly.
    *_efficiency: share of it that large messages reach. *_latency: seconds of a message of no bytes.
    *_channels: a link's channels of an equal share of its bandwidth each, of which a message takes one, so that one
        peer alone reaches bandwidth / channels; collectives take all. nic_channels takes "auto", too: as NCCL has it,
        1 up to NARROW_NIC bytes/s and 2 above.
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

    def __post_init__(self) -> None:
        check_name("cluster.name", self.name)
        for name in ("num_nodes", "gpus_per_node", "nics_per_node"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"cluster.{name} is {value!r}; it takes a whole number of at least 1")
        if not isinstance(self.device, Device):
            raise ValueError(f"cluster.device is {self.device!r}; it takes a device, as in cluster/device=h100_80g")
        if self.nics_per_node > self.gpus_per_node:
            raise ValueError(
                f"cluster.nics_per_node is {self.nics_per_node}; "
                f"at most one per GPU, gpus_per_node={self.gpus_per_node}"
            )
        for name, kind in CLUSTER_KINDS.items():
            value = parse(f"cluster.{name}", getattr(self, name), kind)
            if not 0 <= value < float("inf") or (kind == "bytes/s" and value == 0):
                least = "above 0 and finite" if kind == "bytes/s" else "at least 0 and finite"
                raise ValueError(f"cluster.{name} is {getattr(self, name)!r}; it has to be {least}")
            object.__setattr__(self, name, value)
        given: object = self.nic_channels
        if given == "auto":
            object.__setattr__(self, "nic_channels", 1 if self.nic_bandwidth <= NARROW_NIC else 2)
        for name, words in (("nic_channels", ", or auto"), ("nvlink_channels", "")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHANNELS:
                bounds = f"from 1 to {MOST_CHANNELS}{words}"
                raise ValueError(f"cluster.{name} is {value!r}; it takes a whole number {bounds}")
        for name in ("nic_efficiency", "nvlink_efficiency"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise ValueError(f"cluster.{name} is {value!r}; it takes a share above 0 and at most 1")

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
