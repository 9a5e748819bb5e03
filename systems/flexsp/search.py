"""FlexSP's choice of groups for one micro-batch: a search over the number of groups of each degree.

The integer programme of the paper has a copy of every variable for each possible group, and groups of one
degree are interchangeable. Here only their numbers are searched: from where a relaxation puts them, and from
equal groups of each degree (the paper's warm start), splits and merges are tried while the packing they allow
ends earlier; the best few are packed with moves and swaps. No clock and no random number is used, so a result
is a function of (lengths, objective) alone; a lower bound tells how far from the best it can be at most.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from zbench.plans.plan import Ints
from zbench.systems.flexsp.bound import likely_counts, micro_batch_bound
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.pack import Packed, pack_groups

SLOWER = (0.0, 0.05, 0.1, 0.2)  # starts: the relaxation's groups if all may end this much later than it says
EXPANDED = 6  # choices, from each start, whose neighbours are tried
KEPT = 8  # choices that are packed with moves and swaps
WORK, GLANCE = 30_000_000, 1_000_000  # sequences times degrees over all packings: there a search or glance stops
GLANCED = 3  # as EXPANDED, for a glance
GLANCE_FITTING = 100_000  # sequences times groups up to which a glance packs with moves and swaps
FITTING = 5_000_000  # sequences times groups over all choices in KEPT but one
CLOSE = 1e-3  # relative to the bound; nearer is near enough


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The groups found for a micro-batch, and how they were found. packed: the groups of a micro-batch. bound_seconds:
    no packing of it ends earlier (0: unknown).

    method: how they were found, in words. solver_seconds: of this machine's clock, 0 where no solver was asked.
    """

    packed: Packed
    bound_seconds: float
    method: str
    solver_seconds: float = 0.0


def equal_counts(of: Objective) -> list[Ints]:
    """Returns, for each degree, the counts of a choice with groups of that degree alone: as many as there are ranks
    for."""
    one = np.eye(len(of.degree), dtype=np.int64)
    return [one[i] * (of.num_ranks // int(of.degree[i])) for i in range(len(of.degree))]


def glance(lengths: Ints, of: Objective) -> FoundGroups | None:
    """Returns good groups for `lengths`, quickly found, by which stretches are compared when a batch is cut."""
    tried, best = _started(lengths, of, GLANCE)
    for start in [best, *tried.starts]:
        tried.explored(start, GLANCED)
    best = tried.best(1)[0]
    if tried.seconds(best) == np.inf:
        return None
    return FoundGroups(pack_groups(lengths, best, of, len(lengths) * int(best.sum()) < GLANCE_FITTING), 0.0, "glance")


def search_groups(lengths: Ints, of: Objective) -> FoundGroups | None:
    """Returns the best groups found for `lengths` (int64 [n], longest first); None if none were found that memory
    allows."""
    # Numbers of groups of each degree, by a packing without moves; more are tried by splitting and merging.
    tried, best = _started(lengths, of, WORK)
    for start in [best, *tried.starts]:
        tried.explored(start, EXPANDED)
    best = tried.best(1)[0]
    if tried.seconds(best) == np.inf:
        return None
    # Certificate; then full packings of the best few, until one is as good as proven.
    bound = micro_batch_bound(lengths, of, tried.seconds(best))
    packed = pack_groups(lengths, best, of, True)
    kept = min(KEPT, 1 + FITTING // (len(lengths) * int(best.sum())))
    for counts in tried.best(kept):
        if packed.seconds <= bound * (1 + CLOSE):
            break
        packed = min(packed, pack_groups(lengths, counts, of, True), key=lambda each: each.seconds)
    return FoundGroups(packed, min(bound, packed.seconds), "search")


def _started(lengths: Ints, of: Objective, work: int) -> tuple["_Tried", Ints]:
    """Tries equal groups and those of the relaxation; returns all that was tried and the best of them."""
    tried = _Tried(lengths, of, {}, [], work)
    equal = min(equal_counts(of), key=tried.seconds)
    most = tried.seconds(equal) if tried.seconds(equal) < np.inf else of.seconds(lengths, len(of.degree) - 1)
    tried.starts = [likely_counts(lengths, of, most, slower) for slower in SLOWER]
    return tried, min([equal, *tried.starts], key=tried.seconds)


@dataclass(slots=True)
class _Tried:
    """Choices of groups by their numbers, and the seconds of their packing."""

    lengths: Ints
    of: Objective
    known: dict[tuple[int, ...], float]
    starts: list[Ints]
    work: int

    def seconds(self, counts: Ints) -> float:
        key = tuple(counts.tolist())
        if key not in self.known:
            self.known[key] = pack_groups(self.lengths, counts, self.of, False).seconds
            self.work -= len(self.lengths) * len(counts)
        return self.known[key]

    def best(self, count: int) -> list[Ints]:
        order = sorted(self.known, key=lambda key: (self.known[key], key))
        return [np.array(key) for key in order[:count]]

    def explored(self, start: Ints, times: int) -> None:
        """Tries what is one change away from `start`, then from the best found from there, and so on."""
        key = tuple(start.tolist())
        queue, seen = [(self.seconds(start), key)], {key}
        for _ in range(times):
            if not queue:
                return
            for near in self._changed(np.array(heappop(queue)[1])):
                key = tuple(near.tolist())
                if key not in seen and self.work > 0:
                    seen.add(key)
                    heappush(queue, (self.seconds(near), key))

    def _changed(self, counts: Ints) -> list[Ints]:
        """Returns every choice with one group fewer and its ranks in equal groups of a smaller degree, or the other
        way."""
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
