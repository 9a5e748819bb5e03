"""Order: list-schedule transfers and attends together by predicted time.

Queues serve their operations in plan order, so an operation that waits for late data blocks those
behind it. This rewrite replays both lists on the described cluster with free choice: of all hops
whose data is decided, the one that can start earliest goes next, among equals the one with the
longest path still behind it. The order of starting becomes the plan's order. Ordering the attends
alone would be worse: a queue of transfers in the old order then holds up the new attends.

A list keeps the order it has where the clock plays that as fast. Free choice never waits, so a long local
attend can start just before data arrives that others depend on; and the hops of routed transfers, which queues
serve in the order of their transfers, come in another order than they were scheduled in.
"""

import heapq

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.compiled import ENTERED
from zbench.plans.dataflow import Violation, edges
from zbench.plans.plan import Ops, Plan
from zbench.simulator.attention import Programs, prepare, programs
from zbench.simulator.clock import Free, run_hops, take
from zbench.simulator.hop_graph import HopGraph


def order(plan: Plan, cost: Cost) -> Plan:
    """Returns `plan` with both lists in list-scheduled order."""
    return scheduled(plan, cost, programs(plan, cost))[0]


def scheduled(plan: Plan, cost: Cost, given: Programs) -> tuple[Plan, float, Programs]:
    """Returns (`plan` in list-scheduled order, seconds predicted for one layer in both directions, its programs).

    given: the programs of `plan` as it is.

    The schedule starts from when each rank's linear modules end; the prediction is what zbench.simulator.estimate.step
    plays for one layer whose ranks start together.
    """
    linear, again = (of(plan.tokens_per_rank) for of in (cost.linear_seconds, cost.backward_linear_seconds))
    forward, ahead, first = _ordered(plan, plan.forward, given[0], False, linear, cost)
    backward, back, second = _ordered(plan, plan.backward, given[1], True, again, cost)
    return plan.with_(forward=forward, backward=backward), ahead + back, (first, second)


def _ordered(
    plan: Plan, ops: Ops, of: HopGraph, backward: bool, ready: np.ndarray, cost: Cost
) -> tuple[Ops, float, HopGraph]:
    parts, clear = of.hops, Free.zero(cost.cluster)
    turn = _list_schedule(
        parts.op, of.pair, of.rows, of.following, ready, np.zeros(len(ops), np.bool_), clear.queues, clear.links
    )
    free = ops.take(turn)
    again = _program(plan, free, backward, cost)
    given, found = _end(of, ready, cost), _end(again, ready, cost)
    return (free, found, again) if found < given else (ops, given, of)


def _program(plan: Plan, ops: Ops, backward: bool, cost: Cost) -> HopGraph:
    found = edges(plan, ops, backward)
    assert not isinstance(found, Violation), found.reason
    return prepare(plan, ops, found, cost, backward)


def _end(of: HopGraph, ready: np.ndarray, cost: Cost) -> float:
    """Returns the time at which the clock has played the list."""
    timeline = run_hops(of, ready, Free.zero(cost.cluster))
    return max(float(timeline.done.max()), float(ready.max()))


@nb.njit(**ENTERED)
def _list_schedule(op, pair, rows, following, rank_ready, seen, queue_free, link_free):  # type: ignore[no-untyped-def]
    """int64 [num_ops]: the operations by when they are started. op, pair: of every hop, as in Hops and HopGraph.

    rows: HopRows. following: Followers. seen: bool [num_ops], all False.
    """
    rank, queue_a, queue_b, link_a, link_b, channels, slot, busy, latency = rows
    offsets, followers = following.offsets, following.followers
    num_hops = len(op)
    waits = np.zeros(num_hops, np.int64)
    for follower in followers:
        waits[follower] += 1
    tail = np.zeros(num_hops)  # longest path from a hop's start to the end
    for hop in range(num_hops - 1, -1, -1):  # plan order is topological
        for at in range(offsets[hop], offsets[hop + 1]):
            tail[hop] = max(tail[hop], tail[followers[at]])
        tail[hop] += busy[hop] + latency[hop]
    pair_free = np.zeros(pair.max() + 1)
    ready = rank_ready[rank]
    heap = [(0.0, 0.0, 0) for _ in range(0)]
    for hop in range(num_hops):
        if waits[hop] == 0:
            heapq.heappush(heap, (ready[hop], -tail[hop], hop))
    turn, placed = np.empty(len(seen), np.int64), 0
    while len(heap):
        at_time, priority, hop = heapq.heappop(heap)
        k, s = channels[hop], slot[hop]
        start = max(ready[hop], queue_free[queue_a[hop], s])
        if queue_b[hop] >= 0:
            start = max(start, queue_free[queue_b[hop], s], link_free[link_a[hop], s], link_free[link_b[hop], s])
        if pair[hop] >= 0:
            start = max(start, pair_free[pair[hop]])
        if start > at_time:  # a queue or link was taken meanwhile
            heapq.heappush(heap, (start, priority, hop))
            continue
        if not seen[op[hop]]:
            seen[op[hop]] = True
            turn[placed] = op[hop]
            placed += 1
        release = start + busy[hop]
        take(queue_free, queue_a[hop], k, s, release)
        if queue_b[hop] >= 0:
            take(queue_free, queue_b[hop], k, s, release)
            take(link_free, link_a[hop], k, s, release)
            take(link_free, link_b[hop], k, s, release)
        if pair[hop] >= 0:
            pair_free[pair[hop]] = release
        for at in range(offsets[hop], offsets[hop + 1]):
            follower = followers[at]
            ready[follower] = max(ready[follower], release + latency[hop])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(heap, (ready[follower], -tail[follower], follower))
    return turn
