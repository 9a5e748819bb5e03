"""Columns of the hops of a program, as narrow as what they hold, and of when they run."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Floats, Ints
from zbench.simulator.clock import Timeline

Narrow = NDArray[np.int32]
Bytes = NDArray[np.int8]


class VariantHops(NamedTuple):
    """Columns of the hops of a step's variants, of which a program has each as often as it has instances of one: as
    those of zbench.simulator.hops and zbench.simulator.hop_graph."""

    queue_a: Narrow
    queue_b: Narrow
    link_a: Narrow
    link_b: Narrow
    link_class: Bytes
    channels: Bytes
    slot: Bytes
    busy: Floats
    latency: Floats


class ProgramHops(NamedTuple):
    """The hops of a program. row: of each, its place in `rows`. rows: few, so that a clock has them at hand whichever
    hop is next."""

    row: Narrow
    rows: VariantHops


class NarrowFollowers(NamedTuple):
    """Hops that come after a hop of a program: as zbench.simulator.hop_graph.Followers."""

    next_a: Narrow
    next_b: Narrow
    next_pair: Narrow
    offsets: Narrow
    followers: Narrow


class AssembledHops(NamedTuple):
    """The hops of a program, what follows each, and how many edges and hops before it in its queues each waits for.

    trains: hops that go in several pieces, int64 [n, 4]: the hop, where its pieces begin in `pieces`, how many it has,
    and how many the trains before it have together. pieces: seconds that each keeps its port, once for all instances of
    a variant.
    """

    hops: ProgramHops
    following: NarrowFollowers
    waits: Narrow
    trains: Ints
    pieces: Floats


@dataclass(frozen=True)
class TrainTimeline(Timeline):
    """When every hop runs; of a train, from the begin of its first piece to the end of its last. begun, ended: when
    pieces begin and end, seconds [pieces], those of one train after another. sent: hops with links, of trains -1 - the
    number, about in the order in which they begin, trains in which their last pieces do."""

    begun: Floats
    ended: Floats
    sent: Ints | Narrow
