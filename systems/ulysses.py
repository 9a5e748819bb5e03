"""Ulysses: all-to-all between sequence-parallel and head-parallel layouts.

Every rank holds an even share of the tokens outside attention and, inside it, some heads of all
tokens. A rank needs at least one query head, which limits the degree; with more ranks than heads,
groups of as many ranks as there are heads (or the largest divisor of the ranks below it) do the
all-to-all, and kv goes round a ring of groups (USP, Fang and Zhao 2024, arXiv 2405.07719). Heads
that do not divide evenly are dealt out unevenly, as DeepSpeed's uneven all-to-all does; with fewer
kv heads than ranks, kv heads are sent to every rank that reads them. In slices, a rank attends with the
queries of one run of ranks after another, outputs on their way home beside the next attend.
Sources: Jacobs et al. 2023 (arXiv 2309.14509); slices after CommFuse's all-to-all, which has a slice for
each destination (arXiv 2604.24013, from digests of it).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number, is_whole
from zbench.describe.units import with_noun
from zbench.interfaces.protocols import Size
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Ints, Plan


@dataclass(frozen=True, slots=True)
class Ulysses:
    """Ulysses as a system: groups exchange sequence shards for heads, and where heads are too few, groups form a ring.
    degree: ranks of an all-to-all; None: as many as heads allow.

    received_kv: what becomes of it until the backward; Ulysses keeps it, as its inputs to attention are local.
    slices: runs of ranks whose queries are attended with one after another, at most one a rank; 1: all at once.

    Raises:
        ValueError: degree is above the number of heads or does not divide the ranks, slices is no number of runs, or
            above 1 where groups form a ring.
    """

    cost: Cost
    degree: int | None = None
    received_kv: Mode = "keep"
    slices: int = 1

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        ranks, heads = self.cost.cluster.num_ranks, self.cost.model.num_heads
        if self.degree is not None and not (
            is_whole(self.degree) and 1 <= self.degree <= heads and ranks % self.degree == 0
        ):
            raise ValueError(
                f"system.degree is {self.degree!r}; it takes a divisor of the {with_noun(ranks, self.cost.owner)} "
                f"of at most {heads}, as each needs a head"
            )
        check_whole_number("system.slices", self.slices, 1, self._degree)
        if self.slices > 1 and self._degree < ranks:
            raise ValueError(
                f"system.slices is {self.slices}; it takes 1 where kv goes round a ring, as here: an all-to-all has "
                f"{self._degree} of the {with_noun(ranks, self.cost.owner)}"
            )

    @property
    def _degree(self) -> int:
        ranks, heads = self.cost.cluster.num_ranks, self.cost.model.num_heads
        return self.degree or max(d for d in range(1, min(ranks, heads) + 1) if ranks % d == 0)

    def size(self, lengths: Ints, count: int) -> Size:
        """Estimates the size of a step's plans: every rank exchanges q, kv and o with its group, and keys and values go
        round a ring of all groups.

        A batch of few tokens leaves ranks without any, and operations out.
        """
        ranks, degree = self.cost.cluster.num_ranks, self._degree
        a_rank = 3 * (degree - 1) + 2 * (ranks // degree) - 1 + self.slices - 1
        is_full = count * float(lengths.mean()) >= 2 * ranks
        return Size(operations=2 * ranks * a_rank if is_full else 2, pieces=count)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, count = self.cost.cluster.num_ranks, len(batch.lengths)
        builder = Builder(batch.lengths, ranks, self.cost.model.num_heads, self.cost.model.mask)
        grid = np.arange(ranks).reshape(1, -1, self._degree)
        ulysses_ring(builder, np.arange(count), np.zeros(count, np.int64), grid, slices=self.slices)
        return (reverse(builder.build(), self.received_kv),)
