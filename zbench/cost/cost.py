"""The cost model: how long operations take and how many bytes they move, on a described cluster.

The only room that turns work into seconds; who waits for whom is zbench.simulator.clock's. Each term is a
cause, and docs/cost.md derives it:

- attend: whole tiles at the kernel's rate; rows of q, kv, o through memory; kernel starts (kernel); and where
  they happen, joining partial outputs and bringing blocks into the order the kernel needs (joins);
- transfer: bytes over what a link reaches with large messages, and a latency;
- linear modules: matmuls at the rate large ones reach, and elementwise work through memory.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.cost import staging
from zbench.cost.joins import arrange_seconds, join_seconds, repack_seconds, strided_seconds, sum_seconds
from zbench.cost.kernel import kernel_seconds, stream_seconds
from zbench.cost.linear import LinearCost
from zbench.cost.use import Repeats, Use, given
from zbench.describe.arrays import Flags, Floats
from zbench.describe.cluster import Cluster
from zbench.describe.degrees import WORLD, degrees_of
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.expert_schedule import USUAL_EXPERTS, Experts
from zbench.describe.links import NIC, Domain, gathering
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN
from zbench.plans.area import Work
from zbench.plans.plan import Column, Ints, Ops, Plan

OPTIMIZER_BYTES = 34  # per parameter of a rank's share: master weight and both moments read and written, gradient, bf16


@dataclass(frozen=True, slots=True)
class Cost(LinearCost):
    """The cost model of `model` on `cluster`; methods take and give arrays over operations.

    wrapper: attention runs behind the wrapper of the benchmark that zbench.anchors compares with, with one of its
        backends (zbench.cost.staging); "" in a trainer.
    pipelines: what runs the plans has tensor and pipeline parallelism (zbench.plans.pipelines); the torch executor has
        not. even_slices: pipelines cut parameters in slices that are alike, as in whole steps; elsewhere stages of more
        GPUs than kv heads have these twice.
    tp: GPUs that are one rank; `cluster` and `model` are then as zbench.cost.ranks_of_gpus makes them. inner: the
        domains of GPUs that such a group has.
    pp: stages; `cluster` is then that of one stage, and a rank is one of each (zbench.cost.ranks_of_gpus).
    single: where a rank is more than one GPU, the cost model of GPUs that this one was made of.
    expert_gpus, expert_cut: GPUs that hold all experts of a layer together, and those over which each of these is cut.
    experts: how tokens choose them; draw: the seed of what is drawn of that and its step, None: any step. Only memory
        asks for both.
    exchanges: how those of tensor-parallel groups go beside matmuls, which only memory asks: seconds are of whole ones.
    layers_ahead: whose parameters are gathered ahead of the one under way in a backward (zbench.describe.overlap), of
        which planners' memory has to know.
    waits_for_hosts: whether copies to and from host memory take a layer's time (zbench.cost.memory.host_copies).
    workers: that train apart in rounds, one of which this is the cost model of; 1: all are one. under_way: the share of
        parameters of which averages of such rounds are under way at most. Memory asks for both.
    opens_step, closes_step: whether what is planned begins with the first micro-batch of a step, whose forward has the
        gathers of once a step, and ends with the last, whose backward has such reductions; not both where a planner
        sees a part of a batch.
    """

    cluster: Cluster
    model: Model
    wrapper: staging.Backend = ""
    pipelines: bool = True
    even_slices: bool = False
    tp: int = 1
    pp: int = 1
    inner: tuple[Domain, ...] = ()
    single: "Cost | None" = None
    expert_gpus: int = 1
    expert_cut: int = 1
    exchanges: ExchangeOverlap = WHOLE
    layers_ahead: int = 1
    waits_for_hosts: bool = True
    experts: Experts = USUAL_EXPERTS
    draw: tuple[int, int | None] = (0, None)
    workers: int = 1
    under_way: float = 0.0
    opens_step: bool = True
    closes_step: bool = True

    def of_part(self, opens: bool, closes: bool) -> "Cost":
        """Returns the same cost model for a part of what this one plans, which begins, and which ends, as that does."""
        single = None if self.single is None else self.single.of_part(opens, closes)
        opens, closes = self.opens_step and opens, self.closes_step and closes
        return replace(self, opens_step=opens, closes_step=closes, single=single)

    @property
    def of_step(self) -> "Cost":
        """This cost model for all micro-batches of a step."""
        return self._with(opens_step=True, closes_step=True)

    def routed_by(self, experts: Experts, draw: tuple[int, int | None]) -> "Cost":
        """Returns the same cost model for another choice of experts, or another draw of it."""
        return self._with(experts=experts, draw=draw)

    def of_rounds(self, workers: int, under_way: float) -> "Cost":
        """Returns the same cost model of one of several workers that train apart, as of the fields."""
        return self._with(workers=workers, under_way=under_way)

    @property
    def not_waiting(self) -> "Cost":
        """This cost model, of GPUs and of groups, where nothing waits for copies to and from host memory."""
        return self._with(waits_for_hosts=False)

    def _with(self, **changed: Any) -> "Cost":
        """Returns this cost model with other fields, and with the same ones in that of GPUs."""
        return replace(self, **changed, single=None if self.single is None else self.single._with(**changed))

    @property
    def gpus(self) -> "Cost":
        """The cost model in which a rank is a GPU."""
        return self if self.single is None else self.single

    @property
    def owner(self) -> str:
        """The word for one of those that plans divide sequences among: a rank, which is a GPU; a tensor-parallel group
        of them; or a stack, of one or the other of every stage."""
        return "stack" if self.pp > 1 else "tensor-parallel group" if self.tp > 1 else "rank"

    def of_layers(self, count: int) -> "Cost":
        """Returns the cost model of a model with so many layers in place of its own; of those that are recomputed no
        more than there are, and of dense ones before others at most all but the last."""
        if count == self.model.num_layers:
            return self
        single = None if self.single is None else self.single.of_layers(count)
        again = self.model.recompute_layers
        some = min(again, count) if isinstance(again, int) else ALL_LAYERS
        dense = min(self.model.dense_layers, count - 1)
        model = replace(
            self.model,
            num_layers=count,
            stage_layers=EVEN,
            recompute_layers=some,
            dense_layers=dense,
            dense_ffn_hidden=self.model.dense_ffn_hidden if dense else 0,
        )
        return replace(self, model=model, single=single)

    @property
    def layers(self) -> int:
        """The number of layers of a stage; of stages that differ, of the one with the fewest."""
        return min(self.model.with_stages(self.pp).layers_of_stages)

    @property
    def again_layers(self) -> int:
        """The layers of a stage whose whole forward runs again; of stages that differ, the fewest of one."""
        return min(self.model.with_stages(self.pp).recomputed_of_stages) if self.model.recompute == "full" else 0

    def of_stage(self, stage: int) -> "Cost":
        """Returns the cost model of what a stage computes, by itself where stages differ."""
        model = self.model
        if not model.stages_differ:
            return self
        again = model.recomputed_of_stages[stage]
        own = replace(
            model.keeping_all,
            num_layers=model.layers_of_stages[stage],
            dense_layers=0,  # planners count all layers as those that follow
            dense_ffn_hidden=0,
            pipeline_parallel=1,
            stage_layers=EVEN,
            recompute=model.recompute if again else "none",
            recompute_layers=again or ALL_LAYERS,
        )
        return replace(self, model=own, pp=1)

    @property
    def ranks_of_stages(self) -> int:
        """The number of ranks of all stages, each with as many as `cluster` has."""
        return self.pp * self.cluster.num_ranks

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
        device, row = self.cluster.device, self._row
        joins = sum_seconds(device, row, work, use, backward, bool(self.wrapper))
        seconds += joins + arrange_seconds(device, row, work, use, backward)
        if not self.wrapper:
            return seconds
        return seconds + staging.staging_seconds(device, row, work, use, backward, self.wrapper)

    @property
    def _row(self) -> int:
        """Bytes of one head of one token."""
        return self.model.head_dim * self.model.element_bytes

    def kernel_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Returns the seconds of flash-attention calls, one each: its work, the start of its kernels, and no less than
        a call takes."""
        return kernel_seconds(self.cluster.device, self.model, work, heads, kv_heads, backward)

    def stream_seconds(self, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
        """Returns the seconds of the work of flash-attention calls: tiles at the kernel's rate, rows through memory."""
        return stream_seconds(self.cluster.device, self.model, work, heads, kv_heads, backward)

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
        return join_seconds(self.cluster.device, self._row, work, heads, kv_heads, backward)

    def repacking_seconds(self, plan: Plan, ops: Ops, attend: Ints) -> Floats:
        """Returns float64 [num_attends]: the seconds in attend_seconds that an all-to-all's repacking takes, which is
        communication's.

        attend: all of the list.
        """
        if not ((ops.head_hi - ops.head_lo)[attend] < plan.num_heads).any():
            return np.zeros(len(attend))
        use = given(plan, ops, attend, self._kv_heads(ops.head_lo[attend], ops.head_hi[attend]))
        return strided_seconds(self.cluster.device, self._row, use)

    def repack_seconds(self, size: Floats | Ints) -> Floats:
        """Returns the seconds of a strided copy of `size` bytes, as between the two layouts of an all-to-all."""
        return repack_seconds(self.cluster.device, size)

    def optimizer_seconds(self) -> float:
        """Returns the seconds of Adam on a rank's share of the parameters."""
        degree = degrees_of(self.model.sharding).optimizer
        share = self.model.placed_params / (self.ranks_of_stages if degree == WORLD else self.pp * degree)
        return OPTIMIZER_BYTES * share / self.cluster.device.copy_bandwidth
