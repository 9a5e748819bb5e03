"""The clock of whole steps: zbench.simulator.clock's, to the last bit, with the pieces of collectives played in trains.

Most hops of a step are pieces of its gathers and reductions. Those of one leg follow one another on one port, and
nobody waits for any but the last: a **train**. Its pieces are not events of the loop. When a message wants the port,
the pieces that came before the message are played then, in the order in which the loop would have; the rest, no sooner
than somebody asks again. A train's last piece is an event, entered for the soonest that it can be and entered again as
long as that turns out to be too soon.
"""

import heapq

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.simulator.clock import Free, Timeline, take
from zbench.simulator.hop_graph import HopGraph

_FIRST, _STRIDE, _COUNT = range(3)  # columns of trains
_SOONER = 1 - 1e-12  # of a sum of seconds: below what adding them one by one gives


def run_trains(of: HopGraph, trains: Ints, free: Free) -> Timeline:
    """Runs every hop once, ranks being ready at 0, as `zbench.simulator.clock.run_hops` does.

    trains: int64 [n, 3], (first hop, hops from a piece to the next, at least two pieces): hops of one rank, with all
    channels of the same queues and of both directions of one port, of which none waits for anything but the one before
    and the first for others. free: changed in place.
    """
    return Timeline(
        *_run(of.rows, of.following, of.waits.copy(), trains, (free.queues, free.links), free.longest_waiting)
    )


@nb.njit(cache=True)
def _before(one, other):  # type: ignore[no-untyped-def]
    """Returns whether an event, (when, since when it waits, hop), is served before another one, or is that."""
    if one[0] != other[0]:
        return one[0] < other[0]
    if one[1] != other[1]:
        return one[1] < other[1]
    return one[2] <= other[2]


@nb.njit(cache=True)
def _settle(port, event, rows, trains, state, links, times, longest_waiting):  # type: ignore[no-untyped-def]
    """Plays the pieces of a port's trains that are served before an event; returns the train that ended, or -1.

    state: on each port the first train under way, of each train the next one there, the next piece, when it can begin
    and since when it waits.
    """
    front, behind, piece, when, since = state
    start, release, done = times
    while True:
        best, hop = -1, -1
        one = front[port]
        while one >= 0:
            number = trains[one, 0] + piece[one] * trains[one, 1]
            if best < 0 or _before((when[one], since[one], number), (when[best], since[best], hop)):
                best, hop = one, number
            one = behind[one]
        if best < 0 or not _before((when[best], since[best], hop), event):
            return -1
        a, b, k = rows.link_a[hop], rows.link_b[hop], rows.channels[hop]
        both = max(links[a, k - 1], links[b, k - 1])
        if both > when[best]:
            when[best] = both
            continue
        start[hop] = when[best]
        release[hop] = start[hop] + rows.busy[hop]
        done[hop] = release[hop] + rows.latency[hop]
        for channel in range(k):
            links[a, channel] = release[hop]
            links[b, channel] = release[hop]
        piece[best] += 1
        when[best] = release[hop]
        since[best] = release[hop] if longest_waiting else 0.0
        if piece[best] == trains[best, 2]:
            return best


@nb.njit(cache=True)
def _leave(port, train, front, behind):  # type: ignore[no-untyped-def]
    """Takes a train off its port."""
    if front[port] == train:
        front[port] = behind[train]
        return
    one = front[port]
    while behind[one] != train:
        one = behind[one]
    behind[one] = behind[train]


@nb.njit(cache=True)
def _last(train, trains, piece, when, since, busy):  # type: ignore[no-untyped-def]
    """Returns the event of a train's last piece: as it is, or for the soonest that it can be."""
    first, stride, count = trains[train]
    hop = first + (count - 1) * stride
    left = count - 1 - piece[train]
    if left == 0:
        return when[train], since[train], hop
    least = min(busy[first], busy[hop])
    for at in range(count - left - 1, count - 1):
        least = min(least, busy[first + at * stride])
    return when[train] + left * least * _SOONER, 0.0, hop


