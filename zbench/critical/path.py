"""The critical path of a program that was played: from the step's end back to its begin, who waited for whom. Pure.

A hop (zbench.simulator.hops) begins when the last that it waited for is there: what it needs (an operand), the hop
before it in its queue, or a hop that had its link. The clock hands these moments on as they are, so the hop that it
waited for is one that ended at the very moment at which it began, to the bit; where several did, an operand counts
before a queue, and both before a link. From one such hop to the next the path goes back to a hop that begins with the
step, and the lengths of its parts sum to the step's seconds.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.simulator.clock import Timeline
from zbench.simulator.hops import Hops
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.step.operations import COMPUTE

BEGIN, OPERAND, GPU, QUEUE, LINK = "the step's begin", "an operand", "its GPU", "messages before it", "a link"


@dataclass(frozen=True, slots=True)
class PathHop:
    """A hop of the path. begin, end: seconds, from when it began to when what came after it on the path did. waited:
    for what it waited before it began."""

    hop: int
    begin: float
    end: float
    waited: str


def critical_path(program: HopByHop, timeline: Timeline) -> list[PathHop]:
    """Returns the hops of the critical path in the order in which they ran, each beginning where the one before it
    ends."""
    walk = _Walk.of(program, timeline)
    hop = int(np.argmax(timeline.done))
    end, found = float(timeline.done[hop]), []
    while True:
        begin = float(timeline.start[hop])
        before, waited = walk.before(hop)
        found.append(PathHop(hop, begin, end, waited))
        if before < 0:
            return found[::-1]
        hop, end = before, begin


@dataclass(frozen=True)
class _Walk:
    """A played program by the columns that tell which hop another waited for.

    offsets, producers: the hops whose data each needs, compressed rows. computes: whether each is a compute.
    by_start, by_release: hops in the order in which they start, and free what they take.
    """

    hops: Hops
    timeline: Timeline
    offsets: Ints
    producers: Ints
    computes: Flags
    by_start: Ints
    by_release: Ints

    @staticmethod
    def of(program: HopByHop, timeline: Timeline) -> "_Walk":
        graph, count = program.graph, len(timeline.start)
        producers = np.repeat(np.arange(count), np.diff(graph.offsets))[np.argsort(graph.followers, kind="stable")]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(graph.followers, minlength=count))])
        by_start, by_release = (np.argsort(moments, kind="stable") for moments in (timeline.start, timeline.release))
        return _Walk(graph.hops, timeline, offsets, producers, program.kinds == COMPUTE, by_start, by_release)

    def before(self, hop: int) -> tuple[int, str]:
        """Returns (the hop that `hop` waited for, or -1; what that was to it)."""
        times, begin = self.timeline, float(self.timeline.start[hop])
        if begin == 0:
            return -1, BEGIN
        for one in self.producers[self.offsets[hop] : self.offsets[hop + 1]].tolist():
            if times.done[one] == begin:
                return one, OPERAND
        ended, queues, links = _at(times.release, self.by_release, begin), self._queues(hop), self._links(hop)
        for one in ended:
            if one < hop and queues & self._queues(one):
                return one, GPU if self.computes[hop] else QUEUE
        for one in ended:
            if links & self._links(one) and times.start[one] < begin:
                return one, LINK
        for one in _at(times.start, self.by_start, begin):  # with several channels: no sooner than the one before it
            if one < hop and queues & self._queues(one):
                return one, QUEUE
        raise AssertionError(f"hop {hop} begins at {begin}, when nothing ends that it waits for")

    def _queues(self, hop: int) -> set[int]:
        return {int(self.hops.queue_a[hop]), int(self.hops.queue_b[hop])} - {-1}

    def _links(self, hop: int) -> set[int]:
        return {int(self.hops.link_a[hop]), int(self.hops.link_b[hop])} - {-1}


def _at(moments: Floats, order: Ints, moment: float) -> list[int]:
    """Returns the hops of which `moments`, ascending in `order`, are exactly `moment`."""
    first, last = (np.searchsorted(moments, moment, side, sorter=order) for side in ("left", "right"))
    found: list[int] = order[first:last].tolist()
    return found
