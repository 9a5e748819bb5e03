"""ByteScale's micro-batches: filled within memory, or with pipeline stages of equal work.

Stages are at work on different micro-batches at a time (zbench.cost.ranks_of_gpus), so one that takes longer than its
neighbours has the other stages wait. PP-balance makes micro-batches that take the same time on every rank: buckets of
similar lengths and equal work, as ByteScale has them (arXiv 2502.21231, section 5 and algorithm 2), or equal work of
all lengths. What differs is told in docs/systems/bytescale.md.
"""

from collections.abc import Callable

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED
from zbench.passes.reverse import Mode
from zbench.plans.plan import Ints
from zbench.systems.bytescale.balance import RingAssignment, share_seconds

NUMBERS = (1, 2, 3, 4, 8)  # times the stages: of micro-batches, tried


def split_by_room(lengths: Ints, layout: RingAssignment, num_ranks: int, room: int) -> list[Ints]:
    """Divides sequences into micro-batches of at most `room` tokens a rank (or a larger share alone), the largest
    first.

    Each goes into the first micro-batch where all its ranks have room, so ranks with more to do are in more of them.
    """
    share = -(-lengths // layout.degree)
    turn = _first_fit(np.lexsort((-share, -layout.degree)), share, layout.degree, layout.ranks, num_ranks, room)
    return [np.flatnonzero(turn == t) for t in range(int(turn.max()) + 1)]


@nb.njit(**ENTERED)
def _first_fit(order, share, degree, ranks, num_ranks, room):  # type: ignore[no-untyped-def]
    offsets = np.cumsum(degree) - degree
    turn = np.zeros(len(share), np.int64)
    held = np.zeros((4, num_ranks), np.int64)
    count = 0
    for seq in order:
        on = ranks[offsets[seq] : offsets[seq] + degree[seq]]
        at = 0
        while at < count and held[at][on].max() + share[seq] > room:
            at += 1
        if at == count:
            count += 1
            if count > len(held):
                held = np.concatenate((held, np.zeros_like(held)))
        held[at][on] += share[seq]
        turn[seq] = at
    return turn


def micro_batch_counts(lengths: Ints, cost: Cost) -> list[int]:
    """Lists the numbers of micro-batches that are tried, ascending: the factors NUMBERS times the number of stages."""
    return sorted({min(times * cost.pp, len(lengths)) for times in NUMBERS})


def even(lengths: Ints, lay: Callable[[Ints], RingAssignment], cost: Cost, backward: Mode) -> tuple[str, list[Ints]]:
    """Divides sequences into micro-batches of about equal work, so that they are done first: returns (which way, the
    sequences of every micro-batch). All numbers of micro-batches and both ways, `alike` and `even_parts`, are tried,
    each laid by `lay`."""
    work = share_seconds(lengths, np.ones_like(lengths), cost, backward)
    ways = (("similar lengths", alike), ("all lengths", even_parts))
    tried = [(name, way(lengths, work, count)) for count in micro_batch_counts(lengths, cost) for name, way in ways]
    busiest = [np.array([lay(lengths[part]).busiest for part in found]) for _, found in tried]
    return tried[int(np.argmin([staged_seconds(seconds, cost) for seconds in busiest]))]


def alike(lengths: Ints, work: Floats, count: int) -> list[Ints]:
    """Returns buckets of similar lengths and about equal work, at most `count`."""
    order = np.argsort(lengths, kind="stable")
    middle = np.cumsum(work[order]) - work[order] / 2
    bucket = np.minimum((middle / work.sum() * count).astype(np.int64), count - 1)
    return [order[bucket == b] for b in np.unique(bucket)]


def even_parts(lengths: Ints, work: Floats, count: int) -> list[Ints]:
    """Returns `count` parts of about equal work, the longest sequences dealt first, each to the part with the least."""
    part, held = np.zeros(len(lengths), np.int64), np.zeros(count)
    for seq in np.argsort(-lengths, kind="stable").tolist():
        part[seq] = held.argmin()
        held[part[seq]] += work[seq]
    return [np.flatnonzero(part == p) for p in range(count)]


def filled_seconds(lengths: Ints, layout: RingAssignment, room: int, cost: Cost, backward: Mode) -> float:
    """Returns the seconds of a layout whose sequences are divided by `split_by_room`, as `staged_seconds` counts
    them."""
    ranks, load = cost.cluster.num_ranks, share_seconds(lengths, layout.degree, cost, backward)
    found = split_by_room(lengths, layout, ranks, room)
    turn = np.zeros(len(lengths), np.int64)
    for number, seqs in enumerate(found):
        turn[seqs] = number
    place = np.repeat(turn, layout.degree) * ranks + layout.ranks
    busy = np.bincount(place, np.repeat(load, layout.degree), len(found) * ranks).reshape(len(found), ranks)
    return staged_seconds(busy.max(axis=1), cost)


def staged_seconds(busiest: Floats, cost: Cost) -> float:
    """Returns the seconds of a layer until the last stage is done, if ranks wait for each other in every micro-batch,
    as rings have them do. busiest: seconds of every micro-batch's busiest rank."""
    return float(busiest.sum() + (cost.pp - 1) * busiest.max())
