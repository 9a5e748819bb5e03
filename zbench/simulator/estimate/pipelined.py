"""Plays a step whose plans have pipelines.

Pipelines meet only when gradients are summed, so each is played by itself: its micro-batches' forwards and backwards
one after another on every stage (zbench.simulator.estimate.one_f_one_b), their seconds those of zbench.cost.stage.
What a stage's ranks do they all do at once, so the times of a stage are each of its ranks'. Links are not shared with
other pipelines.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import stage_copies
from zbench.cost.stage import Stage
from zbench.describe.arrays import Flags, Floats
from zbench.describe.links import NIC
from zbench.plans.area import work
from zbench.plans.plan import Ints, Plan
from zbench.simulator.estimate.carried import busiest_seconds
from zbench.simulator.estimate.one_f_one_b import Schedule, schedule


@dataclass(frozen=True, slots=True)
class Micro:
    """The micro-batches of a pipeline, arrays [v]: which plans they are; tokens; seconds of a layer's attention
    (forward, backward), of its linear modules, forward, and of what selective recomputation runs again of them, of its
    gathers, shown (forward, backward), and of the head, on every rank of a stage."""

    index: Ints
    tokens: Ints
    attention: tuple[Floats, Floats]
    linear: Floats
    again: Floats
    gathers: tuple[Floats, Floats]
    head: Floats


@dataclass(frozen=True, slots=True)
class Line:
    """One pipeline: its leading rank, what a stage of it is, its micro-batches, when they run, and what its hops take.

    forwards, backwards: seconds [pp, v], of every stage. hops: [pp - 1, v]. across: [pp - 1], whether a hop leaves
    the node.
    """

    lead: int
    stage: Stage
    micro: Micro
    runs: Schedule
    forwards: Floats
    backwards: Floats
    hops: Floats
    across: Flags

    def ranks(self, stage: int) -> slice:
        """Returns the ranks of a stage."""
        first = self.lead + stage * self.stage.tp
        return slice(first, first + self.stage.tp)


def lines(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Line]:
    """Yields every pipeline that has tokens, played."""
    pipelines = plans[0].pipelines
    assert pipelines is not None
    shapes = {shape: Stage.of(cost, *shape) for shape in zip(pipelines.tp.tolist(), pipelines.pp.tolist(), strict=True)}
    tp = np.ones(cost.cluster.num_ranks, np.int64)
    tp[pipelines.lead] = pipelines.tp
    tokens = np.stack([plan.tokens_per_rank for plan in plans])
    attention = [np.stack([_attention(plan, cost, tp, back) for plan in plans]) for back in (False, True)]
    for i, lead in enumerate(pipelines.lead.tolist()):
        index = np.flatnonzero(tokens[:, lead])
        if len(index):
            stage = shapes[int(pipelines.tp[i]), int(pipelines.pp[i])]
            mine = (attention[0][index, lead], attention[1][index, lead])
            yield _line(lead, stage, _micro(stage, index, tokens[index, lead], mine))


def _attention(plan: Plan, cost: Cost, tp: Ints, backward: bool) -> Floats:
    """Returns [num_ranks]: seconds of a layer's attends of every lead, on each rank of its stage."""
    ops = plan.backward if backward else plan.forward
    attend, amount = work(plan, ops)
    lead, model = ops.src[attend], cost.model
    kv_heads = np.maximum(model.num_kv_heads // tp[lead], 1)
    seconds = cost.kernel_seconds(amount, model.num_heads // tp[lead], kv_heads, backward)
    return np.bincount(lead, seconds, plan.num_ranks).astype(np.float64)


def _micro(stage: Stage, index: Ints, tokens: Ints, attention: tuple[Floats, Floats]) -> Micro:
    forward, backward, _ = stage.gathers()
    gather = stage.gather_seconds(tokens)
    gathers = (forward * gather, backward * gather)
    linear, again = stage.linear_seconds(tokens), stage.again_seconds(tokens)
    return Micro(index, tokens, attention, linear, again, gathers, stage.head_seconds(tokens))


def _line(lead: int, stage: Stage, micro: Micro) -> Line:
    again = 1 if stage.cost.model.recompute == "full" else 0
    ahead = micro.attention[0] + micro.linear + micro.gathers[0]
    back = micro.attention[1] + again * micro.attention[0] + (2 + again) * micro.linear + micro.again + micro.gathers[1]
    if (copies := stage_copies(stage)) is not None:
        ahead = ahead + copies.of_tokens(micro.tokens, False).waited(ahead)
        back = back + copies.of_tokens(micro.tokens, True).waited(back)
    forward = stage.layers * ahead
    forwards = np.repeat(forward[None], stage.pp, axis=0)
    forwards[-1] += micro.head
    backwards = np.repeat(stage.layers * back[None], stage.pp, axis=0)
    hops, across = hop_seconds(lead, stage, micro.tokens)
    return Line(lead, stage, micro, schedule(forwards, backwards, hops), forwards, backwards, hops, across)


def hop_seconds(lead: int, stage: Stage, tokens: Ints) -> tuple[Floats, Flags]:
    """Returns the seconds of messages between a stage and the next, (seconds [pp - 1, v], whether it leaves the node
    [pp - 1]).

    Every rank sends its share of the hidden states to the rank with its place in the next stage, over the slowest of
    the links that those of a stage take; those of a node that are tied to one NIC take turns with it.
    """
    cost, cluster = stage.cost, stage.cost.cluster
    first = lead + stage.tp * np.arange(stage.pp)
    ranks = first[:-1, None] + np.arange(stage.tp)
    links = cluster.link_of(ranks, ranks + stage.tp)
    slowest = cost.transfer_seconds(np.ones(links.shape), links).argmax(axis=1)
    link = np.take_along_axis(links, slowest[:, None], axis=1)[:, 0]
    across = link == NIC
    gpus = min(stage.tp, cluster.gpus_per_node)
    nics = np.array([len(np.unique(cluster.nic_of[at : at + gpus])) for at in first[:-1].tolist()])
    sharing = np.where(across, gpus / np.maximum(nics, 1), 1.0)
    share = stage.hidden_bytes(tokens) / stage.tp
    together = cost.transfer_seconds(sharing[:, None] * share, link[:, None])
    seconds = np.maximum(together, cost.message_seconds(share[None], link[:, None]))
    return np.asarray(seconds + cost.latency_seconds(link)[:, None], np.float64), across


def pipelined_end(plans: tuple[Plan, ...], cost: Cost, of: Collectives, moved: bool) -> float:
    """Returns when the last of the plans' pipelines has ended; plans are the step's micro-batches. The backward begins
    where it does in the last micro-batch of the pipeline that ends last."""
    carried, found, forward_end, backward_begin = np.zeros(cost.cluster.num_nics, np.int64), 0.0, 0.0, 0.0
    for line in lines(plans, cost):
        carried += _carried(line, cost)
        runs = line.runs
        forward_end = max(forward_end, float(runs.forward[-1, 0] + line.forwards[-1, 0] - line.micro.head[0]))
        if runs.ready.max() > found:
            found = float(runs.ready.max())
            backward_begin = float(runs.backward[int(runs.ready.argmax()), -1])
    busy = busiest_seconds(carried, cost) / found
    return found + shared_seconds(of, (forward_end, backward_begin, found), busy, moved)


def shared_seconds(of: Collectives, times: tuple[float, float, float], busy: float, moved: bool) -> float:
    """Returns the seconds that parameters and gradients add to a step of pipelines.

    times: when the first forward ends, the last backward begins, and ends. busy: the share of the time in which layers
    keep the busiest NIC busy.
    """
    forward_end, backward_begin, end = times
    backward = end - backward_begin
    return of.shown_in_forward(forward_end, busy * forward_end, moved) + of.backward(backward, busy * backward)


def _carried(line: Line, cost: Cost) -> Ints:
    """Counts the bytes of a pipeline on NICs, as many each way: gathers go node by node (as in zbench.cost.gathers),
    hops rank by rank."""
    stage, cluster, tokens = line.stage, cost.cluster, line.micro.tokens
    size = stage.hidden_bytes(tokens)
    moved = float(size.sum()) * stage.layers * sum(stage.gathers())
    each = int(moved * (stage.nodes - 1) / stage.nodes / cluster.nics_per_node)
    first = np.arange(line.lead, line.lead + stage.tp * stage.pp)
    nic = np.zeros(cluster.num_nics, np.int64)  # one sends forward what the other sends backward
    nic[np.unique(cluster.nic_of[first])] += each
    share = int(size.sum() / stage.tp)  # of a rank, forward and backward
    for s in np.flatnonzero(line.across).tolist():
        for ranks in (line.ranks(s), line.ranks(s + 1)):
            np.add.at(nic, cluster.nic_of[ranks], share)
    return nic
