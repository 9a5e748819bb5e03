"""A micro-batch to be planned, and what its layouts take when their plans are played."""

from dataclasses import dataclass, field

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import plan_copies
from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints, Plan
from zbench.simulator.attention import Programs, programs
from zbench.simulator.estimate.beside import seconds_beside
from zbench.simulator.estimate.expert_layer import ExpertLayer
from zbench.systems.nodewise.layout import Layout, make_layout, make_plan
from zbench.systems.nodewise.placements import Placement
from zbench.systems.nodewise.rates import Rates
from zbench.systems.nodewise.records import Nodes, NodeSettings, Sequences

LAYERS = 2  # that are played: with more, what is chosen is hardly better, and playing is most of planning


def seconds_of(plan: Plan, parts: Programs, cost: Cost, routed: ExpertLayer | None = None) -> float:
    """Plays two layers beside their gathers and reductions and returns the seconds of one, as the mean over all.

    routed: experts on several GPUs, on the way to which ranks meet; None: feed-forwards are at a token's home.
    """
    return seconds_beside(plan, parts, cost, LAYERS, routed)


def seconds_of_all(plans: tuple[Plan, ...], cost: Cost, routed: ExpertLayer | None = None) -> float:
    """Returns the seconds of a layer in all micro-batches together, each beside what a step gathers and reduces in
    it. routed: as of `seconds_of`."""
    last = len(plans) - 1
    parts = [cost.of_part(number == 0, number == last) for number in range(len(plans))]
    return sum(seconds_of(plan, programs(plan, cost), part, routed) for plan, part in zip(plans, parts, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Holds the sequences of a micro-batch, which of the batch's they are (seqs), and what they are placed on.

    placed: the sequences as placements weigh them, with what each waits for copies to and from host memory where it is
    whole (zbench.cost.memory.host_copies); the same where nothing is there. routed: as of `seconds_of`.
    """

    sequences: Sequences
    placed: Sequences
    seqs: Ints
    rates: Rates
    nodes: Nodes
    settings: NodeSettings
    routed: ExpertLayer | None = None

    @property
    def work(self) -> Floats:
        """Returns the seconds that every sequence takes, whole, float64 [n]."""
        return self.placed.work(self.rates.token.linear)

    def layout(self, placed: Placement) -> Layout:
        """Looks into the nodes of a placement."""
        return make_layout(placed, self.sequences, self.rates, self.settings)

    def plan(self, layout: Layout, cost: Cost, pairs: bool = False) -> Plan:
        """Makes a layout's plan; pairs: shards attend to the keys of two others in one call of the backward."""
        return make_plan(layout, self.sequences.tokens, self.seqs, cost, self.settings.chunks, pairs)

    def play(self, layout: Layout, cost: Cost, pairs: bool = False) -> "Trial":
        """Makes a layout's plan and plays it on the cluster's clock."""
        plan = self.plan(layout, cost, pairs)
        parts = programs(plan, cost)
        return Trial(layout, plan, parts, seconds_of(plan, parts, cost, self.routed), pairs, self.routed)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Holds a layout and its plan that was played.

    pairs: whether shards attend to the keys of two others in one call. seconds: of a layer, as `seconds_of` has them.
    routed: as there.
    """

    layout: Layout
    plan: Plan
    parts: Programs
    seconds: float
    pairs: bool
    routed: ExpertLayer | None = None

    @property
    def operations(self) -> int:
        """Counts the operations that were played."""
        return len(self.plan.forward) + len(self.plan.backward)

    def busy(self, cost: Cost) -> Floats:
        """Returns the seconds that every rank computes in a layer as it was played, without recomputation, or waits for
        its copies to and from host memory: float64 [num_ranks].
        """
        tokens = self.plan.tokens_per_rank
        linear, waits = (cost.linear_seconds(tokens), cost.gradient_seconds(tokens)), np.zeros(len(tokens))
        seconds = linear[0] + linear[1] if self.routed is None else self.routed.busy_seconds(tokens)
        for own, part, copies in zip(linear, self.parts, plan_copies(self.plan, cost), strict=True):
            attends = part.hops.link_a < 0
            attention = np.bincount(part.hops.rank[attends], part.busy[attends], len(seconds))
            seconds += attention
            waits += 0.0 if copies is None else copies.waited(own + attention)
        return np.asarray(seconds + waits, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PlayedPlans:
    """Remembers what a layer of the fastest plan of every micro-batch took when it was played."""

    plans: list[tuple[Plan, float]] = field(default_factory=list)

    def add(self, plan: Plan, seconds: float) -> Plan:
        """Notes the seconds of a plan, and returns the plan."""
        self.plans.append((plan, seconds))
        return plan

    def seconds(self, plans: tuple[Plan, ...]) -> float | None:
        """Returns the seconds of a layer of all these plans together, or None if one of them was not played."""
        found = [seconds for one in plans for plan, seconds in self.plans if plan is one]
        return sum(found) if len(found) == len(plans) else None
