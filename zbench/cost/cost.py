"""The cost model: how long operations take and how many bytes they move, on a described cluster.

The only module that turns work into seconds; who waits for whom is zbench.simulator.clock's. Each term is a
cause, and docs/cost.md derives it:

- attend: whole tiles at the kernel's rate; rows of q, kv, o through memory; kernel starts; and where
  they happen, joining partial outputs and bringing blocks into the order the kernel needs;
- transfer: bytes over what a link reaches with large messages, and a latency;
- linear modules: matmuls at the rate large ones reach, and elementwise work through memory.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.cost import staging
from zbench.cost.loss import moved_bytes
from zbench.cost.use import Given, Repeats, Use, given
from zbench.describe.arrays import Flags, Floats
from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.links import NIC, NVLINK, Domain, gathering
from zbench.describe.model import Model
from zbench.plans.area import HALF, STRIP, TILE, Work
from zbench.plans.plan import Column, Ints, Ops, Plan

FORWARD_FLOPS = 4  # of a visible pair, per head and head dimension: q.k and p.v, a multiply and an add each
BACKWARD_FLOPS = 10  # five matmuls for the forward's two: flash attention computes q.k again
LAYER_KERNELS = 20  # kernels of a layer's linear part, forward: 7 matmuls and the elementwise between them (a count)
SHOWN = 4  # tensor parallelism's gathers and reductions of a layer, either direction, that its matmuls wait for
HIDDEN = 2  # gathers of the backward that run behind matmuls
OPTIMIZER_BYTES = 34  # per parameter of a rank's share: master weight and both moments read and written, gradient, bf16


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost model of `model` on `cluster`; methods take and give arrays over operations.

    wrapper: attention runs behind the wrapper of the benchmark that zbench.anchors compares with, with one of its
        backends (zbench.cost.staging); "" in a trainer.
    pipelines: what runs the plans has tensor and pipeline parallelism (zbench.plans.pipelines); the torch executor has
    not. tp, bonded_nics: GPUs that are one rank, NICs that are one of `cluster`, which with `model` is then as
    zbench.cost.groups
        makes them. inner: the domains of GPUs that such a group has.
    pp: stages; `cluster` is then that of one stage, and a rank is one of each (zbench.cost.stacks).
    """

    cluster: Cluster
    model: Model
    wrapper: staging.Backend = ""
    pipelines: bool = True
    tp: int = 1
    pp: int = 1
    bonded_nics: int = 1
    inner: tuple[Domain, ...] = ()

    @property
    def layers(self) -> int:
        """The number of layers of a stage."""
        return self.model.num_layers // self.pp

    @property
    def whole(self) -> Cluster:
        """The cluster of all stages, which follow one another node by node."""
        return self.cluster if self.pp == 1 else replace(self.cluster, num_nodes=self.cluster.num_nodes * self.pp)

    def message_bytes(self, plan: Plan, ops: Ops) -> Ints:
        """Returns int64 [num_ops]: the bytes of every transfer, 0 for attends."""
        per_token = self.model.message_bytes(ops.tensor, ops.head_lo, ops.head_hi)
        return np.asarray(per_token * plan.list_tokens[ops.blocks], np.int64)

    def transfer_seconds(self, size: Floats | Ints, link: Column | Flags | int) -> Floats:
        """Returns the seconds for which a link is busy with `size` bytes to and from all.

        link: its class (Cluster.link_of), or whether it is a NIC, across nodes, or what joins all of a node; one number
            is every transfer's.
        """
        rates = np.array([one.rate for one in self.cluster.links])
        return np.asarray(size / rates[np.asarray(link, np.intp)], np.float64)

    def nic_transfer_seconds(self, size: float) -> float:
        """Returns the seconds a NIC is busy with `size` bytes to and from all: transfer_seconds of a single
        transfer."""
        return float(self.transfer_seconds(np.asarray(size, np.float64), NIC))

    def message_seconds(self, size: Floats | Ints, link: Column | Flags | int) -> Floats:
        """Returns the seconds of one message of `size` bytes between two ranks, which has one of the link's
        channels."""
        channels = np.array([one.channels for one in self.cluster.links])[np.asarray(link, np.intp)]
        return np.asarray(channels * self.transfer_seconds(size, link), np.float64)

    def gather_seconds(self, size: Floats | Ints, num_ranks: int) -> Floats:
        """Returns the seconds of a rank's busiest port inside its node while `num_ranks` in a row gather `size` bytes
        together."""
        seconds = np.zeros(np.shape(size))
        for link, within, _ in gathering(self.cluster.levels, num_ranks):
            taken = size * (num_ranks - within) / num_ranks / within
            seconds = np.maximum(seconds, self.transfer_seconds(taken, link))
        return seconds

    def spread_seconds(self, size: Floats | Ints, link: Column | Flags | int, peers: int) -> Floats:
        """Returns the seconds for which a link is busy with `size` bytes evenly to so many peers: all of the link is
        used if it has no more channels."""
        return np.maximum(self.transfer_seconds(size, link), self.message_seconds(size / max(peers, 1), link))

    def latency_seconds(self, link: Column | Flags | int) -> Floats:
        """Returns the latency of every link."""
        return np.array([one.latency for one in self.cluster.links])[np.asarray(link, np.intp)]

    def attend_seconds(
        self, plan: Plan, ops: Ops, attend: Ints, work: Work, backward: bool, known: Repeats | None = None
    ) -> Floats:
        """Returns float64 [num_attends]: the seconds of the operations `attend`, whose work for one head is `work`.

        known: the repeats among all attends of the list, where `attend` are some of them.
        """
        use = Use.of(plan, ops, attend, work, self._kv_heads(ops.head_lo[attend], ops.head_hi[attend]), known)
        kv_heads = use.kv_heads
        if self.wrapper == staging.FUSED and backward:
            kv_heads = np.where(staging.repeated(use), use.heads, kv_heads)
        seconds = self.kernel_seconds(work, use.heads, kv_heads, backward)
        seconds += self._sum_seconds(work, use, backward) + self._arrange_seconds(work, use, backward)
        if not self.wrapper:
            return seconds
        return seconds + staging.staging_seconds(self.cluster.device, self._row, work, use, backward, self.wrapper)

    @property
    def _row(self) -> int:
        """Bytes of one head of one token."""
        return self.model.head_dim * self.model.element_bytes

    def kernel_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Returns the seconds of flash-attention calls, one each: its work, the start of its kernels, and no less than
        a call takes."""
        device = self.cluster.device
        starts = (8 if backward else 1) * device.kernel_seconds + (self._empty_seconds(work, heads) if backward else 0)
        return np.maximum(self.stream_seconds(work, heads, kv_heads, backward) + starts, device.call_seconds)

    def _empty_seconds(self, work: Work, heads: Ints) -> Floats:
        """Returns the seconds of those blocks of a variable-length backward that find nothing to do.

        FlashAttention-3 launches a block for every TILE keys of the longest segment, every segment and every head, and
        a block past its segment's end leaves at once (hopper/flash_bwd_launch_template.h). Its forward has a scheduler
        that skips them.
        """
        empty = np.maximum(work.segments * work.longest - -(-work.keys // TILE), 0)
        return np.asarray(empty * heads * self.cluster.device.empty_block_seconds, np.float64)

    def stream_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Returns the seconds of the work of flash-attention calls: tiles at the kernel's rate, rows through memory.

        Memory traffic in bytes per row element of 2 bytes. Forward: q and o once, k and v once. Backward:
        o and do for the row sums, q and do, dq zeroed, summed in float32 and converted (18 a q row); k, v
        and dk, dv (8 a kv row) - with grouped queries dk and dv are added in float32 once a query head.
        """
        device, dim, e = self.cluster.device, self.model.head_dim, self.model.element_bytes / 2
        rate = device.attention_backward_flops if backward else device.attention_forward_flops
        pairs = work.area if device.tile == 1 else self._tiles(work, heads, kv_heads, backward) * TILE * TILE
        flops = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * pairs * heads * dim
        curves = device.attention(backward)
        compute = flops / rate if curves is None else flops * _seconds_by_row(work, *curves)
        grouped = heads > kv_heads
        if backward:
            kv_rows = np.where(grouped, 12 * heads + 20 * kv_heads, 8 * heads)
            traffic = (work.queries * heads * 18 + work.keys * kv_rows) * dim * e
        else:
            traffic = (work.queries * heads + work.keys * kv_heads) * 4 * dim * e
        return np.asarray(compute + traffic / device.copy_bandwidth, np.float64)

    def _tiles(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Ints | Floats:
        """Counts tiles, less the parts of them without a query that the kernel leaves out.

        FlashAttention-3's backward has tiles of 64 queries (80 where all see all). Its forward lays the g query heads
        of a kv head side by side in the rows of a tile, which then has 128 / g queries; between 1 and 8 heads the
        share of the strips of 16 that this leaves out is what it is of a last row of any length.
        """
        device = self.cluster.device
        if backward:
            return work.tiles - work.spare_halves / 2 if device.backward_rows == HALF else work.tiles
        if not device.packed_rows:
            return work.tiles
        group = np.minimum(heads / np.maximum(kv_heads, 1), TILE // STRIP)
        share = (1 - 1 / group) / (1 - STRIP / TILE)
        return np.asarray(work.tiles - share * work.spare_strips * (STRIP / TILE), np.float64)

    def whole_seconds(self, lengths: Ints, backward: bool) -> Floats:
        """Returns the seconds of attention over whole sequences, [n], all heads, one layer, as part of calls that
        others share."""
        return self.work_seconds(Work.whole(lengths, self.model.mask), backward)

    def piece_seconds(self, start: Ints, stop: Ints, length: Ints, backward: bool) -> Floats:
        """Returns the seconds of attention of queries [start, stop), [n], of a sequence of `length` to all keys that
        they see, as whole_seconds does.

        Under the causal mask it is what they add to the prefix before them, so that pieces add up to their sequence.
        """
        if self.model.mask.causal and not self.model.mask.window:
            return self.whole_seconds(stop, backward) - self.whole_seconds(start, backward)
        return self.work_seconds(Work.pieces(start, stop, length, self.model.mask), backward)

    def work_seconds(self, work: Work, backward: bool) -> Floats:
        """Returns the seconds of attention with this work, all heads, one layer, as part of calls that others share."""
        one = np.ones_like(work.queries)
        heads, kv_heads = self.model.num_heads * one, self.model.num_kv_heads * one
        return self.stream_seconds(work, heads, kv_heads, backward)

    def _kv_heads(self, lo: Column, hi: Column) -> Column:
        group = self.model.num_heads // self.model.num_kv_heads
        return -(-hi // group) - lo // group

    def join_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Returns the seconds of adding a partial result to an earlier one: read it, read and write the sum (o; or dq,
        dk and dv)."""
        row = self._row
        size = 3 * work.queries * heads * row + (6 * work.keys * kv_heads * row if backward else 0)
        return size / self.cluster.device.copy_bandwidth + 3 * self.cluster.device.kernel_seconds

    def _sum_seconds(self, work: Work, use: Use, backward: bool) -> Floats:
        """Returns the seconds of joining the partial results of attends that share queries; backward also of those that
        share keys.

        Staged, as Transformer Engine does it: the first partial result is added too, to zeros.
        """
        joins_q, joins_kv = (use.shares_q, use.shares_kv) if self.wrapper else (use.again_q, use.again_kv)
        buffered = replace(work, keys=use.buffer)
        seconds = np.where(joins_q, self.join_seconds(buffered, use.heads, use.kv_heads, backward), 0.0)
        if backward:
            only_kv = self.join_seconds(replace(buffered, queries=0 * work.queries), use.heads, use.kv_heads, backward)
            seconds += np.where(joins_kv & ~joins_q, only_kv, 0.0)
        if self.wrapper:
            more = staging.join_more_seconds(self.cluster.device, self._row, work, use, backward)
            seconds += np.where(joins_q, more, 0.0)
        return seconds

    def _arrange_seconds(self, work: Work, use: Use, backward: bool) -> Floats:
        """Returns the seconds of bringing blocks into the order the kernel reads.

        Head ranges (all-to-all): one strided copy of q, o, k and v each. Several whole blocks (all-gather):
        k and v copied into one buffer, and dk and dv out of it, once for all attends that use it. Part of
        a block (half of it, in a causal ring): that part of q, or k and v, copied; backward also of o and do.
        """
        row = self._row
        kv = 2 * use.kv_tokens * use.kv_heads * row
        strided = self._strided_seconds(use)
        copied = np.where(use.many & ~use.again_kv, kv * (2 if backward else 1), 0)
        part_q = np.where(work.queries < use.q_tokens, work.queries * use.heads * row * (3 if backward else 1), 0)
        part_kv = np.where(use.buffer < use.kv_tokens, 2 * use.buffer * use.kv_heads * row, 0)
        return np.asarray(strided + 2 * (copied + part_q + part_kv) / self.cluster.device.copy_bandwidth, np.float64)

    def _strided_seconds(self, use: Given) -> Floats:
        size = (2 * use.q_tokens * use.heads + 2 * use.kv_tokens * use.kv_heads) * self._row
        return np.where(use.cut & ~use.again_q, self.repack_seconds(size), 0.0)

    def repacking_seconds(self, plan: Plan, ops: Ops, attend: Ints) -> Floats:
        """Returns float64 [num_attends]: the seconds in attend_seconds that an all-to-all's repacking takes, which is
        communication's.

        attend: all of the list.
        """
        if not ((ops.head_hi - ops.head_lo)[attend] < plan.num_heads).any():
            return np.zeros(len(attend))
        return self._strided_seconds(given(plan, ops, attend, self._kv_heads(ops.head_lo[attend], ops.head_hi[attend])))

    def repack_seconds(self, size: Floats | Ints) -> Floats:
        """Returns the seconds of a strided copy of `size` bytes, as between the two layouts of an all-to-all."""
        return np.asarray(size / self.cluster.device.strided_rate, np.float64)

    def linear_seconds(self, tokens: Ints | Floats, matmul_share: float = 1.0) -> Floats:
        """Returns the forward seconds of one layer's linear modules, norms and activations for `tokens` on a rank.

        matmul_share: the share of the matmuls that runs (selective recomputation runs some of them again).
        """
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        curve = device.matmul_by_tokens.get(model.name)
        flops = 2 * matmul_share * model.layer_matmul_params * tokens
        matmul = flops / device.matmul_flops if curve is None else flops * curve.seconds(np.maximum(tokens, 1))
        elementwise = model.elementwise_bytes * tokens / device.copy_bandwidth
        launches = np.where(tokens > 0, LAYER_KERNELS * device.kernel_seconds, 0.0)
        return np.asarray(matmul + elementwise + launches + self.exchange_seconds(tokens), np.float64)

    def group_gather_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds of one gather (or reduction) of hidden states inside a tensor-parallel group: each GPU's
        share to all others."""
        tokens, size, c = np.asarray(tokens, np.float64), self.model.hidden * self.model.element_bytes, self.cluster
        node = (c.links[NVLINK].rate / self.tp, c.nvlink_latency), self.tp
        levels = [*(((one.link.rate, one.latency), one.gpus) for one in self.inner), node]
        seconds, latency = np.zeros(tokens.shape), 0.0
        for (port, each), within, hops in gathering(levels, self.tp):
            received = tokens * size * (self.tp - within) / self.tp / within
            seconds, latency = np.maximum(seconds, received / port), latency + hops * each
        return np.asarray(seconds + latency * (tokens > 0), np.float64)

    def exchange_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds that a layer's linear modules wait for inside a tensor-parallel group, in each of a
        step's passes.

        An even share for each pass, as the backward is two times the forward to whoever plans and plays linear
        modules: a layer's sum is exact, its forward takes a little too little and its backward as much too much.
        """
        again = 1 if self.model.recompute == "full" else 0
        return SHOWN * (2 + again) / (3 + again) * self.group_gather_seconds(tokens)

    def head_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds of output projection and loss, forward and backward."""
        device, model, tokens = self.cluster.device, self.model, np.asarray(tokens, np.float64)
        matmul = 6 * model.head_params * tokens / device.matmul_flops
        return np.asarray(matmul + moved_bytes(model, tokens) / device.copy_bandwidth, np.float64)

    def optimizer_seconds(self) -> float:
        """Returns the seconds of Adam on a rank's share of the parameters."""
        share = self.model.total_params / (self.pp if self.model.sharding == "none" else self.whole.num_ranks)
        return OPTIMIZER_BYTES * share / self.cluster.device.copy_bandwidth


def _seconds_by_row(work: Work, causal: Curve, full: Curve) -> Floats:
    """Gives the seconds of a FLOP of whole tiles, by the keys that a row of them sees.

    Segments of an attend take their mean's.
    """
    keys = TILE * work.tiles / np.maximum(work.rows, 1)
    share = work.triangles / np.maximum(work.segments, 1)
    keys = np.maximum(keys, TILE)
    return np.asarray(share * causal.seconds(keys) + (1 - share) * full.seconds(keys), np.float64)
