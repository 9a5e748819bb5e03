"""Zeppelin: hierarchical partitioning, three queues, routing and remapping.

Sequences are cut over as few ranks as balance needs (zbench.systems.zeppelin.partition): short ones stay on
a GPU, longer ones go round a ring inside a node, the longest round a ring across nodes. The attention
engine starts the slowest communication first: inter-node, intra-node, local. Transfers between nodes
are spread over all NICs, and the tokens' homes are evened out for the linear modules.
Source: Zeppelin, arXiv 2509.21841 (EuroSys 2026); its pseudo-code is not published, so what is
derived here is told apart in docs/systems/zeppelin.md.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import remap, reverse, route
from zbench.passes.order import scheduled
from zbench.passes.reverse import Mode, check_mode
from zbench.passes.route import busiest_nic_seconds, narrowed, routed, unrouted
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan
from zbench.systems.zeppelin.partition import Partition, partitions
from zbench.systems.zeppelin.published import published_partition
from zbench.systems.zeppelin.timed import Timed
from zbench.systems.zeppelin.zones import ring_bound

SOURCE = "Zeppelin, arXiv 2509.21841"
KV_MOVES = {"keep": 2, "carry": 3, "regather": 3}  # how often kv, or its gradient, travels
CHOICES = {"partitioner": ("search", "published"), "routed_transfers": ("overlapped", "serial")}
# List-scheduling and direct transfers gained at most 1.049 of a layer, but for two batches of 126: 16 to 64 GPUs of A,
# C and H100 nodes, seven workloads. Plans that need so much more than a given number are not looked into.
ORDERED = 1.05
MOST_ORDERED = 200_000  # operations; list-scheduling more takes seconds, too long for a planner in a training loop


@dataclass(frozen=True, slots=True)
class Zeppelin:
    """Zeppelin as a system, each of its parts a switch, so that an ablation is a matter of switches.

    partition: off, every sequence goes round a ring of all ranks. partitioner: "search" compares partitions by
    predicted time; "published" takes what the paper's thresholds come to, over all NICs; nothing is played but to
    order it. route: spread transfers between nodes over all NICs. routed_transfers: "overlapped", a routed transfer
    of a rank begins while its last one is under way; "serial", when that has been combined. remap: balance tokens
    for the linear modules, leaving differences up to `remap_tolerance` tokens. list_schedule: list-schedule the three
    queues together instead of one after another. received_kv: what becomes of it until the backward
    (zbench.passes.reverse).

    Raises:
        ValueError: a switch has none of its values, or remap_tolerance is not a whole number of at least 0.
    """

    PUBLISHED: ClassVar[Published] = {
        "partitioner": PublishedValue("published", f"{SOURCE}, algorithms 1 and 2; what they leave open is derived"),
        "routed_transfers": PublishedValue(
            "serial", f"{SOURCE}: seconds of three hops are added up; derived from that"
        ),
        "list_schedule": PublishedValue(
            False, f"{SOURCE}: three queues, widest rings first; none is mixed with another"
        ),
    }

    cost: Cost
    partition: bool = True
    partitioner: Literal["search", "published"] = "search"
    route: bool = True
    routed_transfers: Literal["overlapped", "serial"] = "overlapped"
    remap: bool = True
    list_schedule: bool = True
    remap_tolerance: int = 128
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        for name in ("partition", "route", "remap", "list_schedule"):
            check_boolean(f"system.{name}", getattr(self, name))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"system.{name} is {getattr(self, name)!r}; it takes {' or '.join(choices)}")
        check_whole_number("system.remap_tolerance", self.remap_tolerance, 0)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns the plan of the whole batch as one micro-batch."""
        # The steps are named as in docs/systems/zeppelin.md. Partitioner "search" plays what it compares.
        if self.partitioner == "search":
            best = self._best(batch, np.inf)
            assert best is not None, "a ring over all ranks is always tried"
            return (self._improved(best),)
        # Partitioner "published" plays nothing, but to order the queues.
        cluster = self.cost.cluster
        parts = published_partition(batch.lengths, cluster.num_nodes, cluster.gpus_per_node)
        plan = self.partition_plan(batch, replace(parts, remap=self.remap) if self.partition else self._ring(batch))
        return (self._ordered(Timed.of(plan, self.cost)) if self.list_schedule else plan,)

    def plan_below(self, batch: Batch, seconds: float) -> tuple[Plan, ...] | None:
        """Returns what `plan` does with partitioner "search", or None where a layer of it is not predicted to take less
        than `seconds` (zbench.simulator.estimate.beside), which is mostly known before anything is built."""
        best = self._best(batch, ORDERED * seconds)
        return (self._improved(best),) if best is not None and best.seconds < ORDERED * seconds else None

    def _best(self, batch: Batch, below: float) -> Timed | None:
        """Returns the partition with the best estimate, unless a simpler one is predicted to be faster; None if none of
        them could take less than `below` seconds a layer.

        The simpler ones are cutting as little as memory allows (all local, if it fits), with and without
        remapping, and a ring over all ranks. Each is built and timed only if it could win: if what it
        takes at least, by its fullest rank and its busiest link, is below the time predicted for the best so far.
        """
        cost = self.cost
        moves, lanes = KV_MOVES[self.received_kv], cost.cluster.nics_per_node if self.route else 1
        tries = partitions(batch.lengths, cost, moves, lanes, self.remap) if self.partition else []
        # Never worse than a ring over all ranks; where the likely best is one already, another need not be tried.
        if not tries or (tries[0].size < cost.cluster.num_ranks).any():
            tries.append(self._ring(batch))
        best: Timed | None = None
        for one in tries:
            # Only what could win by its least or likely seconds is built and played.
            if one.floor < (below if best is None else min(below, best.seconds)):
                timed = self._proxied(self.partition_plan(batch, one))
                best = timed if best is None or timed.seconds < best.seconds else best
        return best

    def _ring(self, batch: Batch) -> Partition:
        """Lays every sequence over a ring of all ranks."""
        ranks, count = self.cost.cluster.num_ranks, len(batch.lengths)
        lanes = self.cost.cluster.nics_per_node if self.route else 1
        least = ring_bound(batch.lengths, self.cost, KV_MOVES[self.received_kv], lanes) if self.partition else 0.0
        first, size = np.zeros(count, np.int64), np.full(count, ranks)
        return Partition(first, size, np.arange(ranks), least=least, remap=not self.partition, simple=True)

    def _proxied(self, plan: Plan) -> "Timed":
        """Narrows routed transfers from all NICs to half as many, again and again while that helps: proxies take NVLink
        time."""
        best, lanes = Timed.of(plan, self.cost), self.cost.cluster.nics_per_node // 2
        while lanes > 1 and routed(plan):
            fewer = Timed.of(narrowed(plan, self.cost, lanes), self.cost)
            if fewer.seconds >= best.seconds:
                break
            best, lanes = fewer, lanes // 2
        return best

    def _improved(self, best: "Timed") -> Plan:
        """Returns `best` unrouted where detours turn out to cost more than they gain, and list-scheduled where that
        helps."""
        if self.route and busiest_nic_seconds(best.plan, self.cost) < best.seconds:
            direct = Timed.of(unrouted(best.plan), self.cost)
            best = direct if direct.seconds < best.seconds else best
        return self._ordered(best) if self.list_schedule else best.plan

    def _ordered(self, best: Timed) -> Plan:
        """Returns `best` list-scheduled, where that is not too much work and helps."""
        if len(best.plan.forward) + len(best.plan.backward) <= MOST_ORDERED:
            plan, _, parts = scheduled(best.plan, self.cost, best.parts)
            if Timed.of(plan, self.cost, parts).seconds < best.seconds:
                return plan
        return best.plan

    def partition_plan(self, batch: Batch, parts: Partition) -> Plan:
        """Returns the partition as a plan, remapped and routed if these are switched on; its queues one after
        another."""
        builder = Builder(batch.lengths, self.cost.cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask)
        # Attention engine: rings, widest first, then what is local. Remapping. The backward. Routing.
        _lay(builder, parts)
        plan = builder.build()
        plan = remap(plan, self.cost, self.remap_tolerance) if self.remap and parts.remap else plan
        plan = reverse(plan, self.received_kv).with_(serial_legs=self.routed_transfers == "serial")
        return route(plan, self.cost) if self.route else plan


def _lay(builder: Builder, parts: Partition) -> None:
    """Adds the rings, widest first: inter-node, then intra-node, then local; one pattern call for each width."""
    for size in sorted(set(parts.size.tolist()), reverse=True):
        seqs = np.flatnonzero(parts.size == size)
        rows = parts.members[parts.first[seqs][:, None] + np.arange(size)]
        groups, group = _distinct(rows)
        ring(builder, seqs, group, groups)


def _distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Returns the distinct rows, and which of them each row is."""
    if rows.shape[1] == 1:
        values, group = np.unique(rows[:, 0], return_inverse=True)
        return values[:, None], group
    groups, group = np.unique(rows, axis=0, return_inverse=True)
    return groups, group.reshape(-1)
