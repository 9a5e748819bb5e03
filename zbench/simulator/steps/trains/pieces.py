"""The pieces of trains (zbench.simulator.steps.trains.clock) that are under way on a port; compiled.

Of trains and messages that find a port free at once the one that stands first in the plan goes, unless it is who has
waited longest. So who stands behind trains of a port waits for all their pieces, and need not ask before.
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
    (row, rows), (table, seconds), found = hops, trains, -1
    of = row[table[front[port], 0]]
    a, b, k = rows.link_a[of], rows.link_b[of], rows.channels[of]  # of all trains of the port
    free = before = max(links[a, k - 1], links[b, k - 1])
    while found < 0:
        best, first, one = -1, event, front[port]
        while one >= 0:
            if when[one] < free and comes_before((when[one], since[one], table[one, 0]), event):
                when[one] = free
            mine = when[one], since[one], table[one, 0]
            if comes_before(mine, first):
                best, first = one, mine
            one = behind[one]
        if best < 0:
            break
        begin, _, hop = first
        number = piece[best]
        free = begin + seconds[table[best, 1] + number]
        begun[table[best, 3] + number], ended[table[best, 3] + number] = begin, free
        if number == 0:
            start[hop] = begin
        piece[best], when[best] = number + 1, free
        since[best] = free if longest_waiting else 0.0
        if number + 1 == table[best, 2]:
            release[hop], done[hop], found = free, free + rows.latency[of], best
    if free > before:
        for channel in range(k):
            links[a, channel], links[b, channel] = free, free
    return found


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
    """Returns the event of a train's last piece: as it is, or for the soonest that it can be. trains, state: as of
    `settle_port`."""
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
    """Returns the soonest that a port can be free for a hop, both ways, where who stands first in the plan goes first:
    when all trains have ended that stand before the hop and wait for nothing but the port. It is then if nothing else
    takes the port until then."""
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
