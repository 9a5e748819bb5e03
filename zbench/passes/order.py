"""Order: list-schedule transfers and attends together by predicted time.

Lanes serve their operations in plan order, so an operation that waits for late data blocks those
behind it. This rewrite replays both lists on the described cluster with free choice: of all legs
whose data is decided, the one that can start earliest goes next, among equals the one with the
longest path still behind it. The order of starting becomes the plan's order. Ordering the attends
alone would be worse: a lane of transfers in the old order then holds up the new attends.

A list keeps the order it has where the clock plays that as fast. Free choice never waits, so a long local
attend can start just before data arrives that others depend on; and the legs of routed transfers, which lanes
serve in the order of their transfers, come in another order than they were scheduled in.
"""

import heapq

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.plans.dataflow import Violation, edges
from zbench.plans.plan import Ops, Plan
from zbench.simulator.clock import Free, LegGraph, run_legs, take
from zbench.simulator.simulate import Programs, prepare, programs


def order(plan: Plan, cost: Cost) -> Plan:
    """Returns `plan` with both lists in list-scheduled order."""
    return scheduled(plan, cost, programs(plan, cost))[0]


def scheduled(plan: Plan, cost: Cost, given: Programs) -> tuple[Plan, float, Programs]:
    """Returns (`plan` in list-scheduled order, seconds predicted for one layer in both directions, its programs).

    given: the programs of `plan` as it is.

    The schedule starts from when each rank's linear modules end; the prediction is what zbench.simulator.simulate
    plays for one layer whose ranks start together.
    """
    linear = cost.linear_seconds(plan.tokens_per_rank)
    forward, ahead, first = _ordered(plan, plan.forward, given[0], False, linear, cost)
    backward, back, second = _ordered(plan, plan.backward, given[1], True, 2 * linear, cost)
    return plan.with_(forward=forward, backward=backward), ahead + back, (first, second)


def _ordered(
    plan: Plan, ops: Ops, of: LegGraph, backward: bool, ready: np.ndarray, cost: Cost
) -> tuple[Ops, float, LegGraph]:
    parts, clear = of.legs, Free.zero(cost.cluster)
    turn = _list_schedule(
        parts.op, of.pair, of.rows, of.following, ready, np.zeros(len(ops), np.bool_), clear.lanes, clear.links
    )
    free = ops.take(turn)
    again = _program(plan, free, backward, cost)
    given, found = _end(of, ready, cost), _end(again, ready, cost)
    return (free, found, again) if found < given else (ops, given, of)


def _program(plan: Plan, ops: Ops, backward: bool, cost: Cost) -> LegGraph:
    found = edges(plan, ops, backward)
    assert not isinstance(found, Violation), found.reason
    return prepare(plan, ops, found, cost, backward)


def _end(of: LegGraph, ready: np.ndarray, cost: Cost) -> float:
    """Returns the time at which the clock has played the list."""
    timeline = run_legs(of, ready, Free.zero(cost.cluster))
    return max(float(timeline.done.max()), float(ready.max()))


@nb.njit(cache=True)
def _list_schedule(op, pair, rows, following, rank_ready, seen, lane_free, link_free):  # type: ignore[no-untyped-def]
    """int64 [num_ops]: the operations by when they are started. op, pair: of every leg, as in Legs and LegGraph.

    rows: LegRows. following: Followers. seen: bool [num_ops], all False.
    """
    rank, lane_a, lane_b, link_a, link_b, channels, slot, busy, latency = rows
    offsets, followers = following.offsets, following.followers
    num_legs = len(op)
    waits = np.zeros(num_legs, np.int64)
    for follower in followers:
        waits[follower] += 1
    tail = np.zeros(num_legs)  # longest path from a leg's start to the end
    for leg in range(num_legs - 1, -1, -1):  # plan order is topological
        for at in range(offsets[leg], offsets[leg + 1]):
            tail[leg] = max(tail[leg], tail[followers[at]])
        tail[leg] += busy[leg] + latency[leg]
    pair_free = np.zeros(pair.max() + 1)
    ready = rank_ready[rank]
    queue = [(0.0, 0.0, 0) for _ in range(0)]
    for leg in range(num_legs):
        if waits[leg] == 0:
            heapq.heappush(queue, (ready[leg], -tail[leg], leg))
    turn, placed = np.empty(len(seen), np.int64), 0
    while len(queue):
        at_time, priority, leg = heapq.heappop(queue)
        k, s = channels[leg], slot[leg]
        start = max(ready[leg], lane_free[lane_a[leg], s])
        if lane_b[leg] >= 0:
            start = max(start, lane_free[lane_b[leg], s], link_free[link_a[leg], s], link_free[link_b[leg], s])
        if pair[leg] >= 0:
            start = max(start, pair_free[pair[leg]])
        if start > at_time:  # a lane or link was taken meanwhile
            heapq.heappush(queue, (start, priority, leg))
            continue
        if not seen[op[leg]]:
            seen[op[leg]] = True
            turn[placed] = op[leg]
            placed += 1
        release = start + busy[leg]
        take(lane_free, lane_a[leg], k, s, release)
        if lane_b[leg] >= 0:
            take(lane_free, lane_b[leg], k, s, release)
            take(link_free, link_a[leg], k, s, release)
            take(link_free, link_b[leg], k, s, release)
        if pair[leg] >= 0:
            pair_free[pair[leg]] = release
        for at in range(offsets[leg], offsets[leg + 1]):
            follower = followers[at]
            ready[follower] = max(ready[follower], release + latency[leg])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(queue, (ready[follower], -tail[follower], follower))
    return turn
