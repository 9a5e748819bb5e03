"""Ulysses as DeepSpeed runs it: its plan is simulated as any, and trained by DeepSpeed's own DistributedAttention.

The all-to-all of systems/ulysses.py over as many ranks as there are heads for (DeepSpeed has no ring to go with it, so
more ranks than heads are data parallel): groups of neighbours, of the largest size that divides the ranks and leaves
each a head, and whole sequences dealt to them by tokens, the longest first. The plan says that the package `deepspeed`
(of the extra `peers`) runs attention; a simulated run does without it.
Source: Jacobs et al. 2023 (arXiv 2309.14509); deepspeed 0.19, deepspeed/sequence/layer.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import dealt
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Plan
from zbench.systems.common.grids import exchange_degrees


@dataclass(frozen=True, slots=True)
class UlyssesDeepSpeed:
    """DeepSpeed's Ulysses as a system: data-parallel groups of as many ranks as heads allow, each with its share of
    sequences."""

    packages: ClassVar[tuple[str, ...]] = ("deepspeed",)  # a run's fingerprint has their versions
    cost: Cost

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, heads = self.cost.cluster.num_ranks, self.cost.model.num_heads
        groups = np.arange(ranks, dtype=np.int64).reshape(-1, 1, max(exchange_degrees(ranks, heads)))
        seqs = np.arange(len(batch.lengths), dtype=np.int64)
        group = np.empty_like(seqs)
        for number, mine in enumerate(dealt(seqs, batch.lengths, len(groups))):
            group[mine] = number
        builder = Builder(batch.lengths, ranks, heads, self.cost.model.mask)
        ulysses_ring(builder, seqs, group, groups)
        return (reverse(builder.build(), "keep").with_(attention="deepspeed"),)
