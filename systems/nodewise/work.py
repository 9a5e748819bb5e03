"""Seconds of a layer as a planner sees them: by token, by attention, by what sharing a sequence adds. Pure: no torch.

All are of one layer, forward and backward together unless a column of `Pace.ways` (nodewise_pace) says which.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.model import KV, O, Q
from zbench.plans.area import TILE
from zbench.plans.plan import Ints
from zbench.systems.nodewise.pace import Pace


@dataclass(frozen=True, slots=True)
class Rates:
    """A token's linear modules and a layer's share of its head: token. The attention of the first n tokens of a
    sequence: square n^2 + row n; forward: the share of the forward in it.

    Of a token of a sequence whose heads a node shares, repack: the strided copies. across: its kv through all NICs of
    a node, once; alone: times as much for what goes to one other node, as every GPU sends to the one in its place
    there, and what GPUs have of a NIC is one channel each. pace: what else a layer waits for.
    """

    token: float
    square: float
    row: float
    repack: float
    across: float
    alone: float
    forward: float
    pace: Pace
    taken: Floats

    @staticmethod
    def of(cost: Cost) -> "Rates":
        model = cost.model
        passes = 4 if model.recompute == "full" else 3
        many = np.array([1 << 20, 1 << 21])
        linear, head = np.diff(cost.linear_seconds(many)) / many[0], np.diff(cost.head_seconds(many)) / many[0]
        near, far = 64 * TILE, 128 * TILE
        one, two = attention_seconds(np.array([near, far]), cost)
        # Under a window attention is linear but for a sequence's begin; cuts need a square, however small.
        square = max((two - 2 * one) / (far**2 - 2 * near**2), 1e-4 * one / near**2)
        q, kv, o = (model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O))
        forward = float(cost.whole_seconds(np.array([far]), False)[0] / two) * (passes - 2)
        return Rates(
            passes * float(linear[0]) + float(head[0]) / model.num_layers,
            float(square),
            float((one - square * near**2) / near),
            float(cost.repack_seconds(np.array([(passes - 1) * (2 * q + kv)]))[0]),
            cost.nic_transfer_seconds(kv) / cost.cluster.nics_per_node,
            max(cost.cluster.nic_channels * cost.cluster.nics_per_node / cost.cluster.gpus_per_node, 1.0),
            forward,
            _pace(cost, passes, forward, (q, kv, o)),
            _taken(cost),
        )

    def prefix(self, tokens: float) -> float:
        """Attention of the first `tokens` tokens of a sequence."""
        return self.square * tokens * tokens + self.row * tokens


def _taken(cost: Cost) -> Floats:
    of = Collectives.of(cost)
    if not of.overlap:
        return np.zeros(2)
    back = of.reduce + (of.gather if of.every_micro_batch else 0.0)
    return np.array([of.gather if of.every_step else 0.0, back]) / of.num_layers


def _pace(cost: Cost, passes: int, forward: float, sizes: tuple[int, int, int]) -> Pace:
    """sizes: bytes of a token's q, kv and o. Of the messages inside a node that homes send evenly, a port carries one
    P-th, and of that one P-th stays: it goes to P - 1 peers. On NICs it goes to all GPUs of other nodes, at least P,
    which have all of a NIC."""
    cluster, device = cost.cluster, cost.cluster.device
    (q, kv, o), ranks = sizes, cluster.gpus_per_node
    out, home = np.array([q + kv, o]), np.array([o, q + kv])  # backward: do, then dq and dkv
    times = np.array([passes - 2, 1])  # recomputation is a forward more
    inside, nics, copies = (ranks - 1) / ranks**2 * times, times / cluster.nics_per_node, device.copy_bandwidth
    near, far = np.zeros(2, bool), np.ones(2, bool)
    columns = (
        np.array([passes - 2, 2]) / passes,
        np.array([forward, 1 - forward]),
        times * np.array([1, 8]) * device.kernel_seconds,
        times * 3 * device.kernel_seconds,
        cost.spread_seconds(out, near, ranks - 1) * inside,
        cost.spread_seconds(home, near, ranks - 1) * inside,
        cost.transfer_seconds(out, far) * nics,
        cost.transfer_seconds(home, far) * nics,
        times * 3 * o / copies,
        np.array([0, 3 * kv]) / copies,
    )
    return Pace(np.stack(columns, axis=1), device.call_seconds, cluster.nvlink_latency)


def attention_seconds(lengths: Ints, cost: Cost) -> Floats:
    """Attention of whole sequences [n], all heads."""
    forward, backward = cost.whole_seconds(lengths, False), cost.whole_seconds(lengths, True)
    return forward * (2 if cost.model.recompute == "full" else 1) + backward
