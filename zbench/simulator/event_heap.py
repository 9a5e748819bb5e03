"""A heap of events, (when, since when it waits where that counts, the hop), first come first; compiled.

A heap is three arrays with room for as many events as there may be at once, two below each. Lists of tuples and heapq
were slower, and so were four below each.
"""

import numba as nb

from zbench.describe.compiled import IN_PLACE


@nb.njit(**IN_PLACE)
def comes_before(one, other):  # type: ignore[no-untyped-def]
    """Returns whether an event, (when, since when it waits, hop), is served before another one, or is that."""
    if one[0] != other[0]:
        return one[0] < other[0]
    if one[1] != other[1]:
        return one[1] < other[1]
    return one[2] <= other[2]


@nb.njit(**IN_PLACE)
def push_event(heap, size, event):  # type: ignore[no-untyped-def]
    """Enters an event into a heap of `size` events; returns its new size."""
    times, waited, hops = heap
    when, since, hop = event
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if times[above] < when or (
            times[above] == when and (waited[above] < since or (waited[above] == since and hops[above] < hop))
        ):
            break
        times[at], waited[at], hops[at] = times[above], waited[above], hops[above]
        at = above
    times[at], waited[at], hops[at] = when, since, hop
    return size + 1


@nb.njit(**IN_PLACE)
def pop_event(heap, size):  # type: ignore[no-untyped-def]
    """Takes the first event off a heap; returns its new size."""
    times, waited, hops = heap
    size -= 1
    when, since, hop, at = times[size], waited[size], hops[size], 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size:
            other = below + 1
            if times[other] < times[below] or (
                times[other] == times[below]
                and (waited[other] < waited[below] or (waited[other] == waited[below] and hops[other] < hops[below]))
            ):
                below = other
        if when < times[below] or (
            when == times[below] and (since < waited[below] or (since == waited[below] and hop < hops[below]))
        ):
            break
        times[at], waited[at], hops[at] = times[below], waited[below], hops[below]
        at = below
    times[at], waited[at], hops[at] = when, since, hop
    return size
