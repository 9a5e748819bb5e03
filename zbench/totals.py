"""Sums over a simulated step, as they are played. Pure: no torch."""

from dataclasses import dataclass

import numpy as np

from zbench.cost import Floats
from zbench.layers import Played
from zbench.plan import Ints


@dataclass(slots=True)
class Totals:
    """Arrays per rank or per NIC, as in zbench.result; without what parameters and gradients add.

    end: when each rank's last backward ends. forward_end: of the first micro-batch. backward_begin: of the last one.
    """

    end: Floats
    attention: Floats
    linear: Floats
    communication: Floats
    exposed: Floats
    nic_tx: Ints
    nic_rx: Ints
    nvlink: int = 0
    forward_end: float = 0.0
    backward_begin: float = 0.0

    @staticmethod
    def zero(num_ranks: int, num_nics: int) -> "Totals":
        a, b, c, d, e = (np.zeros(num_ranks) for _ in range(5))
        return Totals(a, b, c, d, e, np.zeros(num_nics, np.int64), np.zeros(num_nics, np.int64))

    def add(self, *played: Played) -> None:
        for part in played:
            self.attention += part.attention
            self.linear += part.linear
            self.communication += part.communication
            self.exposed += part.exposed
