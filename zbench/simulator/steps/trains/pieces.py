"""The pieces of trains (zbench.simulator.steps.trains.clock) that are under way on a port; compiled."""

import numba as nb

from zbench.describe.compiled import IN_PLACE
from zbench.simulator.event_heap import comes_before

_SOONER = 1 - 1e-9  # of a moment: below what a sum of thousands of numbers comes to, however they are rounded


@nb.njit(**IN_PLACE)
def settle_port(port, event, hops, trains, state, links, times, longest_waiting):  # type: ignore[no-untyped-def]
    """Plays the pieces of a port's trains that are served before an event; returns the train that ended, or -1.

    state: on each port the first train under way, of each train the next one there, the next piece, when it can begin
    and since when it waits.
    """
    front, behind, piece, when, since = state
    start, release, done = times
    row, rows = hops
    while True:
        best, hop = -1, -1
        one = front[port]
        while one >= 0:
            number = trains[one, 0] + piece[one] * trains[one, 1]
            if best < 0 or comes_before((when[one], since[one], number), (when[best], since[best], hop)):
                best, hop = one, number
            one = behind[one]
        if best < 0 or not comes_before((when[best], since[best], hop), event):
            return -1
        mine = row[hop]
        a, b, k = rows.link_a[mine], rows.link_b[mine], rows.channels[mine]
        both = max(links[a, k - 1], links[b, k - 1])
        if both > when[best]:
            when[best] = both
            continue
        start[hop] = when[best]
        release[hop] = start[hop] + rows.busy[mine]
        done[hop] = release[hop] + rows.latency[mine]
        for channel in range(k):
            links[a, channel] = release[hop]
            links[b, channel] = release[hop]
        piece[best] += 1
        when[best] = release[hop]
        since[best] = release[hop] if longest_waiting else 0.0
        if piece[best] == trains[best, 2]:
            return best


@nb.njit(**IN_PLACE)
def leave_port(port, train, front, behind):  # type: ignore[no-untyped-def]
    """Takes a train off its port."""
    if front[port] == train:
        front[port] = behind[train]
        return
    one = front[port]
    while behind[one] != train:
        one = behind[one]
    behind[one] = behind[train]


@nb.njit(**IN_PLACE)
def last_event(train, trains, piece, when, since, hops):  # type: ignore[no-untyped-def]
    """Returns the event of a train's last piece: as it is, or for the soonest that it can be."""
    first, stride, count = trains[train]
    hop = first + (count - 1) * stride
    left = count - 1 - piece[train]
    if left == 0:
        return when[train], since[train], hop
    row, busy = hops.row, hops.rows.busy
    least = min(busy[row[first]], busy[row[hop]])
    for at in range(count - left - 1, count - 1):
        least = min(least, busy[row[first + at * stride]])
    soonest = (when[train] + left * least) * _SOONER
    return (soonest, 0.0, hop) if soonest > when[train] else (when[train], since[train], hop)
