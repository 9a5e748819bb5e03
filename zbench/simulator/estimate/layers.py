"""Plays a layer's attention over and over, with each rank's linear time between.

Layers are equal, so after a few the ranks move in step: each layer ends the same time after the one
before, on every rank, and the rest is a multiplication. Where transfers compete for links the order
of service keeps shifting a little from layer to layer; then PLAYED layers are played and the rest
take the mean of the last AVERAGED (tests/simulator/estimate/test_layers.py holds the difference to playing all).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.cost.memory.host_copies import LayerCopies
from zbench.describe.arrays import Floats
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED
from zbench.describe.links import NIC
from zbench.plans.plan import Ints
from zbench.simulator.clock import Free, Timeline, run_hops
from zbench.simulator.direct import Direct
from zbench.simulator.hop_graph import HopGraph
from zbench.simulator.hops import COMPUTE

_SETTLED = 1e-9  # relative: the rounding of sums of a few thousand terms, well below any time of interest
PLAYED, AVERAGED = 12, 8


@dataclass(slots=True)
class ClockState:
    """Clocks that go on from layer to layer: ready, seconds [num_ranks], and when queues and links are free."""

    ready: Floats
    free: Free

    @staticmethod
    def zero(cluster: Cluster) -> "ClockState":
        """Returns clocks at 0."""
        return ClockState(np.zeros(cluster.num_ranks), Free.zero(cluster))

    def since(self, old: "ClockState") -> "ClockState":
        """Returns clocks that show how much later everything is."""
        free = Free(self.free.queues - old.free.queues, self.free.links - old.free.links)
        return ClockState(self.ready - old.ready, free)

    def meet(self) -> None:
        """Makes every rank wait for all others."""
        self.ready = np.full_like(self.ready, self.ready.max())


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """Seconds per rank over all layers: see StepResult."""

    attention: Floats
    linear: Floats
    communication: Floats
    exposed: Floats
    exposed_nic: Floats


class Modules(NamedTuple):
    """The linear modules round a layer's attention, [num_ranks] each: seconds at which they begin, at which the next
    layer's begin, which hide what a rank is still sending, and how long they take."""

    begin: Floats
    following: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers to be played: num_layers layers of `linear` seconds per rank, then `attention`; a rank waits for its
    copies to or from host memory, where it has any, before the next layer."""

    attention: HopGraph | Direct
    linear: Floats
    num_layers: int
    copies: LayerCopies | None = None

    def play(self, state: ClockState) -> RankSeconds:
        """Advances `state` over all layers."""
        linear, count = self.linear, self.num_layers
        sums = np.zeros((4, len(linear)))
        steps: list[ClockState] = []
        for layer in range(count):
            old = ClockState(state.ready, state.free.copy())
            occupied = self._one(state)
            steps.append(state.since(old))
            settled = layer > 1 and _equal(steps[-1].ready, steps[-2].ready)
            left = count - 1 - layer if settled or layer + 1 == PLAYED else 0
            sums += (1 + left) * np.stack(occupied)
            if left:
                recent = steps[-1:] if settled else steps[-AVERAGED:]
                state.ready = state.ready + left * np.mean([step.ready for step in recent], axis=0)
                state.free.queues += left * np.mean([step.free.queues for step in recent], axis=0)
                state.free.links += left * np.mean([step.free.links for step in recent], axis=0)
                break
        return RankSeconds(sums[0], count * linear, *sums[1:])

    def one(self, state: ClockState) -> Timeline:
        """Plays one layer, whose attention is a program of hops: linear modules on every rank, then attention."""
        assert isinstance(self.attention, HopGraph)
        ready = state.ready + self.linear
        timeline = run_hops(self.attention, ready, state.free)
        state.ready = self._copied(state.ready, finished(self.attention, timeline, ready))
        return timeline

    def _copied(self, begin: Floats, ready: Floats) -> Floats:
        """Returns when every rank begins the next layer: as soon as it is ready, and has sent or been brought what it
        keeps."""
        return ready if self.copies is None else ready + self.copies.waited(ready - begin)

    def _one(self, state: ClockState) -> tuple[Floats, Floats, Floats, Floats]:
        """Advances `state` over a layer and returns its occupancy."""
        begin = state.ready
        if isinstance(self.attention, Direct):
            start, ready = self.attention.run(begin + self.linear, state.free)
            state.ready = self._copied(begin, ready)
            return self.attention.occupancy(start, Modules(begin, state.ready, self.linear))
        timeline = self.one(state)
        return occupancy(self.attention, timeline, Modules(begin, state.ready, self.linear))


def _equal(a: Floats, b: Floats) -> bool:
    return bool(np.abs(a - b).max() <= _SETTLED * np.abs(a).max())


def finished(of: HopGraph, timeline: Timeline, ready: Floats) -> Floats:
    """Returns when each rank has everything it attended, and every message sent to it, [num_ranks]; where it stays
    until what it sends has arrived, that too."""
    out = ready.copy()
    _finished(of.hops.queue_a, of.hops.queue_b, of.hops.last, timeline.done, of.hops.queues, out)
    if of.until_sent:
        parts = of.hops
        np.maximum.at(out, parts.rank[parts.first[parts.op]], timeline.done)  # of the rank that it starts at
    return out


@nb.njit(**ENTERED)
def _finished(queue_a, queue_b, last, done, queues, out):  # type: ignore[no-untyped-def]
    for hop in range(len(done)):
        if last[hop]:
            rank = (queue_a[hop] if queue_b[hop] < 0 else queue_b[hop]) // queues
            out[rank] = max(out[rank], done[hop])


def occupancy(of: HopGraph, timeline: Timeline, modules: Modules) -> tuple[Floats, Floats, Floats, Floats]:
    """Returns the seconds of one layer, [num_ranks] each: (attending, transferring, transferring with the compute queue
    idle, of that across nodes)."""
    parts, num_ranks = of.hops, len(modules.seconds)
    attend = np.flatnonzero(parts.link_a < 0)
    rank = parts.queue_a[attend] // parts.queues
    assert (parts.queue_a[attend] % parts.queues == COMPUTE).all()
    busy = np.bincount(rank, weights=timeline.seconds(of.busy)[attend], minlength=num_ranks).astype(np.float64)
    # Each rank's compute intervals in time order: its linear modules, its attends, which are in queue order, and the
    # next layer's linear modules.
    mine = attend[np.argsort(rank, kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=num_ranks))]).astype(np.int64)
    moves = np.flatnonzero(parts.link_a >= 0)
    moves = moves[np.argsort(timeline.start[moves], kind="stable")]
    times = _Moving(parts.queue_a, parts.queue_b, timeline.start, timeline.release, parts.queues)
    computing = _Computing(mine, bounds, modules)
    moved, shown = _transferring(moves, times, computing)
    _, across = _transferring(moves[parts.link_class[moves] == NIC], times, computing)
    return busy, moved, shown, across


class _Moving(NamedTuple):
    """Queues of every hop, and when it takes and frees them; queues: of a rank."""

    queue_a: Ints
    queue_b: Ints
    start: Floats
    release: Floats
    queues: int


class _Computing(NamedTuple):
    """attends: hops, rank after rank from `bounds` on."""

    attends: Ints
    bounds: Ints
    modules: Modules


@nb.njit(**ENTERED)
def _transferring(moves, hops, computing):  # type: ignore[no-untyped-def]
    """Returns per rank the length of the union of its transfers, and of what of it no compute covers; moves by
    start."""
    queue_a, queue_b, start, release, queues = hops
    attends, bounds, (first, following, seconds) = computing
    ranks = len(seconds)
    moved, shown = np.zeros(ranks), np.zeros(ranks)
    left, right = np.zeros(ranks), np.zeros(ranks)  # the union's open interval
    place = bounds[:-1] - 1  # the first compute interval that may reach the open one; bounds[rank] - 1: linear
    for index in range(len(moves) + 1):
        for end in range(2 if index < len(moves) else ranks):
            if index < len(moves):
                hop = moves[index]
                queue = queue_a[hop] if end == 0 else queue_b[hop]
                if queue < 0:  # a copy to or from the host
                    continue
                rank = queue // queues
                if start[hop] <= right[rank]:
                    right[rank] = max(right[rank], release[hop])
                    continue
            else:
                rank = end
            # The open interval is complete: take its length, less the compute that falls into it.
            covered, at = 0.0, place[rank]
            while at <= bounds[rank + 1]:
                if bounds[rank] <= at < bounds[rank + 1]:
                    a, b = start[attends[at]], release[attends[at]]
                else:
                    a = first[rank] if at < bounds[rank] else following[rank]
                    b = a + seconds[rank]
                if b <= left[rank]:
                    place[rank] = at + 1
                elif a >= right[rank]:
                    break
                else:
                    covered += min(b, right[rank]) - max(a, left[rank])
                at += 1
            moved[rank] += right[rank] - left[rank]
            shown[rank] += max(right[rank] - left[rank] - covered, 0.0)  # 0 may be rounded to less
            if index < len(moves):
                left[rank], right[rank] = start[hop], release[hop]
    return moved, shown
