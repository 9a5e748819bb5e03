"""The bound of whole steps: all work perfectly balanced, nothing ever waiting, no kernel ever starting.

It is the same whatever the degrees of tensor parallelism and stages, which divide work and add exchanges: so all
systems of a job are measured by one number, also those that choose such degrees themselves.
"""

from dataclasses import replace

from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import CHOSEN
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME
from zbench.simulator.steps.least.work import StepWork, step_work
from zbench.step.passes.parameters.weights import outer_weights, weight_elements, weights_of_kinds
from zbench.step.tensor import FOLLOWING, LAYER, LEADING


def step_bound_seconds(batch: Batch, cost: Cost, rows: float = 1.0) -> float:
    """Returns the seconds of a whole step that no plan of `batch` can beat, of whatever degrees. rows: of experts, over
    tokens' choices, that have a token in them; no plan with as many can."""
    gpus = cost.gpus
    work, gpu_count, dense = step_work(gpus, 1).of_rows(rows), gpus.cluster.num_ranks, gpus.model.dense_layers
    linear = batch.num_tokens * token_seconds(work, gpus.model.num_layers - dense)
    if dense:
        first = step_work(replace(gpus, model=gpus.model.dense_layer), 1)
        linear += batch.num_tokens * dense * (first.forward.token + first.backward.token)
    there, back = work.attention(batch)
    computing = (linear + gpus.model.num_layers * (there + back)) / gpu_count
    forward = gpus.model.num_layers * (batch.num_tokens * work.forward.token + there) / gpu_count
    return max(computing + update_seconds(gpus), host_update_seconds(gpus, 0.0 if dense else forward, computing))


def host_update_seconds(cost: Cost, forward: float, computing: float) -> float:
    """Returns the seconds of a step in which CPUs update what they have at least, the mean over nodes, and what a
    node's GPUs do before that: their forwards, as gradients are of the last micro-batch, and where CPUs begin after the
    backward that of the layers with state on hosts; nothing where gradients are of the step before, or are not those of
    all GPUs. cost: of GPUs; forward, computing: the mean over these."""
    model, cluster = cost.model, cost.cluster
    if cluster.host_adam_bandwidth is None or model.optimizer_layers == CHOSEN:
        return 0.0
    cpus = OPTIMIZER_BYTES * model.params_updated_on_hosts / cluster.num_nodes / cluster.host_adam_bandwidth
    if not cpus or model.num_experts > 1 or model.host_updates == ACROSS_STEPS:
        return cpus
    share = 0.0 if model.host_updates == AS_GRADIENTS_COME else model.layers_updated_on_hosts / model.num_layers
    return cpus + forward + share * (computing - forward)


def token_seconds(work: StepWork, layers: int) -> float:
    """Returns the seconds of a token in so many layers and the head, attention apart."""
    return layers * (work.forward.token + work.backward.token) + work.head.token


def update_seconds(cost: Cost) -> float:
    """Returns the seconds of the optimizer where every parameter is updated once, the mean over GPUs. cost: of
    GPUs."""
    model, elements = cost.model, weight_elements(cost.model)
    total, kinds, dense = 0, weights_of_kinds(model), model.dense_layers
    for kind, layers in ((LAYER, model.num_layers), (LEADING, dense), (FOLLOWING, model.num_layers - dense)):
        total += layers * sum(elements[name] for name, of in kinds.items() if of == kind)
    total += sum(elements[name] for name in outer_weights(model.kind_of_head))
    total = max(total - model.params_updated_on_hosts, 0)  # which is beside what GPUs compute
    return OPTIMIZER_BYTES * total / cost.cluster.num_ranks / cost.cluster.device.copy_bandwidth
