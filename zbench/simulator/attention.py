"""A plan's attention on the clock: one layer's forward and backward lists as hops, with their times and waits."""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.links import NVLINK
from zbench.plans.area import work
from zbench.plans.dataflow import Edges, Violation, edges
from zbench.plans.plan import Ops, Plan
from zbench.simulator.direct import Direct, by_consumer, direct, is_direct
from zbench.simulator.hop_graph import HopGraph, hop_graph
from zbench.simulator.hops import hops
from zbench.simulator.rounds import in_rounds
from zbench.simulator.serial import in_turn

Programs = tuple[HopGraph, HopGraph]  # of a plan's forward and backward list


def prepare(plan: Plan, ops: Ops, found: Edges, cost: Cost, backward: bool) -> HopGraph:
    """Prepares the plan's forward or backward list: hops with their times and waits."""
    parts = hops(plan, ops, cost.message_bytes(plan, ops), cost.cluster)
    attend, amount = work(plan, ops)
    moves = parts.link_a >= 0
    link = np.where(moves, parts.link_class, NVLINK)
    alone, together = cost.message_seconds(parts.bytes, link), cost.transfer_seconds(parts.bytes, link)
    busy = np.where(moves, np.where(parts.whole, together, alone), 0.0)
    seconds = np.zeros(len(ops))
    seconds[attend] = cost.attend_seconds(plan, ops, attend, amount, backward)
    busy += np.where(moves, 0.0, seconds[parts.op])
    latency = np.where(moves, cost.latency_seconds(link), 0.0)
    return replace(hop_graph(parts, busy, latency, _waits(plan, ops, found)), until_sent=plan.until_sent)


def _waits(plan: Plan, ops: Ops, found: Edges) -> Edges:
    """Returns a list's data edges with what else the plan has it wait for."""
    found = in_turn(found, ops) if plan.serial_legs else found
    return in_rounds(found, ops) if plan.in_rounds else found


def programs(plan: Plan, cost: Cost) -> Programs:
    """Returns the programs (forward, backward) of one layer's attention.

    Raises:
        ValueError: the plan breaks a rule of zbench.plans.dataflow (verify says which, with its context).
    """
    forward = prepare(plan, plan.forward, _edges(plan, plan.forward, False), cost, False)
    return forward, prepare(plan, plan.backward, _edges(plan, plan.backward, True), cost, True)


def playable(plan: Plan, cost: Cost) -> tuple[HopGraph | Direct, HopGraph | Direct]:
    """Returns (forward, backward) as `programs`, in plan order where that is the same and needs less: where links
    serve one queue each, and messages slow no compute.

    Raises:
        ValueError: as `programs`.
    """
    lists = (plan.forward, False), (plan.backward, True)
    forward, backward = (
        direct(plan, ops, by_consumer(len(ops), _waits(plan, ops, _edges(plan, ops, back))), cost, back)
        if cost.cluster.device.compute_slowdown == 1 and is_direct(ops, cost.cluster)
        else prepare(plan, ops, _edges(plan, ops, back), cost, back)
        for ops, back in lists
    )
    return forward, backward


def _edges(plan: Plan, ops: Ops, backward: bool) -> Edges:
    found = edges(plan, ops, backward)
    if isinstance(found, Violation):
        raise ValueError(f"{'backward' if backward else 'forward'} operation {found.op} {found.reason}")
    return found
