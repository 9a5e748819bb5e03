"""Nodewise: heads shared inside nodes, sequences cut over just enough of them, both filling what others leave.

The project's own planner; docs/planner.md describes it. Candidates come from nodewise_cuts (what is on which
node) and zbench.systems.nodewise.ranks (what is where inside), are ranked by estimates, and the best few are laid
(zbench.systems.nodewise.lay) and played on the cluster's clock; then the best one's cuts are moved by what it took
(zbench.systems.nodewise.even). Pure: no torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.passes import reverse
from zbench.passes.order import scheduled
from zbench.plans.plan import Ints, Ops, Plan
from zbench.systems.common.micro_batches import fitting
from zbench.systems.nodewise.choice import careful, chosen
from zbench.systems.nodewise.cuts import Bins, Placement, Rule, groups, placements
from zbench.systems.nodewise.even import evened
from zbench.systems.nodewise.lay import PAIR
from zbench.systems.nodewise.plan import Layout, Played, Task, seconds_of
from zbench.systems.nodewise.ranks import Node
from zbench.systems.nodewise.rivals import Rivals
from zbench.systems.nodewise.rules import Kinds
from zbench.systems.nodewise.work import Rates, attention_seconds
from zbench.systems.zeppelin.zones import capacity_tokens

CHUNKS = 3  # a GPU's heads are never cut in more
TIGHT = 0.8  # of the tokens a GPU has room for, where plans with all of them do not fit memory
SWITCHES = (
    "heads", "fewest", "front", "first", "wide", "uneven", "careful", "homes", "pairs", "even", "swap", "order",
    "rivals",
)  # fmt: skip
Change = Callable[[Played], tuple[Layout, bool] | None]  # to a layout, and whether it is laid with pairs


@dataclass(frozen=True, slots=True)
class Nodewise:
    """tries: placements that are built and played; with one, no pairs and nothing evened, the estimate decides.
    operations: that all played plans of a micro-batch have together, beyond which no other is begun. chunks: parts in
    which a GPU's heads are exchanged and attended to at most. groups: in which a node's shared sequences are at most,
    each with a split of heads of its own.

    Each part of the planner by itself, so that an ablation is a matter of switches. heads: share heads inside nodes
    (off: GPUs are what sequences are cut over, and keys travel). fewest: cut over just enough nodes, weighted by what
    is left (off: evenly over all). front: stretches on nodes that lack tokens. first: place cut sequences first, too.
    wide: nodes of a sequence on many share heads. uneven: where gathers and reductions fill NICs, cut fewer sequences
    over fewer nodes, too, which leaves nodes uneven. careful: of layouts with about the same estimate play the one,
    too, that needs NICs least. homes: tokens of shared sequences at home where GPUs lack tokens (off: evenly). pairs:
    attend to the keys of two other nodes in one call of the backward, where that is faster. even: move the cuts of the
    plan played fastest, twice, and play it again. swap: whole sequences, too. order: list-schedule the plan. rivals:
    take a simpler system's plans where a step of them is faster (zbench.systems.nodewise.rivals).

    Raises:
        ValueError: a number is not whole and at least 1, chunks are more than 3, or a switch neither true nor false.
    """

    cost: Cost
    tries: int = 3
    operations: int = 200_000
    chunks: int = CHUNKS
    groups: int = 3
    heads: bool = True
    fewest: bool = True
    front: bool = True
    first: bool = True
    wide: bool = True
    uneven: bool = True
    careful: bool = True
    homes: bool = True
    pairs: bool = True
    even: bool = True
    swap: bool = True
    order: bool = False
    rivals: bool = True
    simpler: Rivals = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole_number("system.tries", self.tries, 1)
        check_whole_number("system.operations", self.operations, 1)
        check_whole_number("system.groups", self.groups, 1)
        check_whole_number("system.chunks", self.chunks, 1, CHUNKS)
        for name in SWITCHES:
            check_boolean(f"system.{name}", getattr(self, name))
        object.__setattr__(self, "simpler", Rivals(self.cost))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """As few micro-batches as memory allows, each by the placement that was played fastest."""
        rates = Rates.of(self.cost)
        own = fitting(batch.lengths, self.cost, lambda seqs: self._plans(batch.lengths[seqs], seqs, rates))
        return self.simpler.fastest(own, batch) if self.rivals else own

    def _plans(self, lengths: Ints, seqs: Ints, rates: Rates) -> Iterator[Plan]:
        """The best plan; then, for want of memory, one with tokens spread more evenly; then without kept keys."""
        mean = -(-int(lengths.sum()) // self.cost.cluster.num_ranks)
        room = max(capacity_tokens(self.cost), mean)
        plan = None
        for most in (room, max(int(TIGHT * room), int(1.02 * mean))):
            task = self._task(lengths, seqs, rates, most)
            found, uneven = self._placements(task)
            if found or uneven:
                plan = self._played(task, found, uneven)
                yield plan
        assert plan is not None, "everything cut evenly always fits the room of the mean"
        yield reverse(plan.with_(backward=Ops.concatenate([])), "regather")

    def _task(self, lengths: Ints, seqs: Ints, rates: Rates, room: int) -> Task:
        """room: tokens of a GPU."""
        cluster = self.cost.cluster
        if not self.heads:  # every GPU is a node of its own
            cluster = replace(cluster, num_nodes=cluster.num_ranks, gpus_per_node=1, nics_per_node=1)
        ranks = cluster.gpus_per_node
        repack = rates.repack if self.heads else 0.0
        bins = Bins(cluster.num_nodes, room * ranks, ranks, rates.across, repack, rates.alone)
        node = Node(ranks, self.cost.model.num_heads, room, self.chunks, self.groups, self.homes)
        return Task(lengths, seqs, attention_seconds(lengths, self.cost), rates, bins, node)

    def _placements(self, of: Task) -> tuple[list[Placement], list[Placement]]:
        """Those with even nodes, and where NICs are full those with uneven ones."""
        kinds = Kinds(self.fewest, self.front, self.first, self.wide)
        given, work = (of.lengths, of.attention, of.rates, of.bins), of.attention + of.rates.token * of.lengths
        found = placements(*given, kinds.even(work, of.bins, self.cost.model.num_heads))
        full = self.uneven and found and found[0].seconds > found[0].layer  # NICs are
        uneven = placements(*given, kinds.uneven(work, of.bins)) if full else []
        return found or placements(*given, [Rule(len(of.lengths), even=True)]), uneven

    def _played(self, of: Task, found: list[Placement], uneven: list[Placement]) -> Plan:
        """The plan played fastest, of the layouts chosen and of what is made of them."""
        spread = chosen(of, found, uneven, self.tries)
        if self.tries == 1 and not (self.pairs or self.even or self.order):
            return of.laid(spread[0], self.cost)
        best, left = self._best(of, spread, self.operations)
        another = careful(of, found, spread) if self.careful and left > 0 else None
        if another is not None and of.played(another, self.cost).seconds < best.seconds:
            best, _ = self._best(of, [another], left)
        if self.order:
            ordered, _, parts = scheduled(best.plan, self.cost, best.parts)
            if seconds_of(ordered, parts, self.cost) < best.seconds:
                return ordered
        return best.plan

    def _best(self, of: Task, layouts: list[Layout], operations: int) -> tuple[Played, int]:
        """(what is fastest of the layouts and of what is made of the fastest of them, operations that are left)."""
        best = of.played(layouts[0], self.cost)
        left = operations - best.operations
        for change in self._changes(of, layouts[1:]):
            if left <= 0:
                break
            changed = change(best)
            if changed is not None:
                layout, pairs = changed
                other = of.played(layout, self.cost, pairs)
                left -= other.operations
                best = other if other.seconds < best.seconds else best
        return best, left

    def _changes(self, of: Task, others: list[Layout]) -> list[Change]:
        """From the plan played fastest so far to the next: other layouts, other rows in pairs, cuts moved twice."""

        def paired(best: Played) -> tuple[Layout, bool] | None:
            parts = groups(best.layout.placement.rows, best.layout.placement.rule.wide)
            counts = np.bincount([best.layout.placement.rows[part[0], 0] for part in parts], minlength=1)
            return (best.layout, True) if counts.max() > PAIR else None

        def moved(best: Played, alike: bool) -> tuple[Layout, bool] | None:
            busy = best.busy(self.cost).reshape(of.bins.count, -1).mean(axis=1)
            given = of.lengths, of.attention, of.rates, of.bins, busy
            placed = evened(best.layout.placement, *given, alike, self.swap)
            return None if placed is None else (of.layout(placed), best.pairs)

        changes: list[Change] = [partial(_instead, other) for other in others]
        changes += [paired] if self.pairs else []
        return changes + ([partial(moved, alike=alike) for alike in (False, True)] if self.even else [])


def _instead(other: Layout, best: Played) -> tuple[Layout, bool]:
    """Whatever was best so far."""
    return other, False
