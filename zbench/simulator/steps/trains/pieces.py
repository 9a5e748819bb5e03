"""The pieces of trains (zbench.simulator.steps.trains.clock) that are under way on a port; compiled.

Of those that find a port free at once the one that stands first in the plan goes, unless it is who has waited longest.
So a train that stands behind others of its port waits for all their pieces: both take both directions of it. A message
does not, as it takes one: what another message takes of the other direction keeps trains from going on, but not it.
"""

import numba as nb

from zbench.describe.compiled import IN_PLACE
from zbench.simulator.event_heap import comes_before


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
def last_event(port, train, trains, state, links, longest_waiting):  # type: ignore[no-untyped-def]
    """Returns the event of a train's last piece: as it is, or for the soonest that it can be, which it is where nothing
    comes between. port: the train's. trains, state: as of `settle_port`. links: when they are free."""
    _, _, piece, when, since = state
    table, seconds = trains
    hop, first, count = table[train, 0], table[train, 1], table[train, 2]
    left = count - 1 - piece[train]
    if left == 0:
        return when[train], since[train], hop
    begin = when[train]
    if not longest_waiting:
        begin = max(begin, after_trains(port, hop, trains, state, links))
    for at in range(first + piece[train], first + count - 1):
        begin += seconds[at]
    return begin, begin if longest_waiting else 0.0, hop


@nb.njit(**IN_PLACE)
def after_trains(port, hop, trains, state, links):  # type: ignore[no-untyped-def]
    """Returns the soonest that a train, the hop, can have its port, where who stands first in the plan goes first: when
    all trains have ended that stand before it and wait for nothing but the port. Sums are made as `settle_port` makes
    them, piece by piece, so that what comes between can only make it later, to the last bit."""
    front, behind, piece, when, _ = state
    table, seconds = trains
    free, last = max(links[2 * port, 0], links[2 * port + 1, 0]), -1
    while True:
        best, one = -1, front[port]
        while one >= 0:
            mine = table[one, 0]
            if last < mine < hop and (best < 0 or mine < table[best, 0]):
                best = one
            one = behind[one]
        if best < 0 or when[best] > free:
            return free
        last, end = table[best, 0], table[best, 1] + table[best, 2]
        for at in range(table[best, 1] + piece[best], end):
            free += seconds[at]
