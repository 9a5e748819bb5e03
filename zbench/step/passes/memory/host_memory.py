"""Host memory that steps use, for what layers keep, optimizer state, or both; and whether there is room for it."""

from collections.abc import Sequence

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.cluster import HOST_LINK, Cluster
from zbench.describe.model import Model
from zbench.describe.units import in_bytes, with_noun
from zbench.step.operations import SEND
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.kept_on_hosts import with_kept_on_hosts
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, MOMENT_BYTES
from zbench.step.template import Step, Template


class HostFull(ValueError):
    """A node's host memory has no room for what a step has there."""


def check_host(model: Model, cluster: Cluster, workers: int = 1) -> None:
    """Refuses what a model has in host memory where nothing says how much there is, its links, or how fast it is
    updated, and optimizer state that is more. cluster: of GPUs. workers: that train apart in rounds, each on such a
    cluster.

    Raises:
        ValueError: the cluster's yaml does not say it, or there is too little.
    """
    adam = cluster.host_adam_bandwidth if model.optimizer_on_hosts else 1.0
    given = {"host_bandwidth": cluster.host, "host_memory": cluster.host_memory, "host_adam_bandwidth": adam}
    if lacks := [name for name, one in given.items() if one is None]:
        link = f" ({', '.join(HOST_LINK)} together)" if lacks[0] == "host_bandwidth" else ""
        others = "".join(f", and cluster.{name}" for name in lacks[1:])
        raise ValueError(
            f"cluster.{lacks[0]} is not given; {model.told_of_hosts}, which takes it{link}{others}, as "
            "cluster=h100_4x8 has"
        )
    need, room = resting_bytes(model, cluster, workers), cluster.host_memory
    if room is not None and need > room:
        whose, instead = "a node's share of the parameters and the optimizer state that are there", "more nodes, or "
        if workers > 1:
            whose, instead = "what a worker has there of parameters, optimizer state and outer parameters", ""
        raise ValueError(
            f"cluster.host_memory is {in_bytes(room)}{' a worker' if workers > 1 else ''}; {model.told_of_hosts}, and "
            f"{whose} of {model.name} is {in_bytes(need)}: use {instead}fewer layers on hosts"
        )


def resting_bytes(model: Model, cluster: Cluster, workers: int = 1) -> int:
    """Returns the bytes of optimizer state and parameters that rest in a node's host memory. cluster: of GPUs. workers:
    that train apart in rounds, each on such a cluster and with its part of the outer parameters and their momentum."""
    state = max(MOMENT_BYTES, 3 * model.element_bytes) * model.params_updated_on_hosts
    outer = 2 * max(GRADIENT_BYTES, model.element_bytes) * model.params_updated_on_hosts // workers
    rests = state + model.element_bytes * model.params_held_by_hosts + (outer if workers > 1 else 0)
    return rests // cluster.num_nodes


def checked_host_bytes(found: Ints, model: Model, cluster: Cluster) -> list[int]:
    """Returns the most bytes in every node's host memory, int64 [nodes], as a list. cluster: of GPUs.

    Raises:
        ValueError: they are more than it has.
    """
    room = cluster.host_memory
    if room is not None and found.max(initial=0) > room:
        raise ValueError(
            f"cluster.host_memory is {in_bytes(room)}; {model.told_of_hosts}, with which a node needs "
            f"{in_bytes(found.max())} of it: use more nodes, fewer tokens, or memory.offload=none"
        )
    return [int(one) for one in found]


def check_host_room(step: Step, model: Model, cluster: Cluster, workers: int = 1) -> None:
    """Refuses what layers keep for which a node's host memory has no room. step: with it on hosts; cluster: of GPUs;
    workers: as of check_host.

    Raises:
        HostFull: it has none.
    """
    assert cluster.host_memory is not None, "check_host has refused it"
    state, what = resting_bytes(model, cluster, workers), "activations" if model.activations_on_hosts else "inputs"
    for sizes, layers in zip(*sent_to_hosts(step, cluster.gpus_per_node), strict=True) if model.layers_on_hosts else ():
        need, count = int(sizes.max()), int(layers[sizes.argmax()])
        if need + state > cluster.host_memory:
            beside = f", beside {in_bytes(state)} of parameters and optimizer state" if state else ""
            raise HostFull(
                f"cluster.host_memory is {in_bytes(cluster.host_memory)}; with memory.offload={model.offload} "
                f"the {what} of {with_noun(count, 'layer')} of a micro-batch on a node are {in_bytes(need)}"
                f"{beside}: use more nodes, fewer tokens, or memory.offload=none"
            )


def sent_to_hosts(step: Step, gpus_per_node: int) -> tuple[Ints, Ints]:
    """Returns the bytes that the forward of each layout's micro-batch sends to every node's host memory, and of how
    many layers these are, both int64 [layouts, nodes]."""
    nodes = -(-step.num_gpus // gpus_per_node)
    found, counts = np.zeros((2, len(step.layouts), nodes), np.int64)
    each = [_sent_by_layer(step, template) for template in step.templates]
    node_of = np.arange(step.num_hosts) * step.num_gpus // step.num_hosts // gpus_per_node
    for one in step.order:
        sizes, behind = each[one.template]
        if sizes.any():
            low, _ = step.span(one.layer, one.place)
            layers = sum(layer + behind >= low for layer in one.layers)
            hosts = np.flatnonzero(sizes)
            at, layout = node_of[hosts + one.place], step.templates[one.template].layout
            np.add.at(found[layout], at, layers * sizes[hosts])
            counts[layout, np.unique(at)] += layers
    return found, counts


def _sent_by_layer(step: Step, template: Template) -> tuple[Ints, int]:
    """Returns the bytes that a template sends to each host memory of what layers keep, int64 [hosts], and how many
    layers behind the instance's these are."""
    of, found, ops = step.layouts[template.layout], np.zeros(step.num_hosts, np.int64), template.operations
    sends = np.flatnonzero((ops.kind == SEND) & (ops.dst >= step.num_gpus))
    behind = 0
    for row in ops.table[sends].tolist():
        if of.of_batch(row[1]):
            cells = of.tensors[row[1]].cell_bytes(of.index).reshape(of.shape(row[1]))
            sides = [of.lists[which] if which >= 0 else np.zeros(1, np.int64) for which in row[4:6]]
            found[row[3] - step.num_gpus] += cells[np.ix_(*sides)].sum()
            behind = row[7]
    return found, behind


def with_host_memory(
    step: Step, model: Model, gpus_per_node: int, layers: Sequence[int], sent: Sequence[Flags] = (), begun: bool = True
) -> Step:
    """Returns a step with what its model has in host memory. layers: of each micro-batch's layout, of how many first
    layers of every stage something is there; sent: and of which parts of t, bool [parts], (): of all. begun: whether it
    begins with gradients of a step before where CPUs update across steps.

    Raises:
        ValueError: parameters are updated on several GPUs.
    """
    if model.layers_on_hosts:
        step = with_kept_on_hosts(step, gpus_per_node, layers, model.activations_on_hosts, sent)
    counts = model.layers_updated_on_hosts, model.parameters_on_hosts, model.layers_carried
    resting = HostLayers(model.num_layers, *counts, begun)
    if not (resting.optimizer or resting.parameters):
        return step
    return with_optimizer_on_hosts(step, gpus_per_node, resting, model.host_updates)
