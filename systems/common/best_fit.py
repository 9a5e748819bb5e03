"""Packs of sequences by best-fit decreasing: Coffman, Garey and Johnson 1978 (doi 10.1137/0207001)."""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints


def best_fit_packs(lengths: Ints, num_ranks: int, most: int) -> Ints:
    """Returns the pack of every sequence, int64 [num_sequences]: as small as the fewest micro-batches allow.

    most: tokens that a pack may hold at most (where no single sequence is longer).
    """
    turns = -(-(int(best_fit(lengths, most).max()) + 1) // num_ranks)
    low, high = max(-(-int(lengths.sum()) // (turns * num_ranks)), 1), most
    while low < high:
        middle = (low + high) // 2
        if best_fit(lengths, middle).max() < turns * num_ranks:
            high = middle
        else:
            low = middle + 1
    return best_fit(lengths, high)


def best_fit(lengths: Ints, size: int) -> Ints:
    """Packs sequences by best-fit decreasing: int64 [num_sequences], packs of at most `size` tokens (or of one longer
    sequence)."""
    order = np.argsort(-lengths, kind="stable")
    out = np.empty(len(lengths), np.int64)
    out[order] = best_fit_sorted(lengths[order], size)
    return out


@nb.njit(**ENTERED)
def best_fit_sorted(lengths, size):  # type: ignore[no-untyped-def]
    """Packs sequences that are sorted, longest first, by best-fit decreasing: returns int64 [num_sequences], the pack
    of each. lengths: sorted, longest first. A scan of the packs: their number times that of the sequences, compiled."""
    pack = np.empty(len(lengths), np.int64)
    room = np.empty(len(lengths), np.int64)
    count = 0
    for s in range(len(lengths)):
        best = -1
        for at in range(count):
            if room[at] >= lengths[s] and (best < 0 or room[at] < room[best]):
                best = at
                if room[at] == lengths[s]:
                    break
        if best < 0:
            best, count = count, count + 1
            room[best] = max(size, lengths[s])
        room[best] -= lengths[s]
        pack[s] = best
    return pack
