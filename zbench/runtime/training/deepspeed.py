"""Attention run by DeepSpeed's own DistributedAttention (Ulysses), for packed sequences of any length.

Shapes: T of the rank's own tokens, P ranks of its group, N tokens of the group, H query heads, K kv heads, D head_dim;
q [T, H, D], k and v [T, K, D], o [T, H, D].

DeepSpeed wants as many tokens on every rank and a kv head for every rank. So each rank's rows are padded to the
fullest rank's (a token more at most, where homes are even shares), and kv heads are repeated until every rank has
one; both are undone around its exchange, so neither is seen by attention or its gradient. It deals heads that do
not divide evenly, the first ranks one kv head more.
Source: deepspeed 0.19.8, deepspeed/sequence/layer.py (Jacobs et al. 2023, arXiv 2309.14509).
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from zbench.plans.plan import Ints, Plan
from zbench.plans.segments import whole_sequences
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.training.outside import AttentionSpan, Counted, Enter, Leave, Whole

Attend = Callable[[Tensor, Tensor, Tensor, str], Tensor]  # q, k, v, where the rank is -> o


class DeepSpeed:
    """One rank's way to DeepSpeed. Collective: every rank makes one, between the same two collectives.

    The ranks fall in groups of `degree` neighbours: as many as heads allow, since DeepSpeed refuses a rank without.
    """

    def __init__(self, rank: int, num_ranks: int, engine: Engine) -> None:
        heads = engine.shape.model.num_heads
        self.degree = max(count for count in range(1, min(num_ranks, heads) + 1) if num_ranks % count == 0)
        self.first, self.place = rank - rank % self.degree, rank % self.degree
        starts = range(0, num_ranks, self.degree)
        groups = [dist.new_group(list(range(start, start + self.degree))) for start in starts]
        self.group, self.engine = groups[rank // self.degree], engine
        self.layer = open_deepspeed(self.place)
        self.layer.dist = Counted(self.layer.dist, engine, self.first, self.place)

    def attend(self, plan: Plan) -> Attend:
        """Returns the attention of a plan's rows; collective, as is its backward: every rank has to come there."""
        engine, stream = self.engine, Stream.of(plan, range(self.first, self.first + self.degree))
        tokens, lengths = stream.tokens.tolist(), stream.lengths
        cuts = engine.kernel.cut(*whole_sequences(lengths, plan.mask))
        unpadded = _Unpadded(tokens, engine.shape.device, lambda q, k, v: Whole.apply(q, k, v, engine, cuts))
        distributed = self.layer.DistributedAttention(unpadded, self.group)
        model, mine, longest = engine.shape.model, tokens[self.place], unpadded.longest
        copies = kv_copies(model.num_heads, model.num_kv_heads, self.degree)

        def padded(x: Tensor) -> Tensor:
            """Pads [T, h, D] to [longest, 1, h, D]."""
            return (pad(x, (0, 0, 0, 0, 0, longest - mine)) if mine < longest else x).unsqueeze(1)

        def attend(q: Tensor, k: Tensor, v: Tensor, where: str) -> Tensor:
            span = AttentionSpan(engine, where)
            span.begin("forward")
            q, k, v = Enter.apply(q, k, v, span)
            if copies > 1:
                k, v = (x.repeat_interleave(copies, 1) for x in (k, v))
            o: Tensor = Leave.apply(distributed(padded(q), padded(k), padded(v), 1)[:mine, 0], span)
            span.end()
            return o

        return attend


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream: the sequences of a group of ranks, packed one after another over them.

    tokens: int64 [P], rows of each rank. lengths: int64 [num_sequences], of the group's sequences in order.
    """

    tokens: Ints
    lengths: Ints

    @staticmethod
    def of(plan: Plan, ranks: range) -> "Stream":
        """Returns the stream of a group of ranks under a plan."""
        blocks = plan.blocks
        home = blocks.home[blocks.block]
        mine = np.flatnonzero((home >= ranks.start) & (home < ranks.stop))
        # as zbench.runtime.program.holders.HomeRows has them
        rows = mine[np.lexsort((mine, blocks.block[mine], home[mine]))]
        seqs = np.unique(blocks.seq[mine])
        held = np.bincount(blocks.seq[mine], weights=(blocks.stop - blocks.start)[mine], minlength=len(plan.lengths))
        assert (rows == mine).all(), "DeepSpeed takes a plan whose ranks have consecutive shares of the sequences"
        assert (held[seqs] == plan.lengths[seqs]).all(), "DeepSpeed takes a plan that leaves sequences in their group"
        return Stream(plan.tokens_per_rank[ranks.start : ranks.stop], plan.lengths[seqs])


def kv_copies(num_heads: int, num_kv_heads: int, ranks: int) -> int:
    """Returns how often each kv head is repeated: the least with which every rank has one and query heads are dealt as
    evenly as they can be (DeepSpeed deals kv heads, and query heads follow)."""
    group = num_heads // num_kv_heads
    fitting = [c for c in range(1, group + 1) if group % c == 0 and num_kv_heads * c >= ranks]
    return min(fitting, key=lambda c: (-(-num_kv_heads * c // ranks) * (group // c), c))


class _Unpadded(torch.nn.Module):
    """DeepSpeed's local attention: takes padding out, attends, puts it back."""

    def __init__(
        self, tokens: Sequence[int], device: torch.device, local: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.longest = max(1, *tokens)  # a group without tokens exchanges padding alone
        self.total, self.local = self.longest * len(tokens), local
        rows = [torch.arange(count) + rank * self.longest for rank, count in enumerate(tokens)]
        self.rows = torch.cat(rows).to(device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the output, [P x longest, 1, h, D]."""
        q, k, v = (x[:, 0] if len(self.rows) == self.total else x[:, 0].index_select(0, self.rows) for x in (q, k, v))
        o = self.local(q, k, v)
        if len(self.rows) < self.total:
            o = o.new_zeros(self.total, *o.shape[1:]).index_copy(0, self.rows, o)
        return o.unsqueeze(1)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place in a group that DeepSpeed asks for where heads are uneven."""

    place: int

    def get_sequence_parallel_rank(self) -> int:
        return self.place


def open_deepspeed(place: int) -> Any:
    """Opens DeepSpeed's module, ready to use torch.distributed as it stands. torch.distributed has to be open."""
    start_deepspeed()
    import deepspeed.comm
    import deepspeed.sequence.layer as layer
    from deepspeed.utils import groups

    layer.dist, groups.mpu = deepspeed.comm, _Place(place)
    return layer


def start_deepspeed() -> None:
    """Imports DeepSpeed and opens its communicator on torch.distributed as it stands, which has to be open.

    On a CPU its communicator would first compile a shared-memory all-reduce (a minute and a half, under a lock file
    that a killed process leaves behind), which nothing here needs; it is told not to.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns that it runs on a CPU
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import deepspeed.comm
            import deepspeed.ops
    finally:
        logging.disable(before)
    if not deepspeed.comm.is_initialized():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.comm.init_distributed(auto_mpi_discovery=False)
