"""FlexSP's choice of groups for one micro-batch: a search over the number of groups of each degree. Pure: no torch.

The integer programme of the paper has a copy of every variable for each possible group, and groups of one
degree are interchangeable. Here only their numbers are searched: from where a relaxation puts them, and from
equal groups of each degree (the paper's warm start), splits and merges are tried while the packing they allow
ends earlier; the best few are packed with moves and swaps. No clock and no random number is used, so a result
is a function of (lengths, objective) alone; a lower bound tells how far from the best it can be at most.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from systems.flexsp_bound import bound_seconds, likely_counts
from systems.flexsp_cost import Objective
from systems.flexsp_pack import Packed, pack
from zbench.plan import Ints

SLOWER = (0.0, 0.05, 0.1, 0.2)  # starts: the relaxation's groups if all may end this much later than it says
EXPANDED = 6  # choices, from each start, whose neighbours are tried
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
    best = min(equal_counts(of), key=tried.seconds)
    most = tried.seconds(best) if tried.seconds(best) < np.inf else of.seconds(lengths, len(of.degree) - 1)
    likely = [likely_counts(lengths, of, most, slower) for slower in SLOWER]
    for start in [best, *likely]:
        tried.explored(start)
    best = tried.best(1)[0]
    if tried.seconds(best) == np.inf:
        return None
    bound = bound_seconds(lengths, of, tried.seconds(best))
    packed = pack(lengths, best, of, True)
    for counts in tried.best(KEPT):
        if packed.seconds <= bound * (1 + CLOSE):
            break
        packed = min(packed, pack(lengths, counts, of, True), key=lambda each: each.seconds)
    return Found(packed, min(bound, packed.seconds), "search")


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

    def explored(self, start: Ints) -> None:
        """Tries what is one change away from `start`, then from the best found from there, EXPANDED times."""
        key = tuple(start.tolist())
        queue, seen = [(self.seconds(start), key)], {key}
        for _ in range(EXPANDED):
            if not queue or self.work <= 0:
                return
            for near in self._changed(np.array(heappop(queue)[1])):
                key = tuple(near.tolist())
                if key not in seen:
                    seen.add(key)
                    heappush(queue, (self.seconds(near), key))

    def _changed(self, counts: Ints) -> list[Ints]:
        """Every choice with one group fewer and its ranks in equal groups of a smaller degree, or the other way."""
        found = []
        for j in range(len(counts)):
            for k in range(j + 1, len(counts)):
                parts = int(self.of.degree[k] // self.of.degree[j])
                for sign, enough in ((1, counts[k] >= 1), (-1, counts[j] >= parts)):
                    if enough:
                        near = counts.copy()
                        near[k] -= sign
                        near[j] += sign * parts
                        found.append(near)
        return found
