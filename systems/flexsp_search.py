"""FlexSP's choice of groups for one micro-batch: a search over the number of groups of each degree. Pure: no torch.

The integer programme of the paper has a copy of every variable for each possible group, and groups of one
degree are interchangeable. Here only their numbers are searched: from where a relaxation puts them, and from
equal groups of each degree (the paper's warm start), splits and merges are tried while the packing they allow
ends earlier; the best few are packed with moves and swaps. No clock and no random number is used, so a result
is a function of (lengths, objective) alone; a lower bound tells how far from the best it can be at most.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from systems.flexsp_bound import bound_seconds, likely_counts
from systems.flexsp_cost import Objective
from systems.flexsp_pack import Packed, pack
from zbench.plan import Ints

KEPT = 8  # choices that are packed with moves and swaps
WORK = 200_000_000  # sequences times groups over all packings: the search stops there (1,024 ranks reach it)
CLOSE = 1e-3  # relative to the bound; nearer is near enough


@dataclass(frozen=True, slots=True)
class Found:
    """packed: the groups of a micro-batch. bound_seconds: no packing of it ends earlier (0: unknown). method: how."""

    packed: Packed
    bound_seconds: float
    method: str


def equal_counts(of: Objective) -> list[Ints]:
    """As many groups of one degree as there are ranks for, for each degree."""
    one = np.eye(len(of.degree), dtype=np.int64)
    return [one[i] * (of.num_ranks // int(of.degree[i])) for i in range(len(of.degree))]


def search(lengths: Ints, of: Objective) -> Found | None:
    """The best groups found for `lengths` (int64 [n], longest first); None if none were found that memory allows."""
    tried = _Tried(lengths, of, {}, WORK)
    starts = [counts for counts in equal_counts(of) if tried.seconds(counts) < np.inf]
    best = min(starts, key=tried.seconds, default=None)
    most = tried.seconds(best) if best is not None else _slowest(lengths, of)
    likely = likely_counts(lengths, of, most)
    best = likely if best is None or tried.seconds(likely) < tried.seconds(best) else best
    best = tried.climbed(best)
    if tried.seconds(best) == np.inf:
        return None
    bound = bound_seconds(lengths, of, tried.seconds(best))
    packed = pack(lengths, best, of, True)
    for counts in tried.best(KEPT):
        if packed.seconds <= bound * (1 + CLOSE):
            break
        packed = min(packed, pack(lengths, counts, of, True), key=lambda each: each.seconds)
    return Found(packed, min(bound, packed.seconds), "search")


def _slowest(lengths: Ints, of: Objective) -> float:
    """Everything in one group of the largest degree: no packing needs to be slower."""
    return of.seconds(lengths, len(of.degree) - 1)


@dataclass(slots=True)
class _Tried:
    """Choices of groups by their numbers, and the seconds of their packing."""

    lengths: Ints
    of: Objective
    known: dict[tuple[int, ...], float]
    work: int

    def seconds(self, counts: Ints) -> float:
        key = tuple(counts.tolist())
        if key not in self.known:
            self.known[key] = pack(self.lengths, counts, self.of, False).seconds
            self.work -= len(self.lengths) * int(counts.sum())
        return self.known[key]

    def best(self, count: int) -> list[Ints]:
        order = sorted(self.known, key=lambda key: (self.known[key], key))
        return [np.array(key) for key in order[:count]]

    def climbed(self, counts: Ints) -> Ints:
        """`counts` changed by one split or merge, or two, for as long as that ends earlier."""
        while self.work > 0:
            near = self._changed(counts)
            better = min(near, key=self.seconds, default=counts)
            if not self.seconds(better) < self.seconds(counts):
                again = chain.from_iterable(self._changed(each) for each in near)
                better = next((each for each in again if self._earlier(each, counts)), counts)
                if better is counts:
                    return counts
            counts = better
        return counts

    def _earlier(self, one: Ints, other: Ints) -> bool:
        return self.work > 0 and self.seconds(one) < self.seconds(other)

    def _changed(self, counts: Ints) -> list[Ints]:
        """Every choice one split of a group into the next smaller degree, or one merge, away."""
        found = []
        for k in range(1, len(counts)):
            parts = int(self.of.degree[k] // self.of.degree[k - 1])
            for sign, enough in ((1, counts[k] >= 1), (-1, counts[k - 1] >= parts)):
                if enough:
                    near = counts.copy()
                    near[k] -= sign
                    near[k - 1] += sign * parts
                    found.append(near)
        return found
