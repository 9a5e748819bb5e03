"""Seconds of a layer as a planner sees them: by token, by attention, by what sharing a sequence adds. Pure: no torch.

All are of one layer, forward and backward together, so that attention and linear modules can be added up.
"""

from dataclasses import dataclass

import numpy as np

from zbench.area import TILE
from zbench.cost import Cost, Floats
from zbench.model import KV, O, Q
from zbench.plan import Ints


@dataclass(frozen=True, slots=True)
class Rates:
    """A token's linear modules and a layer's share of its head: token. The attention of the first n tokens of a
    sequence: square n^2 + row n; forward: the share of the forward in it; call: the start of a call's kernels.

    Of a token of a sequence whose heads a node shares, repack: the strided copies; exchange: its q, kv and o, and their
    gradients, through one NVLink port, if all heads leave. across: its kv through all NICs of a node, once.
    """

    token: float
    square: float
    row: float
    repack: float
    exchange: float
    across: float
    forward: float
    call: float

    @staticmethod
    def of(cost: Cost) -> "Rates":
        model = cost.model
        passes = 4 if model.recompute == "full" else 3
        many = np.array([1 << 20, 1 << 21])
        linear, head = np.diff(cost.linear_seconds(many)) / many[0], np.diff(cost.head_seconds(many)) / many[0]
        near, far = 64 * TILE, 128 * TILE
        one, two = attention_seconds(np.array([near, far]), cost)
        square = (two - 2 * one) / (far**2 - 2 * near**2)
        q, kv, o = (model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV, O))
        times = passes - 1
        inside = cost.transfer_seconds(np.array([times * (q + kv + o)]), np.array([False]))
        repack = cost.repack_seconds(np.array([times * (2 * q + kv)]))
        return Rates(
            passes * float(linear[0]) + float(head[0]) / model.num_layers,
            float(square),
            float((one - square * near**2) / near),
            float(repack[0]),
            float(inside[0]),
            float(cost.transfer_seconds(np.array([kv]), np.array([True]))[0]) / cost.cluster.nics_per_node,
            float(cost.whole_seconds(np.array([far]), False)[0] / two) * (passes - 2),
            9 * cost.cluster.device.kernel_seconds,
        )

    def prefix(self, tokens: float) -> float:
        """Attention of the first `tokens` tokens of a sequence."""
        return self.square * tokens * tokens + self.row * tokens


def attention_seconds(lengths: Ints, cost: Cost) -> Floats:
    """Attention of whole sequences [n], all heads."""
    forward, backward = cost.whole_seconds(lengths, False), cost.whole_seconds(lengths, True)
    return forward * (2 if cost.model.recompute == "full" else 1) + backward
