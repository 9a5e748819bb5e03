"""FlexSP's own way to choose groups: a mixed-integer programme over buckets of lengths, by HiGHS.

For every group that could exist (as many of each degree as there are ranks for) whether it does, and how many
sequences of each bucket it gets; the slowest group's seconds are minimised under memory and the number of ranks
(arXiv 2412.01523, equations 17 to 22, and Hetu-Galvatron's solver.py). A bucket's sequences count as its longest,
with buckets chosen by dynamic programming to add as few tokens as possible. Groups of one degree are put in order,
or the solver would prove the same thing once for each of their permutations. scipy's interface has no warm start:
the search's solution enters as an upper limit.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.pack import Packed


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the solver. nodes: of the branch and bound; seconds: of the clock, for when nodes take long - a run
    that reaches it may end differently elsewhere. buckets: of lengths.
    """

    nodes: int
    seconds: float
    buckets: int


@dataclass(frozen=True, slots=True)
class Solved:
    """The outcome of one call of the solver. packed: what the solver found, None if nothing within the upper limit.
    ended: "optimal" (of the bucketed programme), "infeasible" (nothing is better than the start), "nodes" or "seconds".
    took: seconds of this machine.
    """

    packed: Packed | None
    ended: str
    took: float


def buckets(lengths: Ints, count: int) -> Ints:
    """Chooses the buckets of lengths with the fewest tokens if every length counts as its bucket's upper end: returns
    int64 [at most count], these ends, longest first.

    lengths: longest first. err[k][q] = min_j err[j][q - 1] + sum_{i in (j, k]} (s_k - s_i), FlexSP's recursion.
    """
    values, number = np.unique(lengths, return_counts=True)
    found: Ints = values[_ends(values, number, min(count, len(values)))][::-1]
    return found


@nb.njit(**ENTERED)
def _ends(values, number, count):  # type: ignore[no-untyped-def]
    n = len(values)
    many, tokens = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        many[i + 1] = many[i] + number[i]
        tokens[i + 1] = tokens[i] + number[i] * values[i]
    error = np.full((count + 1, n + 1), np.inf)
    error[0, 0] = 0.0
    last = np.zeros((count + 1, n + 1), np.int64)
    for q in range(1, count + 1):
        for k in range(1, n + 1):
            for j in range(k):
                total = error[q - 1, j] + values[k - 1] * (many[k] - many[j]) - (tokens[k] - tokens[j])
                if total < error[q, k]:
                    error[q, k], last[q, k] = total, j
    ends, k = np.zeros(count, np.int64), n
    for q in range(count, 0, -1):
        ends[q - 1], k = k - 1, last[q, k]
    return ends


def solve(lengths: Ints, of: Objective, start: Packed, limits: Limits) -> Solved:
    """Returns groups for `lengths` (longest first) that end no later than `start`, if the solver finds any in its
    limits."""
    from scipy.optimize import milp  # half a second to import, for those who ask for it

    began = perf_counter()
    ends = buckets(lengths, limits.buckets)
    bucket = len(ends) - 1 - np.searchsorted(ends[::-1], lengths)
    size = np.bincount(bucket, minlength=len(ends))
    index = np.repeat(np.arange(len(of.degree)), of.num_ranks // of.degree)[::-1]  # the largest groups first
    upper = _bucketed(ends[bucket], start, of)
    options = {"time_limit": limits.seconds, "node_limit": limits.nodes, "mip_rel_gap": 1e-4}
    done = milp(**_programme(ends, size, index, of, upper), options=options)
    took = perf_counter() - began
    ended = {0: "optimal", 2: "infeasible"}.get(done.status, "seconds" if took >= limits.seconds else "nodes")
    if done.x is None:
        return Solved(None, ended, took)
    held = np.round(done.x[1 + len(index) :]).astype(np.int64).reshape(len(ends), len(index))
    return Solved(_unpacked(lengths, bucket, held, index, of), ended, took)


def _bucketed(lengths: Ints, start: Packed, of: Objective) -> float:
    """Returns the seconds of `start` with lengths rounded up; infinite where they then break its memory."""
    seconds = [0.0]
    for g in np.unique(start.group):
        own, k = lengths[start.group == g], int(start.index[g])
        seconds.append(of.seconds(own, k) if own.sum() <= of.capacity[k] else np.inf)
    return max(seconds)


def _programme(ends: Ints, size: Ints, index: Ints, of: Objective, upper: float) -> dict[str, Any]:
    """Writes the mixed-integer programme for scipy's `milp`; its columns are the seconds, whether each group exists,
    and the sequences of each bucket in each group (bucket by bucket)."""
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.sparse import coo_matrix

    num, groups = len(ends), len(index)
    s = ends[:, None].astype(np.float64)
    own = of.square[index] * s * s + of.linear[index] * s  # [buckets, groups]
    allowed = (own + of.fixed[index] <= upper) & (s <= of.capacity[index])
    q, g = (axis.reshape(-1) for axis in np.indices((num, groups)))
    held, exists, every = 1 + groups + np.arange(num * groups), 1 + np.arange(groups), np.arange(groups)
    same = np.flatnonzero(index[1:] == index[:-1])  # of two groups of a degree the first exists if one does
    one = np.ones(groups)
    # blocks of rows: (row, column, value) triples and the limits of the rows
    time = (np.r_[g, every, every], np.r_[held, exists, 0 * every], np.r_[own.reshape(-1), of.fixed[index], -one])
    memory = (np.r_[g, every], np.r_[held, exists], np.r_[ends[q], -of.capacity[index]])
    ranks = (0 * every, exists, of.degree[index])
    order = (np.r_[same, same], np.r_[exists[same], exists[same + 1]], np.r_[-np.ones(len(same)), np.ones(len(same))])
    placed = (q, held, np.ones(num * groups))
    rows: list[tuple[Any, int, Any, Any]] = [
        (time, groups, -np.inf, 0.0),
        (memory, groups, -np.inf, 0.0),
        (ranks, 1, -np.inf, of.num_ranks),
    ]
    rows += [(order, groups, -np.inf, 0.0), (placed, num, size, size)]
    columns = 1 + groups + num * groups
    constraints = [
        LinearConstraint(coo_matrix((value, (row, column)), shape=(count, columns)).tocsr(), low, high)
        for (row, column, value), count, low, high in rows
    ]
    most = np.r_[upper, one, np.where(allowed, size[:, None], 0).reshape(-1)]
    whole = np.r_[0, np.ones(columns - 1)]
    goal: Floats = np.r_[1.0, np.zeros(columns - 1)]
    return {"c": goal, "integrality": whole, "bounds": Bounds(0, most), "constraints": constraints}


def _unpacked(lengths: Ints, bucket: Ints, held: Ints, index: Ints, of: Objective) -> Packed:
    """Puts real sequences in the place of the bucketed ones: of a bucket the longest first to the groups in order."""
    group = np.zeros(len(lengths), np.int64)
    for q in range(len(held)):
        group[bucket == q] = np.repeat(np.arange(len(index)), held[q])
    seconds = [of.seconds(lengths[group == g], int(index[g])) for g in np.unique(group)]
    used = np.unique(group)
    return Packed(max(seconds), index[used], np.searchsorted(used, group))
