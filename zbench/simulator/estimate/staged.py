"""Plays a step of a job with stages (zbench.cost.stacks).

Every stage has clocks, queues and links of its own, on which a micro-batch's layers are played like those of a job
without stages: hop by hop, every rank waiting for its data alone. Before that a rank waits for its tokens' hidden
states (or their gradients) from its stack's rank of the stage before. All ranks of a stage have one order of micro-
batches, one forward, one backward: with orders of their own, two that share a ring could wait for each other for
ever. A rank with nothing to do in a micro-batch goes on to the next at once, unless the stage's ranks meet in it: with
ZeRO-3 they gather parameters for every forward and every backward, and with ZeRO-2 and 3 every backward reduces their
gradients.

What ranks of a node send to the next stage leaves by their NICs as if all of it left at once; it does not disturb
attention's messages, as parameters and gradients do not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import LayerCopies, copies_of_stages
from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints, Plan
from zbench.simulator.estimate.carried import busiest_seconds, carried_bytes, with_forwards_again
from zbench.simulator.estimate.layers import ClockState, Layers
from zbench.simulator.estimate.one_f_one_b import turns
from zbench.simulator.hop_graph import HopGraph

Programs = tuple[HopGraph, HopGraph]  # of a plan's forward and backward list


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a stage: its forward or backward of a micro-batch, all of its layers. Seconds, [ranks of the stage].

    begin, end: the same on a rank that has nothing to do in it. idle: waited before for the other stage's work; late:
    for its message.
    """

    stage: int
    backward: bool
    micro: int
    begin: Floats
    end: Floats
    idle: Floats
    late: Floats


def hop_bytes(plan: Plan, cost: Cost) -> Floats:
    """Returns [ranks]: the bytes of hidden states that a rank hands on to the next stage; backward their gradients, as
    many."""
    return np.asarray(plan.tokens_per_rank * (cost.model.hidden * cost.model.element_bytes), np.float64)


def hop_seconds(plan: Plan, cost: Cost) -> Floats:
    """Returns [ranks]: the seconds until the hidden states are there. Ranks that are tied to one NIC take turns; 0
    without tokens."""
    nic, yes = cost.cluster.nic_of, np.ones(plan.num_ranks, bool)
    alone = hop_bytes(plan, cost)
    size = np.bincount(nic, alone, cost.cluster.num_nics)[nic]
    seconds = np.maximum(cost.transfer_seconds(size, yes), cost.message_seconds(alone, yes))
    return np.where(plan.tokens_per_rank > 0, seconds + cost.latency_seconds(yes), 0.0)


def run(plans: Sequence[Plan], parts: Sequence[Programs], cost: Cost, of: Collectives | None = None) -> Iterator[Turn]:
    """Yields every turn of every stage, each after those it waits for. parts: of every plan, its forward and backward.
    of: what a stage gathers and reduces, all at the same time. None: nothing is."""
    count, ranks = len(plans), cost.cluster.num_ranks
    stages = [ClockState.zero(cost.cluster) for _ in range(cost.pp)]
    made = np.zeros((2, cost.pp, count, ranks))  # when a rank's forward, or backward, of a micro-batch is done
    hops = [hop_seconds(plan, cost) for plan in plans]
    copies = [copies_of_stages(plan, cost) for plan in plans]
    for stage, backward, micro in turns(cost.pp, count):
        state, plan = stages[stage], plans[micro]
        has = plan.tokens_per_rank > 0
        before = stage + 1 if backward else stage - 1
        idle, late = np.zeros(ranks), np.zeros(ranks)
        if 0 <= before < cost.pp:
            there = np.where(has, made[int(backward), before, micro], 0.0)
            idle = np.maximum(there - state.ready, 0.0)
            late = np.where(has, np.maximum(there + hops[micro] - state.ready, 0.0) - idle, 0.0)
            state.ready = state.ready + idle + late
        begin = state.ready
        own = cost.of_stage(stage)
        _play(state, plan, parts[micro], backward, own, copies[micro][stage][int(backward)])
        if of is not None and (of.reduced if backward else of.every_micro_batch):
            span, used = float(state.ready.max() - begin.max()), _carried(parts[micro], own)[int(backward)]
            shown = _shown(of, backward, span, busiest_seconds(used, cost))
            state.meet()
            state.ready = state.ready + shown
        if stage == cost.pp - 1 and not backward:
            state.ready = state.ready + cost.head_seconds(plan.tokens_per_rank)
        made[int(backward), stage, micro] = state.ready
        yield Turn(stage, backward, micro, begin, state.ready, idle, late)


def _play(
    state: ClockState, plan: Plan, parts: Programs, backward: bool, cost: Cost, copies: LayerCopies | None
) -> None:
    """Plays the stage's layers; of a backward with recomputation, the forward once more first. cost: of the stage;
    copies: of its layers, to or from hosts."""
    linear = cost.linear_seconds(plan.tokens_per_rank)
    if not backward:
        return Layers(parts[0], linear, cost.layers, copies).play(state)
    if cost.again_layers:
        Layers(parts[0], linear, cost.again_layers).play(state)
        copies = None if copies is None else copies.beyond(cost.model.forwards_again * linear)
    Layers(parts[1], cost.backward_linear_seconds(plan.tokens_per_rank), cost.layers, copies).play(state)


def _carried(of: Programs, cost: Cost) -> tuple[Ints, Ints]:
    """Returns the bytes on NICs of a stage's forward and backward of a micro-batch. cost: of the stage."""
    forward = carried_bytes(of[0], cost)
    return forward, with_forwards_again(forward, carried_bytes(of[1], cost), cost)


def _shown(of: Collectives, backward: bool, span: float, nic: float) -> float:
    """Returns the seconds by which gathers and reductions make a turn of `span` seconds late, whose layers keep the
    busiest NIC busy for `nic`."""
    return of.backward(span, nic) if backward else of.shown_in_forward(span, nic, False)


def staged_end(plans: tuple[Plan, ...], parts: Sequence[Programs], cost: Cost, of: Collectives) -> float:
    """Returns when the last stage has ended the step. parts: of every plan, its forward and backward.

    Parameters and gradients of all stages move at the same time. What a micro-batch does not hide of its own is in its
    turns. Of those of a step the first stage begins first and ends last, so what it does not hide of them is what the
    step takes longer.
    """
    ends, spans = np.zeros((cost.pp, cost.cluster.num_ranks)), np.zeros(2)
    for turn in run(plans, parts, cost, of):
        ends[turn.stage] = turn.end
        if turn.stage == 0 and turn.micro == (len(plans) - 1 if turn.backward else 0):
            spans[int(turn.backward)] = turn.end.max() - turn.begin.max()
    first, shown = cost.of_stage(0), 0.0
    if not of.every_micro_batch:
        shown += _shown(of, False, float(spans[0]), busiest_seconds(_carried(parts[0], first)[0], cost))
    if not of.reduced:
        shown += _shown(of, True, float(spans[1]), busiest_seconds(_carried(parts[-1], first)[1], cost))
    return float(ends.max()) + shown
