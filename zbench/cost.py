"""How long operations take and how many bytes they move, on a described cluster. Pure: no torch.

The only module that turns work into seconds; who waits for whom is zbench.clock's. Each term is a
cause, and docs/cost.md derives it:

- attend: whole tiles at the kernel's rate; rows of q, kv, o through memory; kernel starts; and where
  they happen, joining partial outputs and bringing blocks into the order the kernel needs;
- transfer: bytes over what a link reaches with large messages, and a latency;
- linear modules: matmuls at the rate large ones reach, and elementwise work through memory.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.area import TILE, Work
from zbench.cluster import Cluster
from zbench.model import Model
from zbench.plan import Ints, Ops, Plan

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FORWARD_FLOPS = 4  # of a visible pair, per head and head dimension: q.k and p.v, a multiply and an add each
BACKWARD_FLOPS = 10  # five matmuls for the forward's two: flash attention computes q.k again
LAYER_KERNELS = 20  # kernels of a layer's linear part, forward: 7 matmuls and the elementwise between them (a count)
LOSS_BYTES = 30  # per token and vocabulary entry, forward and backward: logits, float32 softmax, gradient (a count)
OPTIMIZER_BYTES = 34  # per parameter of a rank's share: master weight and both moments read and written, gradient, bf16


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost model of `model` on `cluster`; methods take and give arrays over operations.

    staged: attention runs behind a wrapper that gathers tokens out of padded buffers and scatters
        results back, as in the benchmark that zbench.anchors compares with; no trainer's default.
    """

    cluster: Cluster
    model: Model
    staged: bool = False

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

    def transfer_seconds(self, size: Floats | Ints, across: Flags) -> Floats:
        """Seconds a link is busy with messages of `size` bytes, across nodes (NIC) or inside one (NVLink)."""
        c = self.cluster
        return size / np.where(across, c.nic_bandwidth * c.nic_efficiency, c.nvlink_bandwidth * c.nvlink_efficiency)

    def latency_seconds(self, across: Flags) -> Floats:
        return np.where(across, self.cluster.nic_latency, self.cluster.nvlink_latency)

    def attend_seconds(self, plan: Plan, ops: Ops, attend: Ints, work: Work, backward: bool) -> Floats:
        """float64 [num_attends]: seconds of the operations `attend`, whose work for one head is `work`."""
        heads = (ops.head_hi - ops.head_lo)[attend]
        kv_heads = self._kv_heads(ops.head_lo[attend], ops.head_hi[attend])
        seconds = self.kernel_seconds(work, heads, kv_heads, backward)
        joins = _joins(plan, ops, attend)
        seconds += np.where(joins, self.join_seconds(work, heads, kv_heads, backward), 0.0)
        seconds += self._arrange_seconds(plan, ops, attend, heads, kv_heads, joins, backward)
        return seconds + self._staging_seconds(work, heads, kv_heads, backward) if self.staged else seconds

    def kernel_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """One flash-attention call each.

        Memory traffic in bytes per row element of 2 bytes. Forward: q and o once, k and v once. Backward:
        o and do for the row sums, q and do, dq zeroed, summed in float32 and converted (18 a q row); k, v
        and dk, dv (8 a kv row) - with grouped queries dk and dv are added in float32 once a query head.
        """
        device, dim, e = self.cluster.device, self.model.head_dim, self.model.element_bytes / 2
        rate = device.attention_backward_flops if backward else device.attention_forward_flops
        flops = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * work.tiles * TILE * TILE * heads * dim
        grouped = heads > kv_heads
        if backward:
            kv_rows = np.where(grouped, 12 * heads + 20 * kv_heads, 8 * heads)
            traffic = (work.queries * heads * 18 + work.keys * kv_rows) * dim * e
        else:
            traffic = (work.queries * heads + work.keys * kv_heads) * 4 * dim * e
        seconds = flops / rate + traffic / device.copy_bandwidth + (8 if backward else 1) * device.kernel_seconds
        return np.maximum(seconds, device.call_seconds)

    def _kv_heads(self, lo: Ints, hi: Ints) -> Ints:
        group = self.model.num_heads // self.model.num_kv_heads
        return -(-hi // group) - lo // group

    def join_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Adding a partial result to an earlier one: read it, read and write the sum (o; or dq, dk and dv)."""
        row = self.model.head_dim * self.model.element_bytes
        size = 3 * work.queries * heads * row + (6 * work.keys * kv_heads * row if backward else 0)
        if self.staged and not backward:  # the log-sum-exp in float64, seven operations unfused
            size = size + 14 * 8 * work.queries * heads
        return size / self.cluster.device.copy_bandwidth + 3 * self.cluster.device.kernel_seconds

    def _arrange_seconds(
        self, plan: Plan, ops: Ops, attend: Ints, heads: Ints, kv_heads: Ints, joins: Flags, backward: bool
    ) -> Floats:
        """Bringing blocks into the order the kernel reads.

        Head ranges (all-to-all): one strided copy of q, o, k and v each. Several whole blocks (all-gather):
        k and v copied into one buffer, and dk and dv out of it.
        """
        device, row = self.cluster.device, self.model.head_dim * self.model.element_bytes
        q = plan.list_tokens[ops.blocks[attend]] * heads
        kv = 2 * plan.list_tokens[ops.kv_blocks[attend]] * kv_heads
        part = heads < self.model.num_heads
        strided = np.where(part & ~joins, (2 * q + kv) * row / device.strided_rate, 0.0)
        many = (plan.lists.lengths[ops.kv_blocks[attend]] > 1) & ~part
        copied = np.where(many, 2 * kv * row * (2 if backward else 1) / device.copy_bandwidth, 0.0)
        return strided + copied

    def _staging_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Real tokens gathered out of padded buffers (2 passes), results zero-filled and scattered element by element."""
        device, row = self.cluster.device, self.model.head_dim * self.model.element_bytes
        q, kv = work.queries * heads * row, 2 * work.keys * kv_heads * row
        read, written = (3 * q + kv, q + kv) if backward else (q + kv, q)
        small = (12 if backward else 7) * device.kernel_seconds
        return (2 * read + written) / device.copy_bandwidth + written / device.strided_rate + small

    def linear_seconds(self, tokens: Ints | Floats) -> Floats:
        """Forward seconds of one layer's linear modules, norms and activations for `tokens` on a rank."""
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        matmul = 2 * model.layer_matmul_params * tokens / device.matmul_flops
        elementwise = model.elementwise_bytes * tokens / device.copy_bandwidth
        return matmul + elementwise + np.where(tokens > 0, LAYER_KERNELS * device.kernel_seconds, 0.0)

    def head_seconds(self, tokens: Ints | Floats) -> Floats:
        """Output projection and loss, forward and backward."""
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        return 6 * model.head_params * tokens / device.matmul_flops + LOSS_BYTES * model.vocab * tokens / device.copy_bandwidth

    def optimizer_seconds(self) -> float:
        """Adam on a rank's share of the parameters."""
        share = self.model.total_params / self.cluster.num_ranks
        return OPTIMIZER_BYTES * share / self.cluster.device.copy_bandwidth


def _joins(plan: Plan, ops: Ops, attend: Ints) -> Flags:
    """Attends whose queries (same blocks and heads, same rank) an earlier attend has had."""
    output = (ops.blocks[attend] * plan.num_ranks + ops.src[attend]) * (plan.num_heads + 1) + ops.head_lo[attend]
    joins = np.ones(len(attend), bool)
    joins[np.unique(output, return_index=True)[1]] = False
    return joins
