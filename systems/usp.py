"""USP: heads and context in two dimensions, the factorisation chosen for every batch.

Of N ranks, groups of U exchange heads (Ulysses) and kv goes round rings of N / U such groups. Every U that
divides the ranks and leaves each a head is a candidate; zbench.systems.common.grids predicts which is fastest.
Neighbours exchange heads, as in USP's default. Source: Fang and Zhao 2024 (arXiv 2405.07719).
"""

from dataclasses import dataclass, field

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.units import with_noun
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Plan
from zbench.systems.common.grids import Grid, Priced, best_grids, exchange_degrees, grid_prices, head_first
from zbench.systems.common.micro_batches import fitting


@dataclass(frozen=True, slots=True)
class USP:
    """USP as a system: heads and context in two dimensions over all ranks. ulysses_degree: ranks that exchange heads;
    None: the fastest predicted. received_kv: what becomes of it until the backward.

    Raises:
        ValueError: ulysses_degree is above the number of heads or does not divide the ranks.
    """

    cost: Cost
    ulysses_degree: int | None = None
    received_kv: Mode = "carry"
    candidates: list[Priced] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_degree("system.ulysses_degree", self.ulysses_degree, self.cost)
        ranks, heads = self.cost.cluster.num_ranks, self.cost.model.num_heads
        chosen = exchange_degrees(ranks, heads) if self.ulysses_degree is None else [self.ulysses_degree]
        grids = [Grid(head_first(ranks, degree), ranks // degree) for degree in chosen]
        object.__setattr__(self, "candidates", grid_prices(grids, self.cost))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        lengths, grids = batch.lengths, self.candidates
        return fitting(lengths, self.cost, lambda seqs, part: best_grids(lengths, seqs, grids, part, self.received_kv))


def check_degree(key: str, degree: object, cost: Cost) -> None:
    """Raises ValueError, which names the key, unless `degree` is None or one of the degrees that fit."""
    ranks, heads = cost.cluster.num_ranks, cost.model.num_heads
    if degree is not None and (isinstance(degree, bool) or degree not in exchange_degrees(ranks, heads)):
        raise ValueError(
            f"{key} is {degree!r}; it takes a divisor of the {with_noun(ranks, cost.owner)} of at most {heads} "
            f"(each needs a head), or null"
        )
