"""Ring attention over all ranks: Transformer Engine's context parallelism.

Every sequence, however short, is cut in 2N zigzag chunks over all N ranks, and kv goes once round.
Balanced to a token, but a short sequence pays N - 1 messages and N tiny kernel calls.
Source: Transformer Engine's `AttnFuncWithCPAndKVP2P` (variable-length, "p2p"); Liu et al. 2023
(arXiv 2310.01889).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import Size
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring attention as a system: one zigzag ring over all ranks. received_kv: what becomes of it until the
    backward (zbench.passes.reverse); Transformer Engine carries it round again."""

    cost: Cost
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)

    def size(self, lengths: Ints, count: int) -> Size:
        """Estimates the size of a step's plans: every rank attends to and passes on every chunk of keys; a sequence is
        cut in as many pieces as it can be."""
        chunks = np.minimum(lengths, 2 * self.cost.cluster.num_ranks)
        ranks = min(self.cost.cluster.num_ranks, count * int(chunks.max()))
        return Size(operations=4 * ranks**2, pieces=int(count * float(chunks.mean())))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        count = len(batch.lengths)
        ranks = self.cost.cluster.num_ranks
        builder = Builder(batch.lengths, ranks, self.cost.model.num_heads, self.cost.model.mask)
        ring(builder, np.arange(count), np.zeros(count, np.int64), np.arange(ranks).reshape(1, -1))
        return (reverse(builder.build(), self.received_kv),)
