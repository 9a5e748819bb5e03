"""MagiAttention: chunks of a pack dealt to ranks in equal numbers and of about equal attention, keys sent where needed.

A pack, the sequences of a group of ranks one behind the other, is cut in chunks of equal tokens whatever sequences they
are of. A dispatch solver deals the chunks to the ranks (systems/magi_dispatch/solver.py), where they stay for linear
modules and attention alike. The ranks then fetch the keys that their chunks' masks need, and send gradients back, in
stages that overlap with attention (systems/magi_dispatch/stages.py).

Source: MagiAttention 2c641357 (after release 1.1.1), magi_attention/api, meta and functional.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.describe.mask import Mask
from zbench.plans.build import Builder
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_packs import Batching, pack_batch
from zbench.systems.common.mesh_plans import check_keys, largest_fitting
from zbench.systems.common.scattered import Pieces
from zbench.systems.magi_dispatch.solver import Algorithm, Chunks, chunk_size, dispatch_chunks
from zbench.systems.magi_dispatch.stages import staged_plan


@dataclass(frozen=True, slots=True)
class MagiDispatch:
    """MagiAttention as a system: chunks of a pack are dealt to ranks, and keys are sent where chunks need them. degree:
    ranks of a group; None: all. batching: how groups and micro-batches get sequences (systems/mesh.py). pack_tokens: of
    a group's rank at most; None: what fits a GPU. chunk_tokens: of a chunk at most; None: a rank gets
    `chunks_per_rank`, as it does where chunks would be larger. algorithm: of the dispatch. top_p: with topp, of which
    share of the ranks the nearest is taken. overlap_stages: of the keys that come from others; 0: attention waits for
    all. hierarchical: keys cross to each other node once.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks.
    """

    cost: Cost
    degree: int | None = None
    batching: Batching = "best_fit"
    pack_tokens: int | None = None
    chunk_tokens: int | None = None
    chunks_per_rank: int = 8
    algorithm: Algorithm = "lpt"
    top_p: float = 0.5
    overlap_stages: int = 1
    hierarchical: bool = False

    def __post_init__(self) -> None:
        check_keys(self.cost, self.degree, self.pack_tokens, None)
        for name, choices in (("batching", get_args(Batching)), ("algorithm", get_args(Algorithm))):
            if getattr(self, name) not in choices:
                raise ValueError(f"system.{name} is {getattr(self, name)!r}; it takes {', '.join(choices)}")
        check_whole_number("system.chunk_tokens", self.chunk_tokens, 1, or_null=True)
        check_whole_number("system.chunks_per_rank", self.chunks_per_rank, 1)
        check_whole_number("system.overlap_stages", self.overlap_stages, 0)
        if isinstance(self.top_p, bool) or not isinstance(self.top_p, int | float) or not 0 <= self.top_p <= 1:
            raise ValueError(f"system.top_p is {self.top_p!r}; it takes a number from 0 to 1")
        check_boolean("system.hierarchical", self.hierarchical)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, cost = self.cost.cluster.num_ranks, self.cost
        degree = self.degree or ranks

        def plans_with(most: int) -> tuple[Plan, ...]:
            pack = pack_batch(self.batching, batch.lengths, ranks // degree, most, cost)
            return tuple(
                self.laid(batch.lengths, seqs, pack[seqs, 1], degree)
                for seqs in (np.flatnonzero(pack[:, 0] == turn) for turn in np.unique(pack[:, 0]))
            )

        return largest_fitting(batch, degree, self.pack_tokens, cost, plans_with)

    def laid(self, lengths: Ints, seqs: Ints, group: Ints, degree: int, mask: Mask | None = None) -> Plan:
        """Returns the plan of sequences `seqs`, whose groups of `degree` neighbouring ranks are `group`: int64 [n]
        each. mask: None: the model's."""
        cluster, mask = self.cost.cluster, self.cost.model.mask if mask is None else mask
        parts = [
            self._dealt(lengths[seqs], np.flatnonzero(group == one), one * degree, degree, mask.causal)
            for one in np.unique(group)
        ]
        seq, start, stop, rank = np.concatenate(parts, axis=1)
        order = np.lexsort((start, seq))
        pieces = Pieces(seq[order], start[order], stop[order], rank[order], rank[order])
        builder = Builder(lengths[seqs], cluster.num_ranks, self.cost.model.num_heads, mask, sequences=seqs)
        per_node = cluster.gpus_per_node if self.hierarchical else None
        return staged_plan(builder, pieces, self.overlap_stages, degree, per_node)

    def _dealt(self, lengths: Ints, members: Ints, first: int, degree: int, causal: bool) -> Ints:
        """Returns int64 [4, n], sequence, start, stop and rank of every piece of a group's pack; its ranks begin at
        `first`."""
        own = lengths[members]
        total = int(own.sum())  # a rank by itself has one chunk, as theirs
        size = chunk_size(total, degree, self.chunks_per_rank, self.chunk_tokens) if degree > 1 else total
        chunks = Chunks.cut(own, size, causal)
        rank = first + dispatch_chunks(chunks, degree, self.algorithm, self.top_p)[chunks.chunk]
        return np.stack([members[chunks.seq], chunks.start, chunks.stop, rank])
