"""Local packing: data parallelism alone, sequences packed to ranks by best fit.

Every sequence stays whole on one GPU, so nothing but parameters and gradients is ever sent, and a sequence that
fits no GPU cannot be trained. The baseline that context parallelism has to beat where it can run at all.

Packs are made by best-fit decreasing: the longest sequence first, into the fullest pack that still has room, else
into a new one. Their size is the smallest with which the fewest micro-batches are enough (bisected, as MULTIFIT
does): Coffman, Garey and Johnson 1978, doi 10.1137/0207001.
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.best_fit import best_fit, best_fit_packs
from zbench.systems.common.micro_batches import fitting_tokens


@dataclass(frozen=True, slots=True)
class LocalPacking:
    """Data parallelism alone as a system: whole sequences, packed to ranks by best fit. pack_tokens: size of a pack, at
    most what fits a GPU; None: the smallest that needs the fewest micro-batches. A longer sequence has a pack of its
    own.

    Raises:
        ValueError: pack_tokens is not a whole number of at least 1.
    """

    cost: Cost
    pack_tokens: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("system.pack_tokens", self.pack_tokens, 1, or_null=True)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, lengths = self.cost.cluster.num_ranks, batch.lengths
        most = min(fitting_tokens(self.cost), self.pack_tokens or batch.num_tokens)
        pack = best_fit_packs(lengths, ranks, most) if self.pack_tokens is None else best_fit(lengths, most)
        # The fullest packs together, so that the ranks of a micro-batch have about the same to do.
        tokens = np.bincount(pack, weights=lengths)
        place = np.empty(len(tokens), np.int64)
        place[np.argsort(-tokens, kind="stable")] = np.arange(len(tokens))
        turn, rank = np.divmod(place[pack], ranks)
        return tuple(self._micro_batch(lengths, np.flatnonzero(turn == t), rank) for t in range(int(turn.max()) + 1))

    def _micro_batch(self, lengths: Ints, seqs: Ints, rank: Ints) -> Plan:
        builder = Builder(
            lengths[seqs], self.cost.cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask, sequences=seqs
        )
        local(builder, np.arange(len(seqs), dtype=np.int64), rank[seqs])
        return reverse(builder.build(), "keep")