@nb.njit(cache=True)
def _run(rows, following, waits, trains, free, longest_waiting):  # type: ignore[no-untyped-def]
    queue_a, queue_b, link_a, link_b, slot = rows.queue_a, rows.queue_b, rows.link_a, rows.link_b, rows.slot
    next_a, next_b, next_pair, offsets, followers = following
    queue_free, link_free = free
    num_hops = len(queue_a)
    ready, start, release, done = np.zeros(num_hops), np.empty(num_hops), np.empty(num_hops), np.empty(num_hops)
    times = (start, release, done)
    train_of = np.full(num_hops, -1, np.int64)
    for train in range(len(trains)):
        train_of[trains[train, 0]] = train
        train_of[trains[train, 0] + (trains[train, 2] - 1) * trains[train, 1]] = train
    front, behind = np.full(len(link_free) // 2 + 1, -1, np.int64), np.full(len(trains), -1, np.int64)
    piece, when, since = np.zeros(len(trains), np.int64), np.zeros(len(trains)), np.zeros(len(trains))
    state = (front, behind, piece, when, since)
    heap = [(0.0, 0.0, 0) for _ in range(0)]  # when, since when it waits where that counts, and the hop
    for hop in range(num_hops):
        ready[hop] = queue_free[queue_a[hop], slot[hop]]
        if queue_b[hop] >= 0:
            ready[hop] = max(ready[hop], queue_free[queue_b[hop], slot[hop]])
        if waits[hop] == 0:
            heapq.heappush(heap, (ready[hop], ready[hop] if longest_waiting else 0.0, hop))
    while len(heap):
        event = heapq.heappop(heap)
        begin, waited, hop = event
        a, b, k, s, train = link_a[hop], link_b[hop], rows.channels[hop], slot[hop], train_of[hop]
        if train >= 0:
            if hop == trains[train, 0]:
                when[train], since[train] = begin, waited
                behind[train], front[a // 2] = front[a // 2], train
            if _settle(a // 2, event, rows, trains, state, link_free, times, longest_waiting) != train:
                heapq.heappush(heap, _last(train, trains, piece, when, since, rows.busy))
                continue
            _leave(a // 2, train, front, behind)
            begin = start[hop]
        else:
            if a >= 0:
                if front[a // 2] >= 0:
                    _settle(a // 2, event, rows, trains, state, link_free, times, longest_waiting)
                if b >= 0 and front[b // 2] >= 0:
                    _settle(b // 2, event, rows, trains, state, link_free, times, longest_waiting)
                both = link_free[a, s] if b < 0 else max(link_free[a, s], link_free[b, s])
                if both > begin:  # asks again when both are free; others may go first
                    heapq.heappush(heap, (both, waited, hop))
                    continue
            start[hop] = begin
            release[hop] = begin + rows.busy[hop]
            done[hop] = release[hop] + rows.latency[hop]
            if a >= 0:
                take(link_free, a, k, s, release[hop])
                if b >= 0:
                    take(link_free, b, k, s, release[hop])
        take(queue_free, queue_a[hop], k, s, release[hop])
        if a >= 0 and b >= 0:
            take(queue_free, queue_b[hop], k, s, release[hop])
        for follower, queue in ((next_a[hop], queue_a[hop]), (next_b[hop], queue_b[hop])):
            if follower >= 0:  # alone can take what is free next in the queue, so that is known now
                ready[follower] = max(ready[follower], begin, queue_free[queue, slot[follower]])
                waits[follower] -= 1
                if waits[follower] == 0:
                    heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
        follower = next_pair[hop]
        if follower >= 0:
            ready[follower] = max(ready[follower], release[hop])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
        for at in range(offsets[hop], offsets[hop + 1]):
            follower = followers[at]
            ready[follower] = max(ready[follower], done[hop])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(heap, (ready[follower], ready[follower] if longest_waiting else 0.0, follower))
    return start, release, done
