"""Layers played beside gathers of parameters and reductions of gradients, on the same links: what planners go by.

A whole step (zbench.simulator.steps) has all of a layer's operations; telling one takes too long for who compares plans
of every batch. Here attention is played, message by message, and the collectives of a layer are one message at each
port, which keeps it for as long as they do. They begin when the last rank begins the layer, as whole steps with a
window of one layer have it, and have to be there before the next one begins. So what attention's messages wait for is
whatever of them the linear modules before attention do not cover.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.expert_gathers import expert_collectives
from zbench.cost.gathers import hop_seconds
from zbench.cost.memory.host_copies import LayerCopies, plan_copies
from zbench.describe.arrays import Floats
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.plans.plan import Ints, Plan
from zbench.simulator.clock import Free, Timeline, run_table
from zbench.simulator.estimate.expert_layer import ExpertLayer
from zbench.simulator.estimate.layers import finished
from zbench.simulator.hop_graph import Followers, HopGraph, HopRows, HopTable
from zbench.simulator.hops import num_queues, ports


def seconds_beside(
    plan: Plan, parts: tuple[HopGraph, HopGraph], cost: Cost, layers: int, routed: ExpertLayer | None = None
) -> float:
    """Returns the seconds of a layer, forward and backward, as the mean over all, with its share of what gathers and
    reductions add to a step of one micro-batch.

    parts: the plan's programs, as zbench.simulator.estimate.step has them. layers: that are played, at least two; the
    others take as long as these do after the first. routed: experts on several GPUs, where ranks meet on the way to
    them; None: all of a layer is computed at home.
    """
    of, total = Collectives.of(cost) if routed is None else expert_collectives(cost), 0.0
    ahead, back = plan_copies(plan, cost)
    passes = _passes(plan, parts, cost, of) if routed is None else _routed_passes(plan, parts, routed, of)
    for number, (turns, share) in enumerate(passes):
        ends = _ends(turns, cost, layers, back if number else ahead)
        total += share * (ends[0] + (cost.layers - 1) * (ends[-1] - ends[0]) / (layers - 1))
    return (total + of.uncovered) / cost.layers


class LayerTurn(NamedTuple):
    """Linear modules of every rank, then attention; a layer's pass is one or two of these.

    linear: float64 [num_ranks], seconds. begins: float64 [num_ranks], seconds after which a rank begins the layer
    itself, as what is before that is of the last one. kept: float64 [classes], seconds for which the layer's
    collectives keep a rank's port to each class of links. meets: where ranks wait for others on the way; None: nowhere.
    """

    attention: HopGraph
    linear: Floats
    begins: Floats
    kept: Floats
    meets: "Meeting | None" = None

    def attends(self, ready: Floats) -> Floats:
        """Returns when every rank begins to attend. ready: when each begins the turn."""
        if self.meets is None:
            return ready + self.linear
        return self.meets.layer.most(ready + self.meets.after) + (self.linear - self.meets.after)


class Meeting(NamedTuple):
    """A place in linear modules where ranks that hold experts together wait for the last of them. after: float64
    [num_ranks], seconds of each before it."""

    layer: ExpertLayer
    after: Floats


def _passes(
    plan: Plan, parts: tuple[HopGraph, HopGraph], cost: Cost, of: Collectives
) -> list[tuple[list[LayerTurn], float]]:
    """Returns the turns of a layer's forward and of its backward, which with full recomputation begins with a forward,
    each with the share of layers that have it."""
    (ahead, back), tokens, share = parts, plan.tokens_per_rank, projected(cost.model)
    linear, linear_back = cost.linear_seconds(tokens), cost.backward_linear_seconds(tokens)
    gather, reduce = (seconds / of.num_layers for seconds in (of.gather_ports, of.reduce_ports))
    forward = [LayerTurn(ahead, linear, (1 - share) * linear, gather * of.every_step)]
    kept = gather * of.every_micro_batch + reduce
    projections = 2 * share * linear  # of the layer that was done before, in the backward
    found, some = [(forward, 1.0)], cost.model.forwards_again
    if some < 1:
        found.append(([LayerTurn(back, linear_back, projections, kept)], 1 - some))
    if some:
        again = LayerTurn(ahead, projections + share * linear, projections, kept)
        left = linear_back - projections + (1 - share) * linear
        found.append(([again, LayerTurn(back, left, np.zeros_like(left), np.zeros_like(kept))], some))
    return found


def _routed_passes(
    plan: Plan, parts: tuple[HopGraph, HopGraph], routed: ExpertLayer, of: Collectives
) -> list[tuple[list[LayerTurn], float]]:
    """Returns what `_passes` does where experts are on several GPUs, to and from which ranks meet in every pass."""
    (ahead, back), model = parts, routed.cost.model
    one, some = routed.seconds(plan.tokens_per_rank, projected(model)), model.forwards_again
    gather, reduce = (seconds / of.num_layers for seconds in (of.gather_ports, of.reduce_ports))
    kept, none = gather * of.every_micro_batch + reduce, np.zeros_like(one.out)
    forth, home = (routed.exchange(one.out, each) for each in (one.experts, 2 * one.experts + one.again))

    def turn(graph: HopGraph, before: Floats, between: Floats, behind: Floats, begins: Floats) -> LayerTurn:
        """Attention behind modules of a rank's own tokens, experts, and other modules of its own tokens. between: from
        when all are ready to when all are home; of this, each has its own way out before ranks meet, and home after."""
        alone = between - 2 * routed.most(one.out) + one.out
        ready = before + one.out
        return LayerTurn(graph, ready + alone + behind, begins, kept, Meeting(routed, ready))

    ahead_of = turn(ahead, one.after, forth, one.before, one.after + forth)._replace(kept=gather * of.every_step)
    projections = 2 * one.before  # of the layer that was done before, in the backward
    found = [([ahead_of], 1.0)]
    if some < 1:
        found.append(([turn(back, projections, home, 2 * one.after, projections)], 1 - some))
    if some:
        again = LayerTurn(ahead, projections + one.before, projections, kept)
        rest = turn(back, one.after, forth + home, 2 * one.after, none)._replace(kept=np.zeros_like(kept))
        found.append(([again, rest], some))
    return found


def projected(model: Model) -> float:
    """Returns the share of a layer's linear modules that is before its attention: q's, k's and v's matmuls of all."""
    before = model.hidden * model.head_dim * (model.num_heads + 2 * model.num_kv_heads)
    return before / model.layer_matmul_params


def _ends(turns: list[LayerTurn], cost: Cost, layers: int, copies: LayerCopies | None) -> list[float]:
    """Tells when the last rank ends every layer of a pass: seconds from when the first begins. copies: to or from
    hosts."""
    cluster, found = cost.cluster, []
    played = [BesideCollectives.of(turn, cluster, hop_seconds(cost)) for turn in turns]
    queues = num_queues(cluster) * (cluster.num_ranks + 1) + max(one.legs for one in played)
    free, ready = Free.of(cluster, queues), np.zeros(cluster.num_ranks)
    for _ in range(layers):
        complete, begin = 0.0, ready
        for one in played:
            ready, until = one.run(ready, free)
            complete = max(complete, until)
        ready = np.maximum(ready, complete - turns[0].begins)
        ready = ready if copies is None else ready + copies.waited(ready - begin)
        found.append(float(ready.max()))
    return found


@dataclass(frozen=True, slots=True)
class BesideCollectives:
    """A turn that can be run again and again; its collectives are the first `legs` hops of its table, one for every
    port of every class of links, of a rank that comes after those of the cluster."""

    turn: LayerTurn
    table: HopTable
    legs: int

    @staticmethod
    def of(turn: LayerTurn, cluster: Cluster, latency: float) -> "BesideCollectives":
        """Puts a turn's collectives in front of its attention. latency: seconds in which they arrive."""
        kept = np.flatnonzero(turn.kept)
        links = [np.unique(one) for one in ports(cluster)[kept]]
        count = [len(one) for one in links]
        legs, of = sum(count), turn.attention.table
        sending = np.concatenate([*links, np.zeros(0, np.int64)])
        channels = np.repeat(np.array([one.channels for one in cluster.links])[kept], count)
        queue = num_queues(cluster) * (cluster.num_ranks + 1) + np.arange(legs)
        none = np.full(legs, -1)
        rows = HopRows(
            rank=_after(np.full(legs, cluster.num_ranks), of.rows.rank),
            queue_a=_after(queue, of.rows.queue_a),
            queue_b=_after(none, of.rows.queue_b),
            link_a=_after(sending, of.rows.link_a),
            link_b=_after(sending + 1, of.rows.link_b),
            channels=_after(channels, of.rows.channels),
            slot=_after(channels - 1, of.rows.slot),
            busy=np.concatenate([np.repeat(turn.kept[kept], count), of.rows.busy]),
            latency=np.concatenate([np.full(legs, latency), of.rows.latency]),
        )
        next_a, next_b, next_pair, offsets, followers = of.following
        a, b, pair = (_after(none, np.where(one >= 0, one + legs, -1)) for one in (next_a, next_b, next_pair))
        zero = np.zeros(legs, np.int64)
        following = Followers(a, b, pair, _after(zero, offsets), followers + legs)
        return BesideCollectives(turn, HopTable(rows, following, _after(zero, of.waits), of.queues), legs)

    def run(self, ready: Floats, free: Free) -> tuple[Floats, float]:
        """Returns when every rank has ended the turn, and when its collectives have. ready: when every rank begins."""
        turn, begin = self.turn, self.turn.attends(ready)
        played = run_table(self.table, np.append(begin, (ready + turn.begins).max()), free)
        own = Timeline(*(one[self.legs :] for one in (played.start, played.release, played.done)))
        return finished(turn.attention, own, begin), float(played.done[: self.legs].max(initial=0.0))


def _after(front: Ints, rest: Ints) -> Ints:
    """Returns both together, as numbers of the second's kind."""
    return np.concatenate([front.astype(rest.dtype), rest])
