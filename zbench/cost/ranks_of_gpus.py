"""Ranks that are several GPUs: a tensor-parallel group, and with stages one GPU or group of every stage.

Megatron-LM's tensor with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198) splits heads, matmuls and,
between them, tokens evenly over the GPUs of a group, which all do the same at the same time. So a group is a rank with
so many times the rates, memory and links of a GPU; the query heads that its GPUs work on at once are one head of so
many times the dimension, which no plan can cut. What it costs is zbench.cost.cost's `exchange_seconds`.
What is said of memory is of a GPU (`of_gpu`).

Stages are parts of the layers, equal ones unless a run says how many each has, on equal parts of the GPUs, in order:
so many whole nodes, or an equal part of one node. The ranks with one place in every stage are a stack: they have the
same tokens of every micro-batch, one stage after the other. So a plan is one of a stage, rings and all, and planners
see the cluster of a stage, and stage s of S GPUs is on the GPUs from s S to (s + 1) S of the whole one. What stages
cost is told by whole steps (zbench.simulator.steps), on the links of the whole cluster, and by
zbench.simulator.estimate.step to planners.
Parameters of the embedding and the head are counted as spread over all stages, the head's work on the last one.

Of tensor parallelism and stages as a planner's choice, pipelines of different shapes side by side, see
zbench.cost.stage.
"""

from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import EVEN
from zbench.describe.units import with_noun
from zbench.plans.plan import Ints

_RATES = (
    "peak_flops",
    "memory_bytes",
    "copy_bandwidth",
    "strided_rate",
    "matmul_flops",
    "attention_forward_flops",
    "attention_backward_flops",
)


def with_ranks_of(cost: Cost, tensor_parallel: int, stages: int) -> Cost:
    """Returns the cost model whose ranks are GPUs of all stages, groups of them with tensor parallelism, given `cost`,
    of GPUs.

    Raises:
        ValueError: groups or stages cannot be alike.
    """
    return stacked(grouped(cost, tensor_parallel), stages)


def grouped(cost: Cost, tp: int) -> Cost:
    """Returns the cost model of groups of `tp` GPUs that follow one another in a node, given `cost`, of GPUs.

    Raises:
        ValueError: groups cannot be alike: tp divides neither GPUs of a node, nor heads, or NICs do not divide.
    """
    if tp == 1:
        return cost
    cluster, model = cost.cluster, cost.model
    for name, count in (
        ("cluster.gpus_per_node", cluster.gpus_per_node),
        ("model.num_heads", model.num_heads),
        ("model.num_kv_heads", model.num_kv_heads),
    ):
        if count % tp:
            raise ValueError(f"parallel.tensor_parallel is {tp}; it has to divide {name}={count}")
    for one in cluster.domains:
        if one.gpus % tp and tp % one.gpus:
            raise ValueError(
                f"parallel.tensor_parallel is {tp}; it has to divide cluster.domains.{one.name}.gpus={one.gpus}, or be "
                "a multiple of it"
            )
    groups = cluster.gpus_per_node // tp
    if cluster.nics_per_node % min(groups, cluster.nics_per_node):
        raise ValueError(
            f"parallel.tensor_parallel is {tp}; cluster.nics_per_node={cluster.nics_per_node} cannot be shared evenly "
            f"by its {groups} groups of a node"
        )
    nics = min(groups, cluster.nics_per_node)
    return replace(
        cost,
        cluster=_cluster(cluster, tp, groups, nics),
        model=_model(model, tp),
        pipelines=False,
        tp=tp,
        inner=tuple(one for one in cluster.domains if one.gpus <= tp),
        single=cost.gpus,
    )


def stacked(cost: Cost, pp: int) -> Cost:
    """Returns the cost model of one of `pp` stages, given `cost`, of the whole cluster.

    Raises:
        ValueError: stages cannot be alike: neither nodes nor the GPUs of each divide over them, or layers do not and
            there is no number for each stage.
    """
    cost.model.with_stages(pp).check_stages()
    if pp == 1:
        return cost
    model = cost.model
    check_stage_gpus(cost.gpus.cluster, pp, cost.tp)
    if model.stage_layers == EVEN and model.num_layers % pp:
        raise ValueError(
            f"parallel.pipeline_parallel is {pp}; it has to divide model.num_layers={model.num_layers}, or "
            "parallel.stage_layers has a number for each"
        )
    return replace(cost, cluster=stage_cluster(cost.cluster, pp), pipelines=False, pp=pp, single=cost.gpus)


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
    """Returns the cluster of one of so many stages, which are alike. cluster: of GPUs, or of groups of them.

    A part of a node is a cluster of one node with its share of the GPUs, NICs, host memory and CPUs; what it sends
    itself stays on the node's own links, so that of NICs it needs none. Which NICs, ports and domains GPUs of different
    stages share in fact is the whole cluster's to say.
    """
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


def of_gpu(size: Ints, tp: int) -> Ints:
    """Returns the bytes on each GPU of a rank that holds `size`."""
    return -(-size // tp)


def _cluster(cluster: Cluster, tp: int, groups: int, nics: int) -> Cluster:
    """Returns the cluster of groups: every GPU of a group sends its share by its own port and NIC, together one of
    their sum.

    To its own peer: of a NIC that some of the group share, one message of theirs has as many channels as they are.
    """
    sharing = min(tp, -(-cluster.gpus_per_node // cluster.nics_per_node))
    device: Device = replace(
        cluster.device.without_curves(),  # which are of one GPU's shapes
        **{rate: tp * getattr(cluster.device, rate) for rate in _RATES},
    )
    return replace(
        cluster,
        gpus_per_node=groups,
        nics_per_node=nics,
        nic_bandwidth=cluster.nic_bandwidth * cluster.nics_per_node / nics,
        nic_channels=-(-cluster.nic_channels // sharing),
        nvlink_bandwidth=cluster.nvlink_bandwidth * tp,
        domains=tuple(
            replace(one, gpus=one.gpus // tp, bandwidth=one.bandwidth * tp) for one in cluster.domains if one.gpus > tp
        ),
        host_bandwidth=None if cluster.host_bandwidth is None else cluster.host_bandwidth * tp,
        device=device,
    )


def _model(model: Model, tp: int) -> Model:
    """Returns the model as a group computes it: parameters, FLOPs and bytes of a token are the model's; heads come in
    bundles of one on every GPU."""
    return replace(
        model,
        num_heads=model.num_heads // tp,
        num_kv_heads=model.num_kv_heads // tp,
        head_dim=model.head_dim * tp,
        lse_bytes=model.lse_bytes * tp,
    )
