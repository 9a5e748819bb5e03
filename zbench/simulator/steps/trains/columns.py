"""Columns of the hops of a program, as narrow as what they hold."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zbench.describe.arrays import Floats, Ints

Narrow = NDArray[np.int32]
Bytes = NDArray[np.int8]


class ProgramHops(NamedTuple):
    """Columns of the hops of a program: as those of zbench.simulator.hops and zbench.simulator.hop_graph. owner: the
    instance of each."""

    queue_a: Narrow
    queue_b: Narrow
    link_a: Narrow
    link_b: Narrow
    link_class: Bytes
    channels: Bytes
    slot: Bytes
    busy: Floats
    latency: Floats
    owner: Narrow

    @staticmethod
    def empty(count: int) -> "ProgramHops":
        """Returns columns of so many hops, to be filled."""
        a, b, c, d, owner = (np.empty(count, np.int32) for _ in range(5))
        link_class, channels, slot = (np.empty(count, np.int8) for _ in range(3))
        return ProgramHops(a, b, c, d, link_class, channels, slot, np.empty(count), np.empty(count), owner)


class NarrowFollowers(NamedTuple):
    """Hops that come after a hop of a program: as zbench.simulator.hop_graph.Followers."""

    next_a: Narrow
    next_b: Narrow
    next_pair: Narrow
    offsets: Narrow
    followers: Narrow


class AssembledHops(NamedTuple):
    """The hops of a program, what follows each, how many edges and hops before it in its queues each waits for, and the
    trains of its collectives."""

    hops: ProgramHops
    following: NarrowFollowers
    waits: Narrow
    trains: Ints
