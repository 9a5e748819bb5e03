"""Congestion-free rounds: transfers arranged so that in a round every rank sends and receives at most one.

Transfers are the edges of a bipartite multigraph (senders, receivers); a round is a matching, and by König's
theorem as many rounds as the busiest rank has messages to send or to receive are enough.
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.plans.plan import Ints


def colour_rounds(src: Ints, dst: Ints, num_ranks: int) -> Ints:
    """Returns int64 [n], the round of every transfer: an edge colouring with as few colours as there can be.

    Earlier transfers get earlier rounds as far as possible, so give the urgent ones first.
    """
    if not len(src):
        return np.zeros(0, np.int64)
    most = max(int(np.bincount(end).max()) for end in (src, dst))
    found: Ints = _colours(src, dst, num_ranks, most)
    return found


@nb.njit(**ENTERED)
def _colours(src, dst, num_ranks, most):  # type: ignore[no-untyped-def]
    """Colours edges one by one: each gets the first colour free at both ends; if there is none, the path that
    alternates between a colour free at the sender and one free at the receiver is turned over, which frees the sender's
    at the receiver too."""
    colour = np.full(len(src), -1, np.int64)
    at = np.full((2, num_ranks, most), -1, np.int64)  # the edge of a colour at each sender, and at each receiver
    path = np.empty(2 * num_ranks, np.int64)
    for edge in range(len(src)):
        both, free_here, free_there = -1, -1, -1
        for c in range(most):
            here, there = at[0, src[edge], c] < 0, at[1, dst[edge], c] < 0
            if here and there:
                both = c
                break
            if here and free_here < 0:
                free_here = c
            if there and free_there < 0:
                free_there = c
        if both < 0:
            both, count, side, c = free_here, 0, 1, free_here
            step = at[1, dst[edge], c]
            while step >= 0:  # it never comes to the sender: there free_here has no edge
                path[count] = step
                count += 1
                side, c = 1 - side, free_there if c == free_here else free_here
                step = at[side, src[step] if side == 0 else dst[step], c]
            for i in range(count):
                at[0, src[path[i]], colour[path[i]]] = at[1, dst[path[i]], colour[path[i]]] = -1
            for i in range(count):
                colour[path[i]] = free_there if colour[path[i]] == free_here else free_here
                at[0, src[path[i]], colour[path[i]]] = at[1, dst[path[i]], colour[path[i]]] = path[i]
        colour[edge] = both
        at[0, src[edge], both] = at[1, dst[edge], both] = edge
    return colour
