"""Predicts bus bandwidths that NCCL's own benchmark (nccl-tests) printed, by collective and size. Pure: no torch.

An all-gather or reduce-scatter is that of zbench.cost.gathers, as parameters and gradients go; an all-reduce is one
of each. sendrecv passes a message round the ranks, played by the clock as the first hop of a ring. Bus bandwidth is, as
nccl-tests defines it, the size over the time, times (n - 1) / n, and for an all-reduce twice that.
Not modelled: reductions inside NVSwitch (NVLink SHARP), by which H100s all-reduce faster than their ports.
"""

from dataclasses import replace

import numpy as np

from zbench.anchors.anchor import Anchor, GetCluster, Row, is_known, published_rows
from zbench.anchors.attention import slowest_rank_seconds
from zbench.anchors.flexsp import WIDE
from zbench.cost.cost import Cost
from zbench.cost.gathers import gather_seconds
from zbench.describe.cluster import Cluster
from zbench.describe.model import KV
from zbench.plans.build import Builder
from zbench.plans.dataflow import Edges, edges
from zbench.plans.patterns import ring
from zbench.plans.plan import TRANSFER
from zbench.simulator.attention import prepare

PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}  # of zbench.cost.gathers


def anchors(get_cluster: GetCluster) -> list[Anchor]:
    """Returns the published bus bandwidths beside their predictions."""
    return [_anchor(row, get_cluster) for row in published_rows("nccl")]


def _anchor(row: Row, get_cluster: GetCluster) -> Anchor:
    collective, num_gpus, size = row["collective"], int(row["num_gpus"]), int(row["bytes"])
    cost = Cost(cluster_of_report(row["cluster"], num_gpus, get_cluster), WIDE)
    if collective == "sendrecv":
        bandwidth = size / neighbour_seconds(cost, size)
    else:
        share = PASSES[collective] * (num_gpus - 1) / num_gpus
        bandwidth = share * size / (PASSES[collective] * gather_seconds(cost, float(size)))
    case = f"{collective} of {size / 2**20:g} MiB on {num_gpus} {row['cluster'].upper()}, GB/s"
    measured = float(row["gigabytes_per_second"])
    return Anchor("nccl", case, measured, bandwidth / 1e9, row["source"], is_known(row))


def cluster_of_report(name: str, num_gpus: int, get_cluster: GetCluster) -> Cluster:
    """Returns the cluster of a report: nodes of 8 GPUs, or fewer where the report has fewer."""
    if name == "a100":  # 4 NICs of 200 Gb/s a node in both reports of two nodes
        found = get_cluster("a100_8x8", num_nodes=max(1, num_gpus // 8))
        return replace(found, nics_per_node=4, nic_bandwidth=25e9, nic_channels=1)
    if name == "gh200":  # Slingshot: 4 GPUs and 4 NICs of 200 Gb/s a node; their NVLink does not decide
        found = get_cluster("h100_4x8", num_nodes=num_gpus // 4)
        return replace(found, gpus_per_node=4, nics_per_node=4, nic_bandwidth=25e9, nic_channels=1)
    assert name == "h100", name
    return replace(get_cluster("h100_4x8", num_nodes=1), gpus_per_node=num_gpus, nics_per_node=num_gpus)


def neighbour_seconds(cost: Cost, size: int) -> float:
    """Returns when the last rank has received, if every rank sends `size` bytes to the next one, all at once."""
    num_ranks = cost.cluster.num_ranks
    per_token = cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    tokens = size // per_token
    assert tokens * per_token == size, size
    builder = Builder(np.array([tokens * num_ranks]), num_ranks, cost.model.num_heads)
    one = np.zeros(1, np.int64)
    ring(builder, one, one, np.arange(num_ranks, dtype=np.int64).reshape(1, -1))
    plan = builder.build()
    first_hop = plan.forward.take(np.flatnonzero(plan.forward.kind == TRANSFER)[:num_ranks])
    found = edges(plan, first_hop, False)
    assert isinstance(found, Edges)
    return slowest_rank_seconds(prepare(plan, first_hop, found, cost, False), cost)
