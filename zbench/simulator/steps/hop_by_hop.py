"""The hops of a program one by one, with the pieces of collectives' legs, and of messages that share ports, as hops of
their own: as traces show them, the critical path follows them, and zbench.simulator.clock plays them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.simulator.clock import Timeline
from zbench.simulator.hop_graph import HopGraph, graph_of
from zbench.simulator.hops import Hops
from zbench.simulator.steps.expand import BYTES, PIECES, QUEUE_A
from zbench.simulator.steps.trains.columns import AssembledHops, TrainTimeline
from zbench.simulator.steps.variant import PlayedInstance


@dataclass(frozen=True)
class HopByHop:
    """All hops of a program. of: its columns, where a train is one hop. gpu_queues: queues of a
    GPU."""

    of: AssembledHops
    instances: Sequence[PlayedInstance]
    gpu_queues: int

    @cached_property
    def _whole(self) -> Ints:
        """The rows of the program's hops as in zbench.simulator.steps.expand, with queues of meetings numbered."""
        found = np.concatenate([one.variant.lowered.table for one in self.instances], axis=1)
        found[QUEUE_A] = self.of.hops.rows.queue_a[self.of.hops.row]
        return found

    @cached_property
    def first(self) -> Ints:
        """The first hop here of each hop of the program, and one more for the end, int64 [hops of the program + 1]."""
        return np.concatenate([[0], np.cumsum(self._whole[PIECES])])

    @property
    def _last(self) -> Ints:
        """The last hop here of each hop of the program, whose data arrives when all has been sent, int64 [hops]."""
        return self.first[1:] - 1

    @cached_property
    def begin(self) -> Ints:
        """The first hop of each instance, and one more for the end, int64 [instances + 1]."""
        sizes = [one.variant.lowered.table.shape[1] for one in self.instances]
        return np.asarray(self.first[np.concatenate([[0], np.cumsum(sizes)])])

    @cached_property
    def _trains(self) -> tuple[Ints, Ints]:
        """The hops here that are pieces, train after train, and the place of each in AssembledHops.pieces."""
        hop, seconds, count, before = self.of.trains.T
        piece = np.arange(int(count.sum())) - np.repeat(before, count)
        return np.repeat(self.first[hop], count) + piece, np.repeat(seconds, count) + piece

    @cached_property
    def table(self) -> Ints:
        """The rows of hops as in zbench.simulator.steps.expand, with queues of meetings numbered."""
        pieces = self._whole[PIECES]
        found = np.repeat(self._whole, pieces, axis=1)
        piece = np.arange(found.shape[1]) - np.repeat(self.first[:-1], pieces)
        size, count = found[BYTES], found[PIECES]
        found[BYTES] = size * (piece + 1) // count - size * piece // count
        return found

    @cached_property
    def kinds(self) -> Ints:
        """The kinds of hops' operations."""
        kinds = np.concatenate([one.variant.kinds for one in self.instances])
        return np.repeat(kinds, self._whole[PIECES])

    @cached_property
    def graph(self) -> HopGraph:
        """The hops as zbench.simulator.clock plays them. Who waits for a train waits for its last piece; the first one
        waits for others, and each other one for the one before it, in its queue."""
        of, none = self.of.following, np.zeros(0, np.int64)
        row, rows = np.repeat(self.of.hops.row, self._whole[PIECES]), self.of.hops.rows
        op, rank, queue_a, queue_b, link_a, link_b, link_class, size, after, _, _ = self.table
        rank = np.minimum(rank, self.instances[0].variant.of.step.num_gpus - 1)  # CPUs are ready when GPUs are
        channels, whole = rows.channels[row].astype(np.int64), (rows.slot == rows.channels - 1)[row]
        ends = queue_a, queue_b, link_a, link_b
        parts = Hops(
            op, rank, *ends, link_class, size, channels, whole, after, none, none.astype(bool), self.gpu_queues
        )
        busy, latency, (mine, pieces) = rows.busy[row], np.zeros(len(row)), self._trains
        busy[mine], latency[self._last] = self.of.pieces[pieces], rows.latency[row[self._last]]
        producer = np.repeat(self._last, np.diff(of.offsets))
        return graph_of(parts, busy, latency, producer, self.first[of.followers])

    def times(self, played: TrainTimeline) -> Timeline:
        """Returns when these hops run, of when the program's do."""
        start, release, done = (
            np.repeat(one, self._whole[PIECES]) for one in (played.start, played.release, played.done)
        )
        mine = self._trains[0]
        start[mine], release[mine], done[mine] = played.begun, played.ended, played.ended
        done[self._last] = played.done
        return Timeline(start, release, done)

    def together(self, apart: Timeline) -> TrainTimeline:
        """Returns when the hops of the program run, of when these do."""
        first, last, mine = self.first[:-1], self._last, self._trains[0]
        pieces = apart.start[mine], apart.release[mine]
        sent = np.arange(len(first))
        sent[self.of.trains[:, 0]] = -1 - np.arange(len(self.of.trains))
        sent = sent[self.of.hops.rows.link_a[self.of.hops.row] >= 0]
        return TrainTimeline(apart.start[first], apart.release[last], apart.done[last], *pieces, sent)
