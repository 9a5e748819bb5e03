"""Whole sequences moved from node to node, so that nodes take equally long. Compiled; pure: no torch."""

import numba as nb

from zbench.plans.plan import Ints
from zbench.systems.nodewise.records import Floats, Loads

EVEN = 0.003  # of the mean: nodes that differ by less are left as they are (a choice)


@nb.njit(cache=True)
def swap(tokens: Ints, work: Floats, node_of: Ints, loads: Loads) -> bool:
    """Moves whole sequences, or has two change places, and returns whether anything was moved.

    Every move is from the node with most work to the node with which both are left with least; it ends where nothing
    helps. tokens, work: [n], of every sequence. `node_of` ([n], the node of each, or -1) and `loads` are changed.
    """
    load, held, count, changed = loads.seconds, loads.held, len(loads.seconds), False
    for _ in range(4 * count):
        high = load.argmax()
        if load[high] <= (1 + EVEN) * load.mean():
            break
        least, give, take, to = load[high] * (1 - EVEN), -1, -1, -1
        for i in range(len(node_of)):
            if node_of[i] != high:
                continue
            for j in range(-count, len(node_of)):  # below zero: move i to node j + count, and take nothing from it
                low = j + count if j < 0 else node_of[j]
                if low < 0 or low == high or load[low] > least:
                    continue
                moved, size = work[i] - (work[j] if j >= 0 else 0.0), tokens[i] - (tokens[j] if j >= 0 else 0)
                most = max(load[high] - moved, load[low] + moved)
                if most < least and held[low] + size <= loads.capacity and held[high] - size <= loads.capacity:
                    least, give, take, to = most, i, j, low
        if give < 0:
            break
        for s, old, new in ((give, high, to), (take, to, high)):
            if s >= 0:
                node_of[s] = new
                load[old] -= work[s]
                load[new] += work[s]
                held[old] -= tokens[s]
                held[new] += tokens[s]
        changed = True
    return changed
