"""Host memory that steps use, for inputs of layers, optimizer state, or both; and whether there is room for it."""

from collections.abc import Sequence

import numpy as np

from zbench.describe.cluster import HOST_LINK, Cluster
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.step.passes.memory.inputs_on_hosts import with_inputs_on_hosts
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.parameters.zero import MOMENT_BYTES
from zbench.step.template import Step


def check_host(model: Model, cluster: Cluster) -> None:
    """Refuses what a model has in host memory where nothing says how much there is, its links, or how fast it is
    updated, and optimizer state that is more. cluster: of GPUs.

    Raises:
        ValueError: the cluster's yaml does not say it, or there is too little.
    """
    adam = cluster.host_adam_bandwidth if model.optimizer_on_hosts else 1.0
    given = {"host_bandwidth": cluster.host, "host_memory": cluster.host_memory, "host_adam_bandwidth": adam}
    if lacks := [name for name, one in given.items() if one is None]:
        link = f" ({', '.join(HOST_LINK)} together)" if lacks[0] == "host_bandwidth" else ""
        others = "".join(f", and cluster.{name}" for name in lacks[1:])
        raise ValueError(
            f"cluster.{lacks[0]} is not given; memory.offload is {model.offload}, which takes it{link}{others}, as "
            "cluster=h100_4x8 has"
        )
    need, room = _state_bytes(model, cluster), cluster.host_memory
    if room is not None and need > room:
        raise ValueError(
            f"cluster.host_memory is {room / 2**30:,.1f} GiB; with memory.offload={model.offload} a node's share of "
            f"the parameters and the optimizer state of {model.name} is {need / 2**30:,.1f} GiB: use more nodes, or "
            "memory.offload=none"
        )


def _state_bytes(model: Model, cluster: Cluster) -> int:
    """Returns the bytes of optimizer state, and of parameters, in a node's host memory."""
    each = model.element_bytes + max(MOMENT_BYTES, 3 * model.element_bytes)
    return each * model.total_params // cluster.num_nodes if model.optimizer_on_hosts else 0


def check_host_room(model: Model, plans: Sequence[Plan], degree: int, cluster: Cluster, layers: Sequence[int]) -> None:
    """Refuses inputs of layers for which a node's host memory has no room. degree: GPUs of a plan's rank; cluster: of
    GPUs; layers: of each plan, whose inputs go there.

    Raises:
        ValueError: it has none.
    """
    assert cluster.host_memory is not None, "check_host has refused it"
    node, state = np.arange(plans[0].num_ranks) * degree // cluster.gpus_per_node, _state_bytes(model, cluster)
    for plan, count in zip(plans, layers, strict=True) if model.inputs_on_hosts else ():
        tokens = int(np.bincount(node, weights=plan.tokens_per_rank).max())
        need = tokens * count * model.hidden * model.element_bytes
        if need + state > cluster.host_memory:
            beside = f", beside {state / 2**30:,.1f} GiB of optimizer state" if state else ""
            raise ValueError(
                f"cluster.host_memory is {cluster.host_memory / 2**30:,.1f} GiB; with memory.offload={model.offload} "
                f"the inputs of {count} layers of {tokens:,} tokens on a node are {need / 2**30:,.1f} GiB"
                f"{beside}: use more nodes, fewer tokens, or memory.offload=none"
            )


def with_host_memory(step: Step, model: Model, gpus_per_node: int, layers: Sequence[int]) -> Step:
    """Returns a step with what its model has in host memory. layers: of each layout, whose inputs are there.

    Raises:
        ValueError: layers are in stages.
    """
    step = with_inputs_on_hosts(step, gpus_per_node, layers) if model.inputs_on_hosts else step
    return with_optimizer_on_hosts(step, gpus_per_node) if model.optimizer_on_hosts else step
