"""Sums over a simulated step, as they are played. Pure: no torch."""

from dataclasses import dataclass

import numpy as np

from zbench.clock import Program
from zbench.cost import Cost, Floats
from zbench.layers import Played
from zbench.legs import NIC, NVLINK
from zbench.plan import Ints


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes of attention's messages: tx, rx [num_nics]; nvlink, on all links inside nodes."""

    tx: Ints
    rx: Ints
    nvlink: int

    @staticmethod
    def of(program: Program, cost: Cost) -> "Carried":
        """All layers of a forward or backward list."""
        cluster, layers, parts = cost.cluster, cost.model.num_layers, program.legs
        kind = parts.link_class(cluster.num_ranks)
        nic, size = kind == NIC, layers * parts.bytes
        tx, rx = np.zeros(cluster.num_nics, np.int64), np.zeros(cluster.num_nics, np.int64)
        for counter, link in ((tx, parts.link_a), (rx, parts.link_b)):
            np.add.at(counter, link[nic] // 2 - cluster.num_ranks, size[nic])
        return Carried(tx, rx, int(size[kind == NVLINK].sum()))

    def times(self, count: int) -> "Carried":
        return Carried(count * self.tx, count * self.rx, count * self.nvlink)

    def plus(self, other: "Carried") -> "Carried":
        return Carried(self.tx + other.tx, self.rx + other.rx, self.nvlink + other.nvlink)

    def busiest(self, cost: Cost) -> float:
        """Seconds that the busiest direction of a NIC needs for its bytes."""
        most = np.array([max(self.tx.max(), self.rx.max())])
        return float(cost.transfer_seconds(most, np.array([True]))[0])


@dataclass(slots=True)
class Totals:
    """Arrays per rank or per NIC, as in zbench.result; without what parameters and gradients add, but for `end`.

    end: seconds, when all there is before the optimizer has ended. forward_end: of the first micro-batch.
    """

    attention: Floats
    linear: Floats
    communication: Floats
    exposed: Floats
    exposed_nic: Floats
    carried: Carried
    end: float = 0.0
    forward_end: float = 0.0

    @staticmethod
    def zero(num_ranks: int, num_nics: int) -> "Totals":
        a, b, c, d, e = (np.zeros(num_ranks) for _ in range(5))
        return Totals(a, b, c, d, e, Carried(np.zeros(num_nics, np.int64), np.zeros(num_nics, np.int64), 0))

    def add(self, *played: Played) -> None:
        for part in played:
            self.attention += part.attention
            self.linear += part.linear
            self.communication += part.communication
            self.exposed += part.exposed
            self.exposed_nic += part.exposed_nic
