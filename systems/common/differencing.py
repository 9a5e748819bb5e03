"""Numbers dealt to k sets of about equal sums: the largest differencing method.

Karmarkar and Karp 1982 (The differencing method of set partitioning, UCB/CSD 82/113), for k sets as verl and slime
have it: every number, or every run of k numbers, begins as k sets of its own; the two collections whose largest and
smallest sums differ most become one, the largest set of the one with the smallest of the other, until one collection
is left. Ties are broken as theirs are, so that the sets are the same (verl/utils/seqlen_balancing.py, 1dda039b).
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

Set = tuple[int, int, tuple[int, ...]]  # sum, count, members: sets are compared in this order


class _Sets:
    """A collection of at most `most` sets that are not empty, the largest first; the others are empty."""

    __slots__ = ("most", "sets", "spread")

    def __init__(self, sets: list[Set], most: int) -> None:
        self.sets, self.most = sets, most
        self._order()

    def __lt__(self, other: "_Sets") -> bool:
        """Orders partial solutions for the heap: the wider spread comes first, of equally wide ones that with the
        larger set."""
        return (self.spread, self.sets[0]) > (other.spread, other.sets[0])

    def join(self, other: "_Sets") -> None:
        """Takes the other's sets, its largest together with the smallest here."""
        held = len(self.sets)
        for place, (total, count, members) in zip(range(self.most - 1, -1, -1), other.sets, strict=False):
            if place < held:
                mine = self.sets[place]
                self.sets[place] = (mine[0] + total, mine[1] + count, mine[2] + members)
            else:
                self.sets.append((total, count, members))
        self._order()

    def _order(self) -> None:
        self.sets.sort(reverse=True)
        self.spread = self.sets[0][0] - (self.sets[-1][0] if len(self.sets) == self.most else 0)


def balanced_sets(values: Sequence[int], k: int, equal_counts: bool) -> list[list[int]]:
    """Deals `values` (none negative) to k sets of about equal sums; returns the sets of indices, the largest sum first,
    every set ascending.

    equal_counts: as many numbers in every set; their number has to be a multiple of k. Else sets may be empty.
    """
    order = sorted((value, i) for i, value in enumerate(values))
    size = k if equal_counts else 1
    assert len(order) % size == 0, f"{len(order)} numbers for {k} sets of as many each"
    runs = (order[begin : begin + size] for begin in range(0, len(order), size))
    heap = [_Sets([(value, 1, (i,)) for value, i in run], k) for run in runs]
    heapify(heap)
    while len(heap) > 1:
        first = heappop(heap)
        first.join(heap[0])
        heapreplace(heap, first)
    sets = [sorted(members) for _, _, members in heap[0].sets] if heap else []
    return sets + [[] for _ in range(k - len(sets))]
