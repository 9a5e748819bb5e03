"""Items into bins of ranks: least loaded first, then moves and swaps, within each rank's memory.

Longest processing time first (Graham 1969, doi 10.1137/0117039) leaves at most 4/3 - 1/(3 ranks) of the best
largest load where memory does not bind; moving or swapping items of the fullest rank then takes most of the rest.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints

TRIES = 400  # most moves and swaps: each lowers the fullest rank, and a batch of a few thousand items needs far fewer


def bins(load: Floats, tokens: Ints, num_ranks: int, capacity: int) -> Ints:
    """Deals items to ranks so that the largest summed load is small and no rank is above `capacity` tokens; returns
    int64 [n], the rank of every item.

    Where that is impossible an item goes to the rank with the fewest tokens: the batch does not fit, and shows it.
    """
    order = np.lexsort((-tokens, -load))
    found: Ints = balanced_bins(load, tokens, order, num_ranks, capacity, TRIES)
    return found


@nb.njit(**ENTERED)
def balanced_bins(load, tokens, order, num_ranks, capacity, tries):  # type: ignore[no-untyped-def]
    """Deals items in `order` to the lightest bin with room, then moves or swaps them `tries` times at most;
    compiled."""
    rank = np.empty(len(load), np.int64)
    total, held = np.zeros(num_ranks), np.zeros(num_ranks, np.int64)
    for item in order:
        best, emptiest = -1, 0
        for r in range(num_ranks):
            if held[r] + tokens[item] <= capacity and (best < 0 or total[r] < total[best]):
                best = r
            if held[r] < held[emptiest]:
                emptiest = r
        rank[item] = best if best >= 0 else emptiest
        total[rank[item]] += load[item]
        held[rank[item]] += tokens[item]
    for _ in range(tries):
        full = total.argmax()
        goal, best_item, best_other = total[full] * (1 - 1e-9), -1, -1
        lightest = -1
        for item in range(len(load)):
            if rank[item] != full:
                continue
            for r in range(num_ranks):  # a move to the least loaded rank with room
                if r != full and held[r] + tokens[item] <= capacity and total[r] + load[item] < goal:
                    goal = max(total[r] + load[item], total[full] - load[item])
                    best_item, best_other, lightest = item, -1, r
            for other in range(len(load)):  # a swap with a lighter item
                r, less = rank[other], load[item] - load[other]
                if r == full or less <= 0 or total[r] + less >= goal or total[full] - less >= goal:
                    continue
                more = tokens[item] - tokens[other]
                if held[r] + more <= capacity and held[full] - more <= capacity:
                    goal = max(total[r] + less, total[full] - less)
                    best_item, best_other, lightest = item, other, r
        if best_item < 0:
            break
        for item, source, target in ((best_item, full, lightest), (best_other, lightest, full)):
            if item >= 0:
                rank[item] = target
                total[source] -= load[item]
                total[target] += load[item]
                held[source] -= tokens[item]
                held[target] += tokens[item]
    return rank
