"""FlexSP's micro-batches: where to cut a batch, longest sequence first, into parts that memory allows.

FlexSP sorts by length and cuts so that the largest micro-batch has as few tokens as possible, for every
number of micro-batches from the least that can hold the tokens to a few more; the number with the least time
is taken (arXiv 2412.01523, section 5). Equal tokens are not equal time, so here the cuts of the best two numbers
are then shifted for as long as that gains.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zbench.plans.plan import Ints
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.search import FoundGroups

Choose = Callable[[Ints], FoundGroups | None]  # groups for one micro-batch: lengths, longest first
SHIFTED = 2  # of the numbers of micro-batches tried, the best, whose cuts are shifted
SHIFTS = (0.2, 0.1, 0.05, 0.025)  # by how much of a micro-batch's share of the tokens a cut is moved


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch and the groups found for it. sequences: int64 [n], of the batch, longest first. found: their
    groups."""

    sequences: Ints
    found: FoundGroups


def split_batch(
    lengths: Ints, of: Objective, trials: int, glance: Choose, choose: Choose
) -> tuple[MicroBatch, ...] | None:
    """Returns the micro-batches with the least time in all, the slowest first; None if `glance` finds none at all.

    trials: how many numbers of micro-batches are tried, from the least that memory allows. glance: what cuts are
    compared by; choose: the groups in the end, where it finds any better.
    """
    order = np.argsort(-lengths, kind="stable")
    cutter = _Cutter(lengths[order], of, glance, {})
    starts = _best_numbers(cutter, of, trials)
    if not starts:
        return None
    edges = min((cutter.shifted(each) for each in starts), key=cutter.seconds)
    parts = [
        MicroBatch(order[a:b], _better(cutter.found(a, b), choose(cutter.lengths[a:b]))) for a, b in pairwise(edges)
    ]
    return tuple(sorted(parts, key=lambda part: -part.found.packed.seconds))


def total_seconds(parts: Iterable[FoundGroups | None], of: Objective) -> float:
    """Returns the seconds of micro-batches one after another, infinite if one has no groups."""
    each = of.collectives.micro_batch_seconds
    return sum(np.inf if part is None else each(part.packed.seconds) for part in parts)


def _better(one: FoundGroups | None, other: FoundGroups | None) -> FoundGroups:
    """Returns the groups that end first, and the bound of `other`, which looked for one."""
    assert one is not None
    if other is None or other.packed.seconds <= one.packed.seconds:
        return other or one
    return replace(one, bound_seconds=min(other.bound_seconds, one.packed.seconds))


def _best_numbers(cutter: "_Cutter", of: Objective, trials: int) -> list[list[int]]:
    """Returns where to cut, for the best few numbers of micro-batches; more than `trials` are tried until one fits."""
    room = int((of.capacity // of.degree).max()) * of.num_ranks
    most = len(cutter.lengths)
    least = min(-(-int(cutter.ends[-1]) // room), most)
    tried = [cutter.even(count) for count in range(least, min(least + trials - 1, most) + 1)]
    count = least + trials
    while all(cutter.seconds(each) == np.inf for each in tried) and len(tried[-1]) <= most:
        tried.append(cutter.even(count) if count < most else list(range(most + 1)))
        count += max(1, count // 4)
    fitting = [each for each in tried if cutter.seconds(each) < np.inf]
    return sorted(fitting, key=cutter.seconds)[:SHIFTED]


@dataclass(slots=True)
class _Cutter:
    """The sorted lengths, and what has been found for stretches of them."""

    lengths: Ints
    of: Objective
    choose: Choose
    known: dict[tuple[int, int], FoundGroups | None]

    @property
    def ends(self) -> Ints:
        return np.asarray(np.cumsum(self.lengths), np.int64)

    def found(self, begin: int, end: int) -> FoundGroups | None:
        if (begin, end) not in self.known:
            self.known[begin, end] = self.choose(self.lengths[begin:end])
        return self.known[begin, end]

    def seconds(self, edges: list[int]) -> float:
        parts = [self.found(begin, end) for begin, end in pairwise(edges)]
        return total_seconds(parts, self.of)

    def even(self, count: int) -> list[int]:
        """Cuts the batch into at most `count` stretches, the largest with as few tokens as possible (the optimum of
        FlexSP's DP)."""
        ends = self.ends
        low, high = max(int(self.lengths[0]), -(-int(ends[-1]) // count)), int(ends[-1])
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(_filled(ends, middle, count)) <= count + 1 else (middle + 1, high)
        return _filled(ends, low, count)

    def shifted(self, edges: list[int]) -> list[int]:
        """Returns `edges` after its inner ones were moved, one at a time, for as long as that gains."""
        ends = np.concatenate([[0], self.ends])
        for share in SHIFTS:
            step = share * ends[-1] / (len(edges) - 1)
            for i in range(1, len(edges) - 1):
                for sign in (-1, 1):
                    while True:
                        moved = int(np.searchsorted(ends, ends[edges[i]] + sign * step))
                        tried = [*edges[:i], min(max(moved, edges[i - 1] + 1), edges[i + 1] - 1), *edges[i + 1 :]]
                        if not self.seconds(tried) < self.seconds(edges):
                            break
                        edges = tried
        return edges


def _filled(ends: Ints, room: int, count: int) -> list[int]:
    """Cuts stretches of at most `room` tokens, each as long as it can be; stops after one more than `count`."""
    edges, done = [0], 0
    while edges[-1] < len(ends) and len(edges) <= count + 1:
        edges.append(int(np.searchsorted(ends, done + room, side="right")))
        done = int(ends[edges[-1] - 1])
    return edges
