"""Routing: spread a transfer between nodes over all NICs of both.

The source hands shares to ranks tied to the node's other NICs, these send in parallel to their
counterparts, which hand on to the destination (Zeppelin, arXiv 2509.21841, communication routing
layer). It pays where few ranks of a node talk across nodes while the others' NICs idle.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.plans.plan import TRANSFER, Lists, Ops, Plan


def route(plan: Plan, cost: Cost) -> Plan:
    """Returns `plan` with `via` set on the transfers between nodes that gain from it, forward and backward.

    A list of operations is routed only if its busiest NIC then has less to carry, and a transfer
    only if it alone gets faster: where every NIC is busy already, detours only cost.
    """
    lanes = Lists.of([np.arange(cost.cluster.nics_per_node)])
    return plan.with_(
        lanes=lanes, forward=_routed(plan, plan.forward, cost), backward=_routed(plan, plan.backward, cost)
    )


def _routed(plan: Plan, ops: Ops, cost: Cost) -> Ops:
    cluster = cost.cluster
    node, nic = cluster.node_of, cluster.nic_of
    across = (ops.kind == TRANSFER) & (node[ops.src] != node[ops.dst])
    if not across.any() or cluster.nics_per_node == 1:
        return ops
    size = cost.message_bytes(plan, ops)
    gains = across & (_routed_seconds(size, cost) < cost.message_seconds(size, np.ones(len(size), bool)))
    kept = np.where(across & ~gains, size, 0)
    moved = np.where(gains, size, 0)

    def busiest(direct_from: np.ndarray, spread_from: np.ndarray, end: np.ndarray) -> float:
        direct = np.bincount(nic[end], weights=direct_from, minlength=cluster.num_nics)
        spread = np.bincount(node[end], weights=spread_from, minlength=cluster.num_nodes) / cluster.nics_per_node
        return float((direct + np.repeat(spread, cluster.nics_per_node)).max())

    before = max(busiest(kept + moved, 0 * moved, end) for end in (ops.src, ops.dst))
    after = max(busiest(kept, moved, end) for end in (ops.src, ops.dst))
    return replace(ops, via=np.where(gains, 0, ops.via)) if after < before else ops


def _routed_seconds(size: np.ndarray, cost: Cost) -> np.ndarray:
    """Returns the seconds of routed messages: dispatch, NICs and combine one after another, all lanes at once: b_in n
    (x-1)/x + b_across n / x + b_in n (x-1)/x, and a latency each. Dispatch goes to x-1 proxies, which have all of a
    port; each NIC sends its share to one peer."""
    lanes = cost.cluster.nics_per_node
    inside, across = np.zeros(len(size), bool), np.ones(len(size), bool)
    dispatch = cost.spread_seconds(size * (lanes - 1) / lanes, inside, lanes - 1)
    return 2 * dispatch + cost.message_seconds(size / lanes, across)


def routed(plan: Plan) -> bool:
    """Returns whether any transfer of the plan is spread over NICs."""
    return any(bool((ops.via >= 0).any()) for ops in (plan.forward, plan.backward))


def narrowed(plan: Plan, cost: Cost, count: int) -> Plan:
    """Returns a routed plan with every share of a transfer over `count` NICs only, its sender's and others evenly
    apart.

    Fewer proxies leave each NIC more to carry, and NVLink ports less. count: a divisor of a node's NICs.
    """
    nics = cost.cluster.nics_per_node
    apart = np.arange(count) * (nics // count)
    lists = Lists.of([np.sort((own + apart) % nics) for own in range(nics)])
    own = cost.cluster.nic_of % nics
    forward, backward = (
        replace(ops, via=np.where(ops.via >= 0, own[ops.src], -1)) for ops in (plan.forward, plan.backward)
    )
    return plan.with_(lanes=lists, forward=forward, backward=backward)


def unrouted(plan: Plan) -> Plan:
    """Returns `plan` with every transfer sent directly."""
    forward, backward = (replace(ops, via=np.full(len(ops), -1, np.int64)) for ops in (plan.forward, plan.backward))
    return plan.with_(forward=forward, backward=backward)


def busiest_nic_seconds(plan: Plan, cost: Cost) -> float:
    """Returns the seconds that the busiest NIC, or pair of ranks, needs for one layer, forward and backward, were every
    transfer direct.

    A NIC has all of its channels for all that it sends, and one of them for what one rank sends to one other.
    """
    node, nic = cost.cluster.node_of, cost.cluster.nic_of
    busiest = 0.0
    for ops in (plan.forward, plan.backward):
        across = np.flatnonzero((ops.kind == TRANSFER) & (node[ops.src] != node[ops.dst]))
        src, dst = ops.src[across].astype(np.int64), ops.dst[across].astype(np.int64)
        size, yes = cost.message_bytes(plan, ops)[across], np.ones(len(across), bool)
        seconds = cost.transfer_seconds(size, yes)
        alone = np.where(ops.collective[across], seconds, cost.message_seconds(size, yes))
        pair = np.unique(src * plan.num_ranks + dst, return_inverse=True)[1]
        loads = [np.bincount(pair, alone, 1), np.bincount(nic[src], seconds, 1), np.bincount(nic[dst], seconds, 1)]
        busiest += max(float(load.max()) for load in loads)
    return busiest
