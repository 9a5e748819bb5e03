"""Nodewise: heads shared inside nodes, sequences cut over just enough of them, both filling what others leave.

The project's own planner; docs/planner.md describes it. Candidates come from systems.nodewise_cuts (what is on which
node) and systems.nodewise_ranks (what is where inside), are ranked by estimates, and the best few are laid
(systems.nodewise_lay) and played on the cluster's clock. Pure: no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from systems.micro_batches import fitting
from systems.nodewise_cuts import Bins, Rule, placements
from systems.nodewise_plan import Layout, laid, layout
from systems.nodewise_work import Rates, attention_seconds
from systems.zeppelin_zones import capacity_tokens
from zbench.batch import Batch
from zbench.cost import Cost, Floats
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.rewrite.order import scheduled
from zbench.simulate import layer_seconds, programs

LAYERS = 3  # played to compare plans: in one, ranks that run ahead into the next layer look idle
MORE = 4  # most sequences that are cut beyond those too long for a node
BACKS, SQUEEZES, WIDES = (0.0, 0.5, 0.9, 2.0), (0.03, 0.2), (2, 4)  # of Rule
LOOKED = 4  # placements whose nodes are looked into, for each one that is played
NEAR = 1.1  # times the best estimate
TIGHT = 0.8  # of the tokens a GPU has room for, where plans with all of them do not fit memory
SLACK = 1.02  # sequences of more than so many even shares of a node are always cut


@dataclass(frozen=True, slots=True)
class Nodewise:
    """tries: placements that are built and played, the best estimate first; 1: the estimate alone decides.

    operations: that all played plans have together, so that a large cluster's planning time is bounded as well.
    chunks: parts in which a GPU's heads are exchanged; the first is tried with every placement, the others with
    the best one. What follows switches a part of the planner off, for an ablation. heads: share heads inside nodes
    (off: GPUs are what sequences are cut over, and keys travel). fewest: cut over just enough nodes, weighted by what
    is left (off: evenly over all). front: stretches on nodes that lack tokens. first: place cut sequences first.
    homes: tokens of shared sequences at home where GPUs lack tokens (off: evenly). order: list-schedule the plan.

    Raises:
        ValueError: a number is no whole number of at least 1, a switch neither true nor false.
    """

    cost: Cost
    tries: int = 4
    operations: int = 400_000
    chunks: tuple[int, ...] = (2, 4)
    heads: bool = True
    fewest: bool = True
    front: bool = True
    first: bool = True
    homes: bool = True
    wide: bool = True
    order: bool = False

    def __post_init__(self) -> None:
        for name in ("tries", "operations"):
            _check_whole(f"system.{name}", getattr(self, name))
        if not isinstance(self.chunks, (list, tuple)) or not self.chunks:
            raise ValueError(f"system.chunks is {self.chunks!r}; it takes a list of whole numbers, as in [2, 4]")
        for chunks in self.chunks:
            _check_whole("system.chunks", chunks)
        for name in ("heads", "fewest", "front", "first", "wide", "homes", "order"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"system.{name} is {getattr(self, name)!r}; it takes true or false")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """As few micro-batches as memory allows, each by the placement that was played fastest."""
        rates = Rates.of(self.cost)
        return fitting(batch.lengths, self.cost, lambda seqs: self._plans(batch.lengths[seqs], seqs, rates))

    def _plans(self, lengths: Ints, seqs: Ints, rates: Rates) -> Iterator[Plan]:
        """The best plan; for want of memory, then, the same one without what it keeps for the backward."""
        cluster = self.cost.cluster
        if not self.heads:  # every GPU is a node of its own
            cluster = replace(
                cluster, num_nodes=cluster.num_ranks, gpus_per_node=1, nics_per_node=1
            )
        attention = attention_seconds(lengths, self.cost)
        nodes, ranks = cluster.num_nodes, cluster.gpus_per_node
        mean = -(-int(lengths.sum()) // cluster.num_ranks)
        rules = self._rules(attention + rates.token * lengths, nodes, ranks)
        room = max(capacity_tokens(self.cost), mean)
        for most in (room, max(int(TIGHT * room), int(1.02 * mean))):
            bins = Bins(nodes, most * ranks, ranks, rates.across, rates.repack if self.heads else 0.0)
            found = placements(lengths, attention, rates, bins, rules)
            layouts = [
                layout(one, lengths, attention, rates, cluster, self.cost.model.num_heads, most, self.chunks[0], self.homes)
                for one in found[: LOOKED * self.tries]
            ]
            if layouts:
                plan = self._played(lengths, seqs, _spread(layouts))
                yield plan
        yield reverse(replace(plan, backward=plan.backward.take(slice(0, 0))), "regather")

    def _rules(self, work: Floats, nodes: int, ranks: int) -> list[Rule]:
        if nodes == 1:
            return [Rule(0)]
        must = int((work > SLACK * work.sum() / nodes).sum())
        found = [Rule(0)] if must == 0 else []
        firsts = (False, True) if self.first else (False,)
        backs = BACKS if self.front else BACKS[:1]
        for cut in range(max(must, 1), min(must + MORE, len(work)) + 1):
            if not self.fewest:
                found.append(Rule(cut, even=True))
                continue
            found += [Rule(cut, *rest) for rest in product(firsts, (False, True), backs, SQUEEZES)]
            for wide in WIDES if self.wide and ranks > 1 else ():
                if nodes >= 2 * wide and self.cost.model.num_heads >= wide * ranks:
                    found += [Rule(cut, *rest, wide=wide) for rest in product(firsts, (False, True), (0.0,), SQUEEZES)]
        return found

    def _played(self, lengths: Ints, seqs: Ints, layouts: list[Layout]) -> Plan:
        """The fastest plan, of the best few layouts with the first number of chunks, then of the best with others."""
        best: tuple[float, Plan, Layout] | None = None
        left = self.operations
        for turn, (one, chunks) in enumerate(
            [(one, self.chunks[0]) for one in layouts[: self.tries]] + [(None, chunks) for chunks in self.chunks[1:]]
        ):
            if best is not None and left <= 0:
                break
            if one is None:
                assert best is not None
                one = best[2]
            plan = reverse(laid(one, lengths, seqs, self.cost.cluster.num_ranks, self.cost.model.num_heads, chunks), "keep")
            left -= len(plan.forward) + len(plan.backward)
            if self.tries == 1 and len(self.chunks) == 1:
                return plan
            seconds = layer_seconds(plan, self.cost, LAYERS)
            if DEBUG: print(one.placement.rule, chunks, round(1e3*one.seconds,3), round(1e3*seconds,3))
            if best is None or seconds < best[0]:
                best = seconds, plan, one
        assert best is not None
        plan = best[1]
        if self.order:
            ordered, _, parts = scheduled(plan, self.cost, programs(plan, self.cost))
            if layer_seconds(ordered, self.cost, LAYERS, parts) < best[0]:
                plan = ordered
        return plan

DEBUG = False


def _spread(layouts: list[Layout]) -> list[Layout]:
    """The best estimate first, then the best of every other kind that is not far behind, then the others: estimates
    of one kind are off in the same direction."""
    layouts = sorted(layouts, key=lambda one: one.seconds)
    kinds: dict[tuple[bool, bool], Layout] = {}
    for one in layouts:
        if one.seconds < NEAR * layouts[0].seconds:
            kinds.setdefault((one.placement.rule.first, one.placement.rule.wide > 1), one)
    chosen = list(kinds.values())
    return chosen + [one for one in layouts if all(one is not other for other in chosen)]


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it takes a whole number of at least 1")
