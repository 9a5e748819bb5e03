"""When every leg runs on a described cluster. Pure: no torch.

A leg (zbench.legs) waits for its data, for its **lanes** and for its **links**:

- a lane belongs to a rank and serves its legs in plan order. Each rank has a compute lane and one a
  direction for transfers inside the node, across nodes, and passing through on behalf of others;
- a link is a GPU's NVLink port or a NIC, each direction by itself. A leg needs the sending and the
  receiving one, at full rate, one leg after another; of those waiting, the first that finds both
  free goes (ties: plan order), so a link never idles for a leg that waits elsewhere.

`run` is an event loop over legs. It is exact for these rules: no time is ever revised.
"""

import heapq
from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.dataflow import Edges
from zbench.legs import Legs
from zbench.plan import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """start, release, done: seconds [num_legs]: taken lanes and links, freed them, data arrived."""

    start: Floats
    release: Floats
    done: Floats


@dataclass(frozen=True)
class Program:
    """Legs with their waits, ready to be run again and again from different starting times.

    busy, latency: seconds [num_legs]. next_a, next_b: the next leg in each lane, -1 if none.
    offsets, followers: legs that need a leg's data, compressed rows; waits: edges into each leg.
    """

    legs: Legs
    busy: Floats
    latency: Floats
    next_a: Ints
    next_b: Ints
    offsets: Ints
    followers: Ints
    waits: Ints


def program(parts: Legs, busy: Floats, latency: Floats, edges: Edges) -> Program:
    """Lanes in plan order and data edges, from operations to legs."""
    next_a, next_b, lane_waits = _lane_order(parts.lane_a, parts.lane_b)
    producer, consumer = _leg_edges(edges.producer, edges.consumer, parts.first, parts.last, parts.after)
    offsets, followers, waits = _rows(len(parts.op), producer, consumer)
    return Program(parts, busy, latency, next_a, next_b, offsets, followers, waits + lane_waits)


@nb.njit(cache=True)
def _rows(num_legs, producer, consumer):  # type: ignore[no-untyped-def]
    """Edges as compressed rows by producer, and the number of edges into each leg (a counting sort)."""
    offsets, waits = np.zeros(num_legs + 1, np.int64), np.zeros(num_legs, np.int64)
    for edge in range(len(producer)):
        offsets[producer[edge] + 1] += 1
        waits[consumer[edge]] += 1
    for leg in range(num_legs):
        offsets[leg + 1] += offsets[leg]
    fill, followers = offsets[:-1].copy(), np.empty(len(producer), np.int64)
    for edge in range(len(producer)):
        followers[fill[producer[edge]]] = consumer[edge]
        fill[producer[edge]] += 1
    return offsets, followers, waits


@nb.njit(cache=True)
def _lane_order(lane_a, lane_b):  # type: ignore[no-untyped-def]
    last = np.full(max(lane_a.max(), lane_b.max()) + 1 if len(lane_a) else 0, -1, np.int64)
    next_a, next_b = np.full(len(lane_a), -1, np.int64), np.full(len(lane_a), -1, np.int64)
    waits = np.zeros(len(lane_a), np.int64)
    for leg in range(len(lane_a)):
        for lane in (lane_a[leg], lane_b[leg]):
            if lane < 0:
                continue
            before = last[lane]
            if before >= 0:
                if lane_a[before] == lane:
                    next_a[before] = leg
                else:
                    next_b[before] = leg
                waits[leg] += 1
            last[lane] = leg
    return next_a, next_b, waits


@nb.njit(cache=True)
def _leg_edges(producer, consumer, first, last, after):  # type: ignore[no-untyped-def]
    """An operation starts (all legs with nothing before them) when its producers' last legs are complete."""
    count = 0
    for fill in range(2):
        if fill:
            sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
            count = 0
        for edge in range(len(producer)):
            for a in range(first[producer[edge]], first[producer[edge] + 1]):
                if not last[a]:
                    continue
                for b in range(first[consumer[edge]], first[consumer[edge] + 1]):
                    if after[b] < 0:
                        if fill:
                            sources[count], targets[count] = a, b
                        count += 1
        for leg in range(len(after)):
            if after[leg] >= 0:
                if fill:
                    sources[count], targets[count] = after[leg], leg
                count += 1
    return sources, targets


def run(of: Program, rank_ready: Floats, lane_free: Floats, link_free: Floats) -> Timeline:
    """Runs every leg once. rank_ready: [num_ranks], before which a rank starts nothing.

    lane_free, link_free: when each lane and link is free; changed in place to when they are free afterwards.
    """
    parts = of.legs
    return Timeline(*_run(parts.rank, parts.lane_a, parts.lane_b, parts.link_a, parts.link_b, of.busy, of.latency,
                          of.next_a, of.next_b, of.offsets, of.followers, of.waits.copy(),
                          rank_ready, lane_free, link_free))  # fmt: skip


@nb.njit(cache=True)
def _run(  # type: ignore[no-untyped-def]
    rank,
    lane_a,
    lane_b,
    link_a,
    link_b,
    busy,
    latency,
    next_a,
    next_b,
    offsets,
    followers,
    waits,
    rank_ready,
    lane_free,
    link_free,
):
    num_legs = len(rank)
    ready, start, release, done = np.empty(num_legs), np.empty(num_legs), np.empty(num_legs), np.empty(num_legs)
    queue = [(0.0, 0) for _ in range(0)]
    for leg in range(num_legs):
        ready[leg] = max(rank_ready[rank[leg]], lane_free[lane_a[leg]])
        if lane_b[leg] >= 0:
            ready[leg] = max(ready[leg], lane_free[lane_b[leg]])
        if waits[leg] == 0:
            heapq.heappush(queue, (ready[leg], leg))
    while len(queue):
        begin, leg = heapq.heappop(queue)
        a, b = link_a[leg], link_b[leg]
        if a >= 0 and max(link_free[a], link_free[b]) > begin:  # asks again when both are free; others may go first
            heapq.heappush(queue, (max(link_free[a], link_free[b]), leg))
            continue
        start[leg] = begin
        release[leg] = begin + busy[leg]
        done[leg] = release[leg] + latency[leg]
        if a >= 0:
            link_free[a] = release[leg]
            link_free[b] = release[leg]
        lane_free[lane_a[leg]] = release[leg]
        if lane_b[leg] >= 0:
            lane_free[lane_b[leg]] = release[leg]
        for follower in (next_a[leg], next_b[leg]):
            if follower >= 0:
                ready[follower] = max(ready[follower], release[leg])
                waits[follower] -= 1
                if waits[follower] == 0:
                    heapq.heappush(queue, (ready[follower], follower))
        for at in range(offsets[leg], offsets[leg + 1]):
            follower = followers[at]
            ready[follower] = max(ready[follower], done[leg])
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(queue, (ready[follower], follower))
    return start, release, done
