"""Plays a layer's attention over and over, with each rank's linear time between.

Layers are equal, so after a few the ranks move in step: each layer ends the same time after the one
before, on every rank, and the rest is a multiplication. Where transfers compete for links the order
of service keeps shifting a little from layer to layer; then PLAYED layers are played and the rest
take the mean of the last AVERAGED (tests/simulator/estimate/test_layers.py holds the difference to playing all).
"""

from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.cost.memory.host_copies import LayerCopies
from zbench.describe.arrays import Floats
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED
from zbench.simulator.clock import Free, Timeline, run_hops
from zbench.simulator.direct import Direct
from zbench.simulator.hop_graph import HopGraph

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
class Layers:
    """Layers to be played: num_layers layers of `linear` seconds per rank, then `attention`; a rank waits for its
    copies to or from host memory, where it has any, before the next layer."""

    attention: HopGraph | Direct
    linear: Floats
    num_layers: int
    copies: LayerCopies | None = None

    def play(self, state: ClockState) -> None:
        """Advances `state` over all layers."""
        count = self.num_layers
        steps: list[ClockState] = []
        for layer in range(count):
            old = ClockState(state.ready, state.free.copy())
            self.one(state)
            steps.append(state.since(old))
            settled = layer > 1 and _equal(steps[-1].ready, steps[-2].ready)
            left = count - 1 - layer if settled or layer + 1 == PLAYED else 0
            if left:
                recent = steps[-1:] if settled else steps[-AVERAGED:]
                state.ready = state.ready + left * np.mean([step.ready for step in recent], axis=0)
                state.free.queues += left * np.mean([step.free.queues for step in recent], axis=0)
                state.free.links += left * np.mean([step.free.links for step in recent], axis=0)
                break

    def one(self, state: ClockState) -> None:
        """Plays one layer: linear modules on every rank, then attention."""
        begin, ready = state.ready, state.ready + self.linear
        if isinstance(self.attention, Direct):
            after = self.attention.run(ready, state.free)
        else:
            after = finished(self.attention, run_hops(self.attention, ready, state.free), ready)
        state.ready = after if self.copies is None else after + self.copies.waited(after - begin)


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
