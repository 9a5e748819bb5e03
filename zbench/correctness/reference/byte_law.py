"""The law of bytes: what a plan's transfers send over which NIC and NVLink port, counted one by one. Pure: no torch.

A transfer inside a node leaves by its source's port and arrives by its destination's: to the smallest domain that both
are in, or to the node (NVLink). One between nodes leaves and arrives by the NICs that the two are tied to. One that is
routed over n lanes is cut into n shares: share i ends at byte (i + 1) size / n, rounded down. A share goes to a rank
that is tied to the lane's NIC, inside the node unless the source is tied to it itself, from there to that NIC's
counterpart in the other node, and on to the destination.

It shares no code with what charges a plan's bytes (zbench.simulator.hops, zbench.simulator.estimate.carried,
zbench.describe.model.message_bytes).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbench.correctness.reference.interpreter import Broken
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.plans.plan import Ints, Ops, Plan, Transfer


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes sent and received: nic_tx, nic_rx [num_nics]; inside_tx, inside_rx [1 + num_domains, num_ranks], by ports
    to the node and to its domains, nearest first."""

    nic_tx: Ints
    nic_rx: Ints
    inside_tx: Ints
    inside_rx: Ints

    @staticmethod
    def none(cluster: Cluster) -> "Bytes":
        """Returns zeros for every NIC and port of the cluster."""
        nics = np.zeros((2, cluster.num_nics), np.int64)
        ports = np.zeros((2, 1 + len(cluster.domains), cluster.num_ranks), np.int64)
        return Bytes(nics[0], nics[1], ports[0], ports[1])

    def add(self, other: "Bytes", times: int) -> None:
        """Adds `times` another count to this one, in place."""
        for name in Bytes.__dataclass_fields__:
            total = getattr(self, name)
            total += times * getattr(other, name)


def step_traffic(plans: Sequence[Plan], cost: Cost) -> Bytes:
    """Counts attention of all layers and micro-batches, forward (again where the model recomputes it) and backward."""
    total = Bytes.none(cost.cluster)
    forwards = 2 if cost.model.recompute == "full" else 1
    for plan in plans:
        for ops, times in ((plan.forward, forwards), (plan.backward, 1)):
            total.add(layer_traffic(plan, ops, cost), times * cost.model.num_layers)
    return total


def layer_traffic(plan: Plan, ops: Ops, cost: Cost) -> Bytes:
    """Counts one layer's transfers of a list of operations.

    Raises:
        zbench.correctness.reference.interpreter.Broken: a transfer is routed over no lane, or one that its node has
        not.
    """
    total = Bytes.none(cost.cluster)
    for view, via in zip(plan.views(ops), ops.via.tolist(), strict=True):
        if isinstance(view, Transfer):
            size = sum(int(plan.blocks.tokens[block]) for block in view.blocks) * _token_bytes(view, cost.model)
            _send(total, view, size, via >= 0, cost.cluster)
    return total


def _token_bytes(sent: Transfer, model: Model) -> int:
    """Counts a token's bytes: a row of every query head, or k and v of every kv head that those heads read."""
    lo, hi = sent.heads
    row = model.head_dim * model.element_bytes
    if sent.tensor in ("kv", "dkv"):
        group = model.num_heads // model.num_kv_heads
        return 2 * row * len({head // group for head in range(lo, hi)})
    numbers = {"q": 0, "dq": 0, "o": 1, "do": 2}[sent.tensor]  # beside a row: log-sum-exp, row sum of do * o
    return (hi - lo) * (row + numbers * model.lse_bytes)


def _send(total: Bytes, sent: Transfer, size: int, routed: bool, cluster: Cluster) -> None:
    if sent.src // cluster.gpus_per_node == sent.dst // cluster.gpus_per_node:
        _inside(total, sent.src, sent.dst, size, cluster)
    elif not routed:
        _across(total, _nic(sent.src, cluster), _nic(sent.dst, cluster), size)
    else:
        if not sent.via:
            raise Broken(f"{sent} is routed over no lane")
        ends = [size * part // len(sent.via) for part in range(len(sent.via) + 1)]
        for lane, begin, end in zip(sent.via, ends, ends[1:], strict=False):
            first, last = (_carrier(rank, lane, cluster) for rank in (sent.src, sent.dst))
            _inside(total, sent.src, first, end - begin, cluster)
            _across(total, _nic(first, cluster), _nic(last, cluster), end - begin)
            _inside(total, last, sent.dst, end - begin, cluster)


def _inside(total: Bytes, src: int, dst: int, size: int, cluster: Cluster) -> None:
    if src != dst:
        places = [rank % cluster.gpus_per_node for rank in (src, dst)]
        shared = [row for row, one in enumerate(cluster.domains) if len({at // one.gpus for at in places}) == 1]
        row = 1 + shared[0] if shared else 0
        total.inside_tx[row, src] += size
        total.inside_rx[row, dst] += size


def _across(total: Bytes, src: int, dst: int, size: int) -> None:
    total.nic_tx[src] += size
    total.nic_rx[dst] += size


def _nic(rank: int, cluster: Cluster) -> int:
    """Returns the NIC that a rank is tied to, counted over the cluster; a node's GPUs are tied to its NICs in order."""
    node, place = divmod(rank, cluster.gpus_per_node)
    return node * cluster.nics_per_node + place * cluster.nics_per_node // cluster.gpus_per_node


def _carrier(rank: int, lane: int, cluster: Cluster) -> int:
    """Returns who of its node carries a lane for `rank`: itself, or one of those tied to the lane's NIC, in turn."""
    node, place = divmod(rank, cluster.gpus_per_node)
    nic = node * cluster.nics_per_node + lane
    if _nic(rank, cluster) == nic:
        return rank
    begin = node * cluster.gpus_per_node
    tied = [other for other in range(begin, begin + cluster.gpus_per_node) if _nic(other, cluster) == nic]
    if not tied:
        raise Broken(f"lane {lane} is no NIC of a node")
    return tied[place % (cluster.gpus_per_node // cluster.nics_per_node)]
