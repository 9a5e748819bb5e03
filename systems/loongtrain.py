"""LoongTrain: heads x context with a double ring, and a choice of which dimension stays inside nodes.

2D-Attention exchanges heads between d_hp ranks and passes kv round the d_cp others. Head-first placement makes
neighbours exchange heads, context-first makes them pass kv on. The ring is double: inner rings of `inner` ranks
go round in turn with one hop of the outer ring, whose messages all inner positions send at once - over every NIC
where an inner ring is a node. Source: Gu et al. 2024 (arXiv 2406.18485).
"""

from dataclasses import dataclass, field
from typing import Literal

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import is_whole
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Plan
from zbench.systems.common.grids import (
    Grid,
    Priced,
    best_grids,
    context_first,
    exchange_degrees,
    grid_prices,
    head_first,
)
from zbench.systems.common.micro_batches import fitting
from zbench.systems.usp import check_degree

PLACEMENTS = {"head": head_first, "context": context_first}


@dataclass(frozen=True, slots=True)
class LoongTrain:
    """LoongTrain as a system: a grid of heads x context, with a ring of rings. head_parallel_degree: ranks
    that exchange heads (d_hp). placement: "head" or "context" first. inner_ring_ranks: a divisor of the ring's ranks.
    None of any: what is predicted fastest, for every batch.

    Raises:
        ValueError: head_parallel_degree as USP's ulysses_degree; an unknown placement; an inner ring that divides the
            ring of no degree allowed.
    """

    cost: Cost
    head_parallel_degree: int | None = None
    placement: Literal["head", "context"] | None = None
    inner_ring_ranks: int | None = None
    received_kv: Mode = "carry"
    candidates: list[Priced] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_degree("system.head_parallel_degree", self.head_parallel_degree, self.cost)
        if self.placement is not None and self.placement not in PLACEMENTS:
            raise ValueError(f"system.placement is {self.placement!r}; it takes head, context or null")
        inner, ranks = self.inner_ring_ranks, self.cost.cluster.num_ranks
        if inner is not None and (not is_whole(inner) or not self.grids()):
            raise ValueError(
                f"system.inner_ring_ranks is {inner!r}; it takes a divisor of a ring's ranks ({ranks} over"
                " the degree), or null"
            )
        object.__setattr__(self, "candidates", grid_prices(self.grids(), self.cost))

    def grids(self) -> list[Grid]:
        """Lists every grid that the settings leave open; where both placements are the same one, only one of them."""
        ranks, heads = self.cost.cluster.num_ranks, self.cost.model.num_heads
        found = []
        for degree in (
            exchange_degrees(ranks, heads) if self.head_parallel_degree is None else [self.head_parallel_degree]
        ):
            rows = ranks // degree
            names = [self.placement] if self.placement else ["head", "context"]
            for name in names[:1] if min(degree, rows) == 1 else names:
                for inner in range(rows, 1 if rows > 1 else 0, -1):  # inner rings of one rank are the outer ring alone
                    if rows % inner == 0 and self.inner_ring_ranks in (None, inner):
                        found.append(Grid(PLACEMENTS[name](ranks, degree), inner))
        return found

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        lengths, grids = batch.lengths, self.candidates
        return fitting(lengths, self.cost, lambda seqs, part: best_grids(lengths, seqs, grids, part, self.received_kv))
