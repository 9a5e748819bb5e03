"""All-gather context parallelism, as in the training of Llama 3.

The packed batch is cut in 2N chunks, rank i owns chunks i and 2N-1-i; keys and values of the whole
batch are gathered on every rank before it attends once with its own queries. Documents stay nearly
whole, so kernels run on long pieces, but the cut knows nothing of document borders: a rank whose
chunks hold one long document has more to do, and all of the gather is exposed.
Source: the Llama 3 report (arXiv 2407.21783, section 3.3.2).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_choice
from zbench.interfaces.protocols import Size
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, pack_zigzag, sequence_zigzag
from zbench.plans.plan import Ints, Plan


@dataclass(frozen=True, slots=True)
class AllGather:
    """All-gather context parallelism: every rank gathers all keys and values, then attends once with its own queries.
    shard: "pack" cuts the packed batch (Llama 3); "sequence" every sequence by itself (Transformer Engine's).

    received_kv: Llama 3 gathers keys and values again.

    Raises:
        ValueError: an unknown shard.
    """

    cost: Cost
    shard: Literal["pack", "sequence"] = "pack"
    received_kv: Mode = "regather"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_choice("system.shard", self.shard, ("pack", "sequence"))

    def size(self, lengths: Ints, count: int) -> Size:
        """Estimates the size of a step's plans: every rank gets every rank's keys, forward and backward, and sends
        their gradients back."""
        ranks = min(self.cost.cluster.num_ranks, int(count * float(lengths.mean())))
        return Size(operations=2 * ranks**2, pieces=count)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        cluster = self.cost.cluster
        builder = Builder(batch.lengths, cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask)
        cut = pack_zigzag if self.shard == "pack" else sequence_zigzag
        grid = np.arange(cluster.num_ranks).reshape(cluster.num_nodes, -1)
        all_gather(builder, *cut(batch.lengths, cluster.num_ranks, builder.mask), grid)
        return (reverse(builder.build(), self.received_kv),)
