"""Plays a layer's attention over and over, with each rank's linear time between. Pure: no torch.

Layers are equal, so after a few the ranks move in step: each layer ends the same time after the one
before, on every rank, and the rest is a multiplication. Where transfers compete for links the order
of service keeps shifting a little from layer to layer; then PLAYED layers are played and the rest
take the mean of the last AVERAGED (tests/test_layers.py holds the difference to playing all).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.clock import Program, Timeline, run
from zbench.legs import COMPUTE, LANES

Floats = NDArray[np.float64]
_SETTLED = 1e-9  # relative: the rounding of sums of a few thousand terms, well below any time of interest
PLAYED, AVERAGED = 12, 8


@dataclass(slots=True)
class State:
    """Clocks that go on from layer to layer: ready [num_ranks], lanes [num_lanes], links [num_links], seconds."""

    ready: Floats
    lanes: Floats
    links: Floats

    @staticmethod
    def zero(num_ranks: int, num_lanes: int, num_links: int) -> "State":
        return State(np.zeros(num_ranks), np.zeros(num_lanes), np.zeros(num_links))


@dataclass(frozen=True, slots=True)
class Played:
    """Seconds per rank over all layers: see StepResult."""

    attention: Floats
    linear: Floats
    communication: Floats
    exposed: Floats


@dataclass(frozen=True, slots=True)
class Layers:
    """num_layers layers of `linear` seconds per rank, then `attention`."""

    attention: Program
    linear: Floats
    num_layers: int

    def play(self, state: State) -> Played:
        """Advances `state` over all layers."""
        linear, count = self.linear, self.num_layers
        sums = np.zeros((3, len(linear)))
        steps: list[State] = []
        for layer in range(count):
            old = State(state.ready, state.lanes.copy(), state.links.copy())
            timeline = self.one(state)
            steps.append(State(state.ready - old.ready, state.lanes - old.lanes, state.links - old.links))
            settled = layer > 1 and _equal(steps[-1].ready, steps[-2].ready)
            left = count - 1 - layer if settled or layer + 1 == PLAYED else 0
            sums += (1 + left) * np.stack(occupancy(self.attention, timeline, old.ready, linear))
            if left:
                recent = steps[-1:] if settled else steps[-AVERAGED:]
                state.ready = state.ready + left * np.mean([step.ready for step in recent], axis=0)
                state.lanes += left * np.mean([step.lanes for step in recent], axis=0)
                state.links += left * np.mean([step.links for step in recent], axis=0)
                break
        return Played(sums[0], count * linear, sums[1], sums[2])

    def one(self, state: State) -> Timeline:
        """One layer: linear modules on every rank, then attention."""
        ready = state.ready + self.linear
        timeline = run(self.attention, ready, state.lanes, state.links)
        state.ready = finished(self.attention, timeline, ready)
        return timeline


def _equal(a: Floats, b: Floats) -> bool:
    return bool(np.abs(a - b).max() <= _SETTLED * np.abs(a).max())


def finished(of: Program, timeline: Timeline, ready: Floats) -> Floats:
    """When each rank has everything it attended, and every message sent to it, [num_ranks]."""
    out = ready.copy()
    parts = of.legs
    np.maximum.at(out, parts.lane_a[parts.link_a < 0] // LANES, timeline.done[parts.link_a < 0])
    ends = parts.last & (parts.link_a >= 0)
    np.maximum.at(out, parts.lane_b[ends] // LANES, timeline.done[ends])
    return out


def occupancy(of: Program, timeline: Timeline, begin: Floats, linear: Floats) -> tuple[Floats, Floats, Floats]:
    """(attending, transferring, transferring with the compute lane idle) seconds of one layer, [num_ranks] each."""
    parts, num_ranks = of.legs, len(linear)
    moves = parts.link_a >= 0
    attend = ~moves
    assert (parts.lane_a[attend] % LANES == COMPUTE).all()
    ranks = np.arange(num_ranks)
    owner = [parts.lane_a[attend] // LANES, ranks, parts.lane_a[moves] // LANES, parts.lane_b[moves] // LANES]
    start = [timeline.start[attend], begin, timeline.start[moves], timeline.start[moves]]
    stop = [timeline.release[attend], begin + linear, timeline.release[moves], timeline.release[moves]]
    compute = [np.ones(int(attend.sum())), np.ones(num_ranks), np.zeros(int(moves.sum())), np.zeros(int(moves.sum()))]
    rank, computes = np.concatenate(owner * 2), np.concatenate(compute * 2)
    time = np.concatenate(start + stop)
    sign = np.repeat([1.0, -1.0], len(time) // 2)
    order = np.lexsort((time, rank))
    rank, time = rank[order], time[order]
    computing = np.cumsum(np.where(computes[order] > 0, sign[order], 0))
    moving = np.cumsum(np.where(computes[order] > 0, 0, sign[order]))
    width = np.where(rank[1:] == rank[:-1], np.diff(time), 0.0)
    transferring = np.where(moving[:-1] > 0.5, width, 0.0)
    exposed = np.where(computing[:-1] < 0.5, transferring, 0.0)
    busy = np.bincount(parts.lane_a[attend] // LANES, weights=of.busy[attend], minlength=num_ranks)
    moved = np.bincount(rank[:-1], weights=transferring, minlength=num_ranks)
    shown = np.bincount(rank[:-1], weights=exposed, minlength=num_ranks)
    return busy.astype(np.float64), moved.astype(np.float64), shown.astype(np.float64)
