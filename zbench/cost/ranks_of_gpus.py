"""Ranks that are several GPUs: a tensor-parallel group, and with stages one GPU or group of every stage.

Megatron-LM's tensor with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198) splits heads, matmuls and,
between them, tokens evenly over the GPUs of a group, which all do the same at the same time. So a group is a rank with
so many times the rates, memory and links of a GPU; the query heads that its GPUs work on at once are one head of so
many times the dimension, which no plan can cut. What it costs is zbench.cost.cost's `exchange_seconds`.
What is said of memory is of a GPU (`of_gpu`).

Stages are parts of the layers, equal ones unless a run says how many each has, on equal parts of the GPUs, in order:
so many whole nodes, or an equal part of one node. The ranks with one place in every stage are a stack: they have the
same tokens of every micro-batch, one stage after the other. So a plan is one of a stage, rings and all, and planners
see the cluster of a stage (zbench.describe.pipeline.stage_clusters). What stages cost is told by whole steps
(zbench.simulator.steps), on the links of the whole cluster, and by zbench.simulator.estimate.step to planners.
Parameters of the embedding and the head are counted as spread over all stages, the head's work on the last one.

Of tensor parallelism and stages as a planner's choice, pipelines of different shapes side by side, see
zbench.cost.stage.
"""

from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.describe.pipeline.stage_clusters import check_stage_gpus, stage_cluster
from zbench.describe.pipeline.staged_layers import EVEN
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
        bonded_nics=cluster.nics_per_node // nics,
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
