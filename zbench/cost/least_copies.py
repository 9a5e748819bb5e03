"""Seconds for which a step copies to and from host memory at least, whatever the plan: what bounds have of hosts.

Of every token a layer keeps as much wherever a plan has it, so all links together carry so many bytes each way, and
some link its even share. A GPU sends what a micro-batch's layers keep before any of it comes back, and has it all back
before the next micro-batch sends anything, with stages behind one another as without: the clock keeps copies in the
order of what is computed (zbench.simulator.steps.dataflow.host_copies). So both ways add up. Parameters that rest on
hosts, or were updated there, come over the link as well; of a step they come once for every pass, or once.

Where something is left open, what a step can do without is left out: layers or tokens that are as few as fit, rows that
are sent to experts, what planners' own pipelines may keep on GPUs.
"""

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.recompute import kept_activation_bytes, layer_activation_bytes
from zbench.describe.checks import CHOSEN, FEWEST
from zbench.describe.degrees import WORLD, degrees_of
from zbench.describe.model import Model


def least_copy_seconds(tokens: int, cost: Cost, of_any_degrees: bool, of_steps: bool) -> float:
    """Returns the seconds of a step in which a GPU's link to its host has copies at least; 0.0 where nothing is on
    hosts, or their link is not described.

    tokens: of the batch. of_any_degrees: whatever tensor parallelism and stages plans choose, as pipelines of their own
    do; else those of the job. of_steps: of whole steps; planners' estimate waits neither for gradients that go to hosts
    nor, where nothing else is there, for what was updated.
    """
    model, cluster = cost.gpus.model, cost.gpus.cluster
    some = model.layers_on_hosts and model.offload_layers != FEWEST  # where none is needed nothing is waited for
    waits = model.uses_hosts if of_steps else some or model.parameters_on_hosts > 0
    if cluster.host is None or not waits:
        return 0.0
    kept = tokens * _token_bytes(cost, of_any_degrees)
    resting = 0 if model.parameter_layers == CHOSEN else model.parameters_on_hosts
    updated = 0 if model.optimizer_layers == CHOSEN else model.layers_updated_on_hosts
    of_resting, of_updated = float(model.params_of_first(resting)), float(model.params_of_last(updated))
    every = model.params_of_first(model.num_layers)
    both = max(of_resting + of_updated - every, 0.0)  # these are where they rest when they were updated
    on_gpus = (of_resting - both) * of_steps  # which are brought once more for that
    passes = 1 + (degrees_of(model.sharding).secondary == WORLD)  # else parts of them stay on GPUs for a backward
    brought = (passes * of_resting + of_updated - both + on_gpus) * model.element_bytes
    sent = of_updated * GRADIENT_BYTES * of_steps
    most = max(2 * kept, kept + brought, kept + sent)
    return most / cluster.num_ranks / cluster.links[cluster.host].rate


def _token_bytes(cost: Cost, of_any_degrees: bool) -> float:
    """Returns the bytes of a token that all layers together have on hosts at least."""
    model = cost.gpus.model
    share = model.offload_tokens
    if not model.layers_on_hosts or FEWEST in (model.offload_layers, share):
        return 0.0
    kept, kept_again = float(layer_activation_bytes(model)), float(kept_activation_bytes(model))
    if model.num_experts > 1 or not model.activations_on_hosts:  # rows depend on routing; dense first layers keep less
        kept = kept_again = float(model.element_bytes * model.hidden)
    if of_any_degrees:
        found = _least_layers(model) * (min(kept, kept_again) if model.recomputed_layers else kept)
    else:
        of_stages, found = model.with_stages(cost.pp), 0.0
        for layers, again in zip(of_stages.layers_of_stages, of_stages.recomputed_of_stages, strict=True):
            some = model.offloaded_layers(layers)
            found += min(some, again) * kept_again + max(some - again, 0) * kept
    return found * (1.0 if isinstance(share, str) else share)


def _least_layers(model: Model) -> int:
    """Returns the layers of all stages together that have something on hosts at least, however many stages there are:
    of fewer than two layers none has."""
    every = range(1, max(model.num_layers // 2, 1) + 1)
    return min(stages * model.offloaded_layers(model.num_layers // stages) for stages in every)
