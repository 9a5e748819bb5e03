"""Adds up a simulated step while it is played: bytes on NICs and seconds of ranks.

Here are attention's messages and the tensor-parallel groups' gathers. What gathers of parameters and reductions of
gradients put on NICs is added once for the whole step: StepEstimate.step (zbench.simulator.estimate.step) adds
`nic_bytes` of the step's sharing (zbench.cost.collective).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import HIDDEN, SHOWN, Cost
from zbench.cost.recompute import is_selective
from zbench.describe.arrays import Floats
from zbench.describe.links import NIC
from zbench.plans.plan import ATTEND, Ints, Plan
from zbench.simulator.direct import Direct
from zbench.simulator.direct_occupancy import ACROSS
from zbench.simulator.estimate.layers import RankSeconds
from zbench.simulator.hop_graph import HopGraph


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes that attention's messages put on links, summed over a step.

    tx, rx: int64 [num_nics], sent and received by each NIC. nvlink: sent on all links inside nodes together, with the
    tensor-parallel groups' gathers. No collective's bytes are in tx and rx: those come with the step's sharing.
    """

    tx: Ints
    rx: Ints
    nvlink: int

    @staticmethod
    def of(program: HopGraph | Direct, cost: Cost) -> "Carried":
        """Counts the bytes of a forward or backward list, over all layers of a stage."""
        cluster, layers = cost.cluster, cost.layers
        if isinstance(program, Direct):
            tx, rx = np.zeros((2, cluster.num_nics), np.int64)
            np.add.at(tx, cluster.nic_of, program.sent[ACROSS])
            np.add.at(rx, cluster.nic_of, program.received[ACROSS])
            inside = program.sent.sum() - program.sent[ACROSS].sum()
            return Carried(tx, rx, int(inside)).times(layers)
        parts = program.hops
        nic, size = parts.link_class == NIC, layers * parts.bytes
        tx, rx = np.zeros(cluster.num_nics, np.int64), np.zeros(cluster.num_nics, np.int64)
        for counter, link in ((tx, parts.link_a), (rx, parts.link_b)):
            np.add.at(counter, link[nic] // 2 - cluster.num_ranks, size[nic])
        return Carried(tx, rx, int(size[~nic].sum()))

    def times(self, count: int) -> "Carried":
        """Returns the bytes of `count` such lists."""
        return Carried(count * self.tx, count * self.rx, count * self.nvlink)

    def of_layers(self, count: int, cost: Cost) -> "Carried":
        """Returns the bytes of so many layers, of those of all of a stage's."""
        tx, rx, nvlink = self.tx, self.rx, self.nvlink
        return Carried(tx * count // cost.layers, rx * count // cost.layers, nvlink * count // cost.layers)

    def plus(self, other: "Carried") -> "Carried":
        """Returns the bytes of both."""
        return Carried(self.tx + other.tx, self.rx + other.rx, self.nvlink + other.nvlink)

    def busiest(self, cost: Cost) -> float:
        """Returns the seconds that the busiest direction of a NIC needs for its bytes, all channels together: what
        collectives beside the layers cannot have."""
        return cost.nic_transfer_seconds(float(max(self.tx.max(), self.rx.max())))


@dataclass(slots=True)
class Totals:
    """The sums over a step, arrays per rank or per NIC, as in zbench.interfaces.result; without what parameters and
    gradients add, but for `end`.

    end: seconds, when all there is before the optimizer has ended. forward_end: of the first micro-batch. longest:
    seconds of the one that takes longest, without its head and what is gathered and reduced once.
    """

    attention: Floats
    linear: Floats
    communication: Floats
    exposed: Floats
    exposed_nic: Floats
    carried: Carried
    end: float = 0.0
    forward_end: float = 0.0
    longest: float = 0.0

    @staticmethod
    def zero(num_ranks: int, num_nics: int) -> "Totals":
        """Returns totals of nothing."""
        a, b, c, d, e = (np.zeros(num_ranks) for _ in range(5))
        return Totals(a, b, c, d, e, Carried(np.zeros(num_nics, np.int64), np.zeros(num_nics, np.int64), 0))

    def add(self, *played: RankSeconds) -> None:
        """Adds layers that were played."""
        for part in played:
            self.attention += part.attention
            self.linear += part.linear
            self.communication += part.communication
            self.exposed += part.exposed
            self.exposed_nic += part.exposed_nic

    def repack(self, plan: Plan, cost: Cost) -> None:
        """Takes the all-to-alls' repacking out of attention, with which it was played: it is communication.

        The compute queue does it, so none of it is hidden; whatever is on a link meanwhile counts beside it.
        """
        for ops, layers in ((plan.forward, cost.layers + cost.again_layers), (plan.backward, cost.layers)):
            attend = np.flatnonzero(ops.kind == ATTEND)
            seconds = layers * cost.repacking_seconds(plan, ops, attend)
            mine = np.bincount(ops.src[attend], weights=seconds, minlength=plan.num_ranks)
            self.attention -= mine
            self.communication += mine
            self.exposed += mine

    def exchange(self, plan: Plan, cost: Cost) -> None:
        """Takes the tensor-parallel groups' gathers out of linear modules, as which they were played.

        They count as communication, with those behind matmuls.
        """
        layers, again = cost.layers, cost.model.forwards_again
        early = is_selective(cost.model) * cost.model.recomputed_share  # a gather that is else behind matmuls
        gather = cost.group_gather_seconds(plan.tokens_per_rank)
        shown = layers * ((3 + again) * cost.exchange_seconds(plan.tokens_per_rank) + early * gather)
        self.linear -= shown
        self.exposed += shown
        self.communication += shown + layers * (HIDDEN - early) * gather
        size = int(plan.tokens_per_rank.sum()) * cost.model.hidden * cost.model.element_bytes * (cost.tp - 1)
        none = np.zeros(cost.cluster.num_nics, np.int64)
        gathers = layers * (2 * SHOWN + HIDDEN) + cost.again_layers * SHOWN
        self.carried = self.carried.plus(Carried(none, none, size * gathers))
