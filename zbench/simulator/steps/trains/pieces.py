"""The pieces of trains (zbench.simulator.steps.trains.clock) that are under way on a port; compiled."""

import numba as nb

from zbench.describe.compiled import IN_PLACE
from zbench.simulator.event_heap import comes_before

_SOONER = 1 - 1e-9  # of a moment: below what a sum of thousands of numbers comes to, however they are rounded


@nb.njit(**IN_PLACE)
def settle_port(port, event, hops, trains, state, links, times, longest_waiting):  # type: ignore[no-untyped-def]
    """Plays the pieces of a port's trains that are served before an event; returns the train that ended, or -1.

    trains: as AssembledHops has them, and the seconds of pieces. state: on each port the first train under way, of each
    train the next one there, the next piece, when it can begin and since when it waits.
    """
    front, behind, piece, when, since = state
    start, release, done, begun, ended = times
    (row, rows), (table, seconds) = hops, trains
    while True:
        best, one = -1, front[port]
        while one >= 0:
            mine = when[one], since[one], table[one, 0]
            if best < 0 or comes_before(mine, (when[best], since[best], table[best, 0])):
                best = one
            one = behind[one]
        if best < 0 or not comes_before((when[best], since[best], table[best, 0]), event):
            return -1
        hop, number = table[best, 0], piece[best]
        of = row[hop]
        a, b, k = rows.link_a[of], rows.link_b[of], rows.channels[of]
        both = max(links[a, k - 1], links[b, k - 1])
        if both > when[best]:
            when[best] = both
            continue
        begin = when[best]
        end = begin + seconds[table[best, 1] + number]
        begun[table[best, 3] + number], ended[table[best, 3] + number] = begin, end
        for channel in range(k):
            links[a, channel] = end
            links[b, channel] = end
        if number == 0:
            start[hop] = begin
        piece[best], when[best] = number + 1, end
        since[best] = end if longest_waiting else 0.0
        if number + 1 == table[best, 2]:
            release[hop], done[hop] = end, end + rows.latency[of]
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
def last_event(train, trains, state):  # type: ignore[no-untyped-def]
    """Returns the event of a train's last piece: as it is, or for the soonest that it can be. trains, state: as of
    `settle_port`."""
    _, _, piece, when, since = state
    table, seconds = trains
    hop, first, count = table[train, 0], table[train, 1], table[train, 2]
    left = count - 1 - piece[train]
    if left == 0:
        return when[train], since[train], hop
    least = seconds[first + count - 1]
    for at in range(first + piece[train], first + count - 1):
        least = min(least, seconds[at])
    soonest = (when[train] + left * least) * _SOONER
    return (soonest, 0.0, hop) if soonest > when[train] else (when[train], since[train], hop)
