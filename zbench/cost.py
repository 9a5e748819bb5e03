"""How long operations take and how many bytes they move, on a described cluster. Pure: no torch.

The only module that turns work into seconds; the mechanics of waiting are zbench.clock's. One
formula an operation kind, each term a cause:

- attend: tiles at the kernel's streaming rate, or the longest row of tiles on one multiprocessor
  if that is longer; q, kv and o through memory; kernel launches; merging partial outputs.
- transfer: bytes over what a link reaches with large messages, and a latency.
- linear modules: matmuls at the rate large ones reach, and elementwise work through memory.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.area import TILE, Work
from zbench.cluster import Cluster
from zbench.model import Model
from zbench.plan import ATTEND, Ints, Ops, Plan

Floats = NDArray[np.float64]

# FLOPs of a visible pair, per head and head dimension: q.k and p.v, two matmuls, 2 FLOPs a multiply-add.
FORWARD_FLOPS = 4
# Flash attention's backward does five matmuls for the forward's two: it computes q.k again.
BACKWARD_FLOPS = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost model of `model` on `cluster`; all methods take and give arrays."""

    cluster: Cluster
    model: Model

    # -- bytes ------------------------------------------------------------------------------------
    def message_bytes(self, plan: Plan, ops: Ops) -> Ints:
        """int64 [num_ops]: bytes of every transfer, 0 for attends."""
        heads = self.model.num_heads + 1
        key = ((ops.tensor + 1) * heads + ops.head_lo) * heads + ops.head_hi
        kinds, inverse = np.unique(key, return_inverse=True)
        per_token = np.zeros(len(kinds), np.int64)
        for index, kind in enumerate(kinds.tolist()):
            tensor, lo, hi = kind // heads**2 - 1, kind // heads % heads, kind % heads
            if tensor >= 0:
                per_token[index] = self.model.message_bytes_per_token(tensor, lo, hi)
        return np.asarray(per_token[inverse] * plan.list_tokens[ops.blocks], np.int64)

    # -- seconds ----------------------------------------------------------------------------------
    def transfer_seconds(self, size: Floats | Ints, across: NDArray[np.bool_]) -> Floats:
        """Seconds a link is busy with messages of `size` bytes, across nodes (NIC) or inside one (NVLink)."""
        c = self.cluster
        return size / np.where(across, c.nic_bandwidth * c.nic_efficiency, c.nvlink_bandwidth * c.nvlink_efficiency)

    def latency_seconds(self, across: NDArray[np.bool_]) -> Floats:
        return np.where(across, self.cluster.nic_latency, self.cluster.nvlink_latency)

    def attend_seconds(self, work: Work, heads: Ints, merges: NDArray[np.bool_], backward: bool) -> Floats:
        """Seconds of attends. work: per attend, for one head; heads: query heads of each;
        merges: whether the output joins an earlier partial one of the same queries on the same rank."""
        device, model = self.cluster.device, self.model
        rate = device.attention_backward_flops if backward else device.attention_forward_flops
        tile = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * model.head_dim * TILE * TILE
        compute = np.maximum(work.tiles * heads * (tile / rate), work.longest * (tile * device.num_multiprocessors / rate))
        kv_heads = np.maximum(heads * model.num_kv_heads / model.num_heads, 1)
        row = model.head_dim * model.element_bytes
        # Forward: q in, o out, kv in. Backward: q, o, do in, dq out (and float32 sums in between), kv in, dkv out.
        traffic = (work.queries * heads * (8 if backward else 2) + work.keys * kv_heads * (8 if backward else 2)) * row
        merged = np.where(merges & (not backward), work.queries * heads * 3 * 2 * row, 0)
        kernels = device.kernel_seconds * (4 if backward else 1) + merges * device.kernel_seconds
        return compute + (traffic + merged) / device.copy_bandwidth + kernels

    def linear_seconds(self, tokens: Ints | Floats) -> Floats:
        """Forward seconds of one layer's linear modules, norms and activations for `tokens` on a rank."""
        device, model = self.cluster.device, self.model
        matmul = 2 * model.layer_matmul_params * np.asarray(tokens) / device.matmul_flops
        elementwise = model.elementwise_bytes * np.asarray(tokens) / device.copy_bandwidth
        return matmul + elementwise + np.where(np.asarray(tokens) > 0, device.layer_seconds, 0.0)

    def head_seconds(self, tokens: Ints | Floats) -> Floats:
        """Forward seconds of the output projection and the loss."""
        return 2 * self.model.head_params * np.asarray(tokens) / self.cluster.device.matmul_flops

    def op_seconds(self, plan: Plan, ops: Ops, attend: Ints, work: Work, backward: bool) -> Floats:
        """float64 [num_ops]: seconds of every attend, 0 for transfers."""
        seconds = np.zeros(len(ops))
        heads = (ops.head_hi - ops.head_lo)[attend]
        output = (ops.blocks[attend] * plan.num_ranks + ops.src[attend]) * (plan.num_heads + 1) + ops.head_lo[attend]
        merges = np.ones(len(attend), bool)
        merges[np.unique(output, return_index=True)[1]] = False
        seconds[attend] = self.attend_seconds(work, heads, merges, backward)
        assert (ops.kind[attend] == ATTEND).all()
        return seconds
