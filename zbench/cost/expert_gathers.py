"""A step's collectives where experts are on several GPUs: parameters of an expert go among the GPUs that have it, and
not among all.

Planners' collectives (zbench.cost.collective) take every rank to have all parameters, which with experts on GPUs is
most of what is not there: of deepseek_moe_16b with experts over all 32 GPUs nine tenths of its parameters are on one
GPU each, and nobody gathers them.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES, Collectives
from zbench.cost.cost import Cost
from zbench.cost.gathers import hop_seconds
from zbench.describe.arrays import Floats
from zbench.describe.degrees import ShardDegrees, degrees_of
from zbench.describe.links import NIC


def expert_collectives(cost: Cost) -> Collectives:
    """Works out the collectives of a job whose experts `cost.expert_gpus` GPUs hold together, or of a part of a step
    (Cost.of_part). With nested degrees of sharding, and where each GPU has all experts, they are those of
    `Collectives.of`."""
    of, model = Collectives.of(cost.of_step), cost.model
    if cost.expert_gpus <= 1 or isinstance(model.sharding, ShardDegrees):
        return of.of_part(cost)
    experts = float(model.expert_params * (model.num_layers - model.dense_layers)) / cost.pp
    common = 1 - experts / (float(model.placed_params) / cost.pp)
    halves = 2 if degrees_of(model.sharding).optimizer == 1 else 1  # an all-reduce is a reduction and a gather
    gather = common * of.gather_ports + _expert_ports(cost, model.element_bytes * experts)
    reduce = common * of.reduce_ports + halves * _expert_ports(cost, GRADIENT_BYTES * experts)
    found = replace(
        of,
        gather=float(gather.max()) + hop_seconds(cost),
        reduce=float(reduce.max()) + hop_seconds(cost),
        gather_ports=gather,
        reduce_ports=reduce,
    )
    return found.of_part(cost)


def _expert_ports(cost: Cost, size: float) -> Floats:
    """Returns the seconds for which gathers of experts of `size` bytes, each among the GPUs that have it, keep a rank's
    port to every class of links busy, float64 [classes]: the busiest rank's. A group of GPUs that holds all of them is
    consecutive, so groups are in a node, or nodes in a group."""
    cluster, found = cost.cluster, np.zeros(len(cost.cluster.links))
    group, node = max(cost.expert_gpus // cost.tp, 1), cost.cluster.gpus_per_node
    held, times = size / group, cluster.num_ranks // group  # bytes of one rank's experts, and how often they are there
    if times <= 1:
        return found
    here = max(node // group, 1)  # ranks of a node that have the same experts
    nodes = times // here
    if nodes > 1:
        moved = min(node, group) * held * (nodes - 1) / nodes
        found[NIC] = cost.nic_transfer_seconds(moved / cluster.nics_per_node)
    if here > 1:
        inside = cluster.link_of(np.zeros(1, np.int64), np.full(1, (here - 1) * group))
        found[inside] = cost.transfer_seconds(np.array([held * (here - 1) / here]), inside)
    return found
