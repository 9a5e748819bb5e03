"""The subject of a calibration: its ranks and shapes, and what ranks say of themselves and their machines. Imports no
torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zbench.describe.checks import check_whole_number
from zbench.describe.model import Model
from zbench.plans.area import HALF, STRIP, TILE, Work

ELEMENT_BYTES = {2: "bfloat16", 4: "float32", 8: "float64"}


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a calibration: num_nodes x gpus_per_node ranks with nics_per_node NICs a node, shapes and element
    size of `model`.

    tokens: on a rank, of the largest matmuls and elementwise operations. kernel, device: of
    zbench.runtime.job.job.KERNELS and DEVICES. peak_flops: of the device, where its maker says it; None: measured.

    Raises:
        ValueError: a count is below 1, there are more NICs than GPUs, or elements of a size that nothing computes with.
    """

    model: Model
    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    tokens: int
    kernel: str
    device: str = "auto"
    peak_flops: float | None = None

    def __post_init__(self) -> None:
        for field, flag in (
            ("num_nodes", "--nodes"),
            ("gpus_per_node", "--gpus-per-node"),
            ("nics_per_node", "--nics-per-node"),
            ("tokens", "--tokens"),
        ):
            check_whole_number(flag, getattr(self, field), 1)
        if self.nics_per_node > self.gpus_per_node:
            raise ValueError(
                f"--nics-per-node is {self.nics_per_node}; at most one per GPU, --gpus-per-node={self.gpus_per_node}"
            )
        if self.model.element_bytes not in ELEMENT_BYTES:
            raise ValueError(
                f"model.element_bytes is {self.model.element_bytes}; "
                f"measuring takes {', '.join(f'{size} ({name})' for size, name in ELEMENT_BYTES.items())}"
            )

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.num_nodes * self.gpus_per_node

    @property
    def ranks_per_nic(self) -> int:
        """The number of ranks that share a NIC, of the one that serves most."""
        return -(-self.gpus_per_node // self.nics_per_node)

    def partners(self, rank: int, across: bool) -> list[tuple[int, int]]:
        """Returns (rank to send to, rank to receive from), one of each distance: across nodes those of the same place
        in their node, else those of the same node."""
        gpus, nodes = self.gpus_per_node, self.num_nodes
        node, place = divmod(rank, gpus)
        if across:
            return [((node + d) % nodes * gpus + place, (node - d) % nodes * gpus + place) for d in range(1, nodes)]
        return [(node * gpus + (place + d) % gpus, node * gpus + (place - d) % gpus) for d in range(1, gpus)]

    def peers(self, rank: int, across: bool) -> list[tuple[int, int]]:
        """Returns (rank to send to, rank to receive from) of all that are on other nodes, or else on the same one."""
        if not across:
            return self.partners(rank, False)
        gpus, nodes = self.gpus_per_node, self.num_nodes
        node, place = divmod(rank, gpus)
        return [
            ((node + d) % nodes * gpus + (place + p) % gpus, (node - d) % nodes * gpus + (place - p) % gpus)
            for d in range(1, nodes)
            for p in range(gpus)
        ]

    def proxies(self, node: int) -> list[int]:
        """Returns the first rank that is tied to each NIC of a node."""
        gpus, nics = self.gpus_per_node, self.nics_per_node
        return [node * gpus + -(-nic * gpus // nics) for nic in range(nics)]


def layer_shapes(model: Model, tokens: int) -> list[tuple[int, int, int]]:
    """Returns (rows, inputs, outputs) of the matmuls of a layer's linear modules for so many tokens, experts one by
    one."""
    m = model
    heads, kv_heads = m.head_dim * m.num_heads, m.head_dim * m.num_kv_heads
    rows = max(1, tokens * m.experts_per_token // m.num_experts)
    expert = [(rows, m.hidden, 2 * m.ffn_hidden), (rows, m.ffn_hidden, m.hidden)]
    widths = [m.hidden, *([m.router_dim] if m.router_dim else []), m.num_experts]  # of a router's matmuls, in a row
    router = [(tokens, *pair) for pair in pairwise(widths)] if m.num_experts > 1 else []
    shared = [(tokens, m.hidden, 2 * m.common_ffn), (tokens, m.common_ffn, m.hidden)] if m.shared_experts else []
    attention = [(tokens, m.hidden, heads + 2 * kv_heads), (tokens, heads, m.hidden)]
    return [*attention, *router, *shared, *expert * m.num_experts]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """An attention call: as many segments of `queries` against `keys`; causal: the last keys are the queries' own."""

    queries: int
    keys: int
    causal: bool
    segments: int = 1

    @staticmethod
    def whole(length: int, segments: int = 1) -> "AttentionCall":
        """Returns a causal call of whole sequences of one length."""
        return AttentionCall(length, length, True, segments)

    @property
    def work(self) -> Work:
        """The work of the call for one head. A causal call is of whole sequences."""
        m, n, num, ones = self.queries, self.keys, self.segments, np.ones(1, np.int64)
        assert m == n or not self.causal
        rows, columns = -(-m // TILE), -(-n // TILE)
        area, tiles = (m * (m + 1) // 2, rows * (rows + 1) // 2) if self.causal else (m * n, rows * columns)
        empty = rows * TILE - m
        spare = columns * (empty // STRIP), columns * (empty // HALF)
        amounts = (area, tiles, m, n, 1, columns, rows, int(self.causal), *spare)
        work = Work(*(num * amount * ones for amount in amounts))
        return replace(work, longest=columns * ones)


@dataclass(frozen=True, slots=True)
class RankResources:
    """Facts that one rank tells of itself and its machine. cores: that its process may use. threads: of torch.
    memory_bytes: its share of the machine's.
    driver: of its GPU and CUDA's version; "" on a CPU. multiprocessors: its GPU's; 0 on a CPU."""

    host: str
    device: str
    cores: int
    threads: int
    memory_bytes: int
    torch: str
    backend: str
    kernel: str
    driver: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True, slots=True)
class Used:
    """A rank's knowledge of the processors of its machine at a moment: seconds, since some moment.

    busy: of all its cores together. own: of the rank's process. now: of a clock on the wall.
    """

    host: str
    cores: int
    now: float
    busy: float
    own: float


def others(before: Sequence[Used], after: Sequence[Used]) -> float:
    """Returns the share of all cores of all machines that was used by other processes than the ranks."""
    used = offered = 0.0
    for host in {one.host for one in before}:
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if b.host == host]
        b, a = pairs[0]
        used += max(0.0, a.busy - b.busy - sum(a.own - b.own for b, a in pairs))
        offered += b.cores * (a.now - b.now)
    return min(1.0, used / offered)
