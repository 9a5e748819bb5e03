"""The part of a cluster that a stage of a pipeline is on: so many whole nodes, or an equal part of one node.

Stages follow one another, GPU by GPU, so that stage s of S GPUs is on the GPUs from s S to (s + 1) S of the cluster. A
part of a node is a cluster of one node with its share of the GPUs, NICs, host memory and CPUs; what it sends itself
stays on the node's own links, so that of NICs it needs none. Which NICs, ports and domains GPUs of different stages
share in fact is the whole cluster's to say, on which whole steps are played.
"""

from dataclasses import replace

from zbench.describe.cluster import Cluster
from zbench.describe.units import with_noun


def stages_are_alike(cluster: Cluster, stages: int, tensor_parallel: int = 1) -> bool:
    """Returns whether so many stages have so many whole nodes each, or an equal part of a node.

    cluster: of GPUs. tensor_parallel: GPUs that follow one another in a node and are in one stage.
    """
    nodes, gpus = cluster.num_nodes, cluster.gpus_per_node
    inside = tensor_parallel * max(stages // nodes, 1)
    return gpus % inside == 0 and (nodes % stages == 0 or stages % nodes == 0)


def check_stage_gpus(cluster: Cluster, stages: int, tensor_parallel: int = 1) -> None:
    """Refuses stages that cannot be alike; arguments as of `stages_are_alike`, with a tensor_parallel that divides a
    node's GPUs.

    Raises:
        ValueError: neither nodes nor the GPUs of each divide over the stages, or a stage has a part of a domain beside
            whole ones.
    """
    nodes, gpus = cluster.num_nodes, cluster.gpus_per_node
    given = f"parallel.pipeline_parallel is {stages}"
    if not stages_are_alike(cluster, stages, tensor_parallel):
        inside = f"cluster.gpus_per_node={gpus}"
        if tensor_parallel > 1:
            inside = f"{gpus // tensor_parallel} ({inside} over parallel.tensor_parallel={tensor_parallel})"
        several = f"cluster.num_nodes={nodes}, or be {nodes} times a number that divides {inside}"
        raise ValueError(f"{given}; it has to divide {inside if nodes == 1 else several}")
    if nodes % stages == 0:
        return
    part = gpus * nodes // stages
    for one in cluster.domains:
        if part % one.gpus and one.gpus % part:
            raise ValueError(
                f"{given}, which makes stages of {with_noun(part, 'GPU')}; these have to divide "
                f"cluster.domains.{one.name}.gpus={one.gpus}, or be a multiple of it"
            )


def stage_cluster(cluster: Cluster, stages: int) -> Cluster:
    """Returns the cluster of one of so many stages, which are alike. cluster: of GPUs, or of groups of them."""
    if cluster.num_nodes % stages == 0:
        return replace(cluster, num_nodes=cluster.num_nodes // stages)
    inside = stages // cluster.num_nodes
    nics = max(cluster.nics_per_node // inside, 1)
    part = cluster.part(1, cluster.gpus_per_node // inside, nics)
    memory, adam = (
        None if given is None else given / inside for given in (cluster.host_memory, cluster.host_adam_bandwidth)
    )
    bandwidth = cluster.nic_bandwidth * cluster.nics_per_node / (inside * nics)
    return replace(part, nic_bandwidth=bandwidth, host_memory=memory, host_adam_bandwidth=adam)
