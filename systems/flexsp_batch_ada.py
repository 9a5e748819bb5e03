"""FlexSP-BatchAda: all-to-all groups of one degree, the best for each batch.

The baseline of FlexSP's paper between one degree for all of training and groups of different degrees; with
`degree` given it is the former (DeepSpeed-Ulysses with data parallelism beside it). Objective, micro-batches and
packing are those of zbench.systems.flexsp.planner, so that the two differ in the choice of groups alone; or packing is
what FlexSP's public code gives its baseline (zbench.systems.flexsp.published).
Source: Wang et al. 2024 (arXiv 2412.01523, section 6).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_choice, check_whole_number
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.padding import Padding, check_padding
from zbench.systems.flexsp.batches import MicroBatch, split_batch, total_seconds
from zbench.systems.flexsp.cost import Objective, group_degrees, objective
from zbench.systems.flexsp.pack import pack_groups
from zbench.systems.flexsp.planner import PADDING, SOLVER, PaddedLengths, micro_batch_plan
from zbench.systems.flexsp.published import published_groups
from zbench.systems.flexsp.search import FoundGroups, equal_counts


@dataclass(frozen=True, slots=True)
class FlexSPBatchAda:
    """FlexSP's baseline BatchAda as a system: one degree for all groups of a batch, the best one for each batch.
    degree: ranks of every group of every batch; null: the best for each batch. packing: "search" takes FlexSP's
    micro-batches and packs by predicted time; "published" packs by best fit into the fewest micro-batches, as FlexSP's
    public code does for its baseline. tried_micro_batch_counts (of "search"), received_kv, padding: as FlexSP's.

    Raises:
        ValueError: degree is none that FlexSP offers on the cluster, packing or padding is neither, or
            tried_micro_batch_counts is not a whole number of at least 1.
    """

    PUBLISHED: ClassVar[Published] = {
        "packing": PublishedValue("published", SOLVER),
        "padding": PublishedValue("published", PADDING),
    }

    cost: Cost
    degree: int | None = None
    packing: Literal["search", "published"] = "search"
    tried_micro_batch_counts: int = 5
    received_kv: Mode = "keep"
    padding: Padding = "none"
    objective: Objective = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_padding(self.padding, self.cost.model.mask)
        check_whole_number("system.tried_micro_batch_counts", self.tried_micro_batch_counts, 1)
        check_choice("system.packing", self.packing, ("search", "published"))
        sizes = group_degrees(self.cost)
        if self.degree is not None and (isinstance(self.degree, bool) or self.degree not in sizes):
            raise ValueError(f"system.degree is {self.degree!r}; it takes null or one of {', '.join(map(str, sizes))}")
        object.__setattr__(self, "objective", objective(self.cost, self.received_kv))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns one plan a micro-batch: the slowest first, or, as published, in the order in which they were
        packed."""
        given = PaddedLengths.of(batch, self.padding, self.cost)
        parts = self.micro_batches(given.lengths)
        return tuple(micro_batch_plan(part, given, self.cost, self.objective, self.received_kv) for part in parts)

    def micro_batches(self, lengths: Ints) -> tuple[MicroBatch, ...]:
        """Returns the micro-batches of the degree whose predicted seconds are least. lengths: int64 [n]."""
        longest = int(lengths.max())
        allowed = [k for k, degree in enumerate(self.objective.degree.tolist()) if self.degree in (None, degree)]
        of = self.objective.holding(longest, allowed[-1])
        found = [self._parts(lengths, k, of) for k in allowed if longest <= of.capacity[k]]
        able = [parts for parts in found if parts is not None]
        return min(able, key=lambda parts: total_seconds((part.found for part in parts), of))

    def _parts(self, lengths: Ints, index: int, of: Objective) -> tuple[MicroBatch, ...] | None:
        """Returns the best micro-batches with all groups of one degree, or the published ones."""
        if self.packing == "published":
            return published_groups(lengths, index, of)
        counts = equal_counts(of)[index]

        def choose(some: Ints, improve: bool) -> FoundGroups | None:
            packed = pack_groups(some, counts, of, improve)
            return FoundGroups(packed, 0.0, f"degree {of.degree[index]}") if packed.seconds < np.inf else None

        return split_batch(
            lengths, of, self.tried_micro_batch_counts, lambda x: choose(x, False), lambda x: choose(x, True)
        )
