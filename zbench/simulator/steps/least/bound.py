"""The bound of whole steps: all work perfectly balanced, nothing ever waiting, no kernel ever starting.

It is the same whatever the degrees of tensor parallelism and stages, which divide work and add exchanges: so all
systems of a job are measured by one number, also those that choose such degrees themselves.
"""

from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.batch import Batch
from zbench.simulator.steps.least.work import StepWork, step_work
from zbench.step.passes.parameters.zero import outer_weights, weight_elements, weights_of_layers


def step_bound_seconds(batch: Batch, cost: Cost) -> float:
    """Returns the seconds of a whole step that no plan of `batch` can beat, of whatever degrees."""
    gpus = cost.gpus
    work, gpu_count = step_work(gpus, 1), gpus.cluster.num_ranks
    linear = batch.num_tokens * token_seconds(work, gpus.model.num_layers)
    attention = gpus.model.num_layers * sum(work.attention(batch))
    return (linear + attention) / gpu_count + update_seconds(gpus)


def token_seconds(work: StepWork, layers: int) -> float:
    """Returns the seconds of a token in so many layers and the head, attention apart."""
    return layers * (work.forward.token + work.backward.token) + work.head.token


def update_seconds(cost: Cost) -> float:
    """Returns the seconds of the optimizer where every parameter is updated once, the mean over GPUs. cost: of
    GPUs."""
    model, elements = cost.model, weight_elements(cost.model)
    if model.optimizer_on_hosts:  # beside what GPUs compute
        return 0.0
    total = model.num_layers * sum(elements[name] for name in weights_of_layers(model))
    total += sum(elements[name] for name in outer_weights(model.kind_of_head))
    return OPTIMIZER_BYTES * total / cost.cluster.num_ranks / cost.cluster.device.copy_bandwidth
