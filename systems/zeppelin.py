"""Zeppelin: hierarchical partitioning, three queues, routing and remapping.

Sequences are cut over as few ranks as balance needs (zbench.systems.zeppelin_partition): short ones stay on
a GPU, longer ones go round a ring inside a node, the longest round a ring across nodes. The attention
engine starts the slowest communication first: inter-node, intra-node, local. Transfers between nodes
are spread over all NICs, and the tokens' homes are evened out for the linear modules.
Source: Zeppelin, arXiv 2509.21841 (EuroSys 2026); its pseudo-code is not published, so what is
derived here is told apart in docs/systems.md. Pure: no torch.
"""

from dataclasses import dataclass

import numpy as np

from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.patterns import ring
from zbench.plan import Ints, Plan
from zbench.rewrite import remap, reverse, route
from zbench.rewrite.order import scheduled
from zbench.rewrite.reverse import Mode, check_mode
from zbench.rewrite.route import busiest_nic_seconds, narrowed, routed, unrouted
from zbench.simulate import Programs, layer_seconds, programs
from zbench.systems.zeppelin_partition import Partition, partitions
from zbench.systems.zeppelin_zones import ring_bound

LAYERS = 3  # played to compare plans: in one, ranks that run ahead into the next layer look idle
MOST_ORDERED = 200_000  # operations; list-scheduling more takes seconds, too long for a planner in a training loop


@dataclass(frozen=True, slots=True)
class Zeppelin:
    """Each part of the system by itself, so that an ablation is a matter of switches.

    partition: off, every sequence goes round a ring of all ranks. route: spread transfers between nodes
    over all NICs. remap: balance tokens for the linear modules, leaving differences up to `tolerance`
    tokens. order: list-schedule the three queues together instead of one after another.
    backward: what becomes of received kv (zbench.rewrite.reverse).

    Raises:
        ValueError: tolerance is not a whole number of at least 0.
    """

    cost: Cost
    partition: bool = True
    route: bool = True
    remap: bool = True
    order: bool = True
    tolerance: int = 128
    backward: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.backward", self.backward)
        for name in ("partition", "route", "remap", "order"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"system.{name} is {getattr(self, name)!r}; it takes true or false")
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int) or self.tolerance < 0:
            raise ValueError(f"system.tolerance is {self.tolerance!r}; it takes a whole number of tokens, at least 0")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """One micro-batch: the partition with the best estimate, unless a simpler one is predicted to be faster.

        The simpler ones are cutting as little as memory allows (all local, if it fits), with and without
        remapping, and a ring over all ranks. Each is built and timed only if it could win: if what it
        takes at least, by its fullest rank and its busiest link, is below the time predicted for the best so far.
        """
        cost, ranks = self.cost, self.cost.cluster.num_ranks
        count = len(batch.lengths)
        lanes = cost.cluster.nics_per_node if self.route else 1
        moves = {"keep": 2, "carry": 3, "regather": 3}[self.backward]
        least = ring_bound(batch.lengths, cost, moves, lanes) if self.partition else 0.0
        ring_of_all = Partition(
            np.zeros(count, np.int64), np.full(count, ranks), np.arange(ranks), least=least, simple=True
        )
        tries = partitions(batch.lengths, cost, moves, lanes, self.remap) if self.partition else []
        if not tries or (tries[0].size < ranks).any():
            tries.append(ring_of_all)
        best: Timed | None = None
        for one in tries:
            if best is None or one.floor < best.seconds:
                timed = self._proxied(self._laid(batch, one))
                best = timed if best is None or timed.seconds < best.seconds else best
        assert best is not None
        return (self._improved(best),)

    def _proxied(self, plan: Plan) -> "Timed":
        """Transfers over all NICs, or over half as many, again and again while that helps: proxies take NVLink time."""
        best, lanes = Timed.of(plan, self.cost), self.cost.cluster.nics_per_node // 2
        while lanes > 1 and routed(plan):
            fewer = Timed.of(narrowed(plan, self.cost, lanes), self.cost)
            if fewer.seconds >= best.seconds:
                break
            best, lanes = fewer, lanes // 2
        return best

    def _improved(self, best: "Timed") -> Plan:
        """`best` unrouted where detours turn out to cost more than they gain, and list-scheduled where that helps."""
        if self.route and busiest_nic_seconds(best.plan, self.cost) < best.seconds:
            direct = Timed.of(unrouted(best.plan), self.cost)
            best = direct if direct.seconds < best.seconds else best
        if self.order and len(best.plan.forward) + len(best.plan.backward) <= MOST_ORDERED:
            plan, _, parts = scheduled(best.plan, self.cost, best.parts)
            if layer_seconds(plan, self.cost, LAYERS, parts) < best.seconds:
                return plan
        return best.plan

    def _laid(self, batch: Batch, parts: Partition) -> Plan:
        """The partition as a plan, remapped and routed if these are switched on; its queues one after another."""
        builder = Builder(batch.lengths, self.cost.cluster.num_ranks, self.cost.model.num_heads)
        _lay(builder, parts)
        plan = builder.build()
        plan = remap(plan, self.cost, self.tolerance) if self.remap and (parts.remap or not self.partition) else plan
        plan = reverse(plan, self.backward)
        return route(plan, self.cost) if self.route else plan


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan, its programs, and the predicted seconds of a layer."""

    plan: Plan
    parts: Programs
    seconds: float

    @staticmethod
    def of(plan: Plan, cost: Cost) -> "Timed":
        parts = programs(plan, cost)
        return Timed(plan, parts, layer_seconds(plan, cost, LAYERS, parts))


def _lay(builder: Builder, parts: Partition) -> None:
    """Adds the rings, widest first: inter-node, then intra-node, then local; one pattern call for each width."""
    for size in sorted(set(parts.size.tolist()), reverse=True):
        seqs = np.flatnonzero(parts.size == size)
        rows = parts.members[parts.first[seqs][:, None] + np.arange(size)]
        groups, group = _distinct(rows)
        ring(builder, seqs, group, groups)


def _distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Distinct rows, and which of them each row is."""
    if rows.shape[1] == 1:
        values, group = np.unique(rows[:, 0], return_inverse=True)
        return values[:, None], group
    groups, group = np.unique(rows, axis=0, return_inverse=True)
    return groups, group.reshape(-1)
