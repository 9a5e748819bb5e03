"""The memory that planners ask for room: the lines of a job's ranks (zbench.cost.memory.lines), whatever the plan."""

from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.moments import StageMoments, stage_moments
from zbench.cost.memory.state import WholeBytes, bytes_of_stage, pipeline_state_bytes, state_bytes


def memory_of(cost: Cost) -> MemoryLines:
    """Returns the bytes of a job's ranks by the tokens of a micro-batch at home: of all its stages, with as many
    micro-batches under way, all alike, as each holds (zbench.simulator.estimate.one_f_one_b)."""
    stages = moments_of_stages(cost)
    if len(stages) < cost.pp:  # all are alike, so the first and the last need most
        (of,) = stages
        return MemoryLines(of.lines(cost.pp, False) + of.lines(1, True))
    lines = (of.lines(cost.pp - stage, stage == cost.pp - 1) for stage, of in enumerate(stages))
    return MemoryLines(tuple(line for some in lines for line in some))


def memory_of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> MemoryLines:
    """Returns the bytes of a stage's rank if it has so many layers, of which so many are recomputed by the model's
    level."""
    if cost.pp == 1:
        own = replace(cost.model, recompute_layers=recomputed) if recomputed else cost.model.keeping_all
        return memory_of(replace(cost, model=own))
    return MemoryLines(_of_stage(cost, stage, layers, recomputed).lines(cost.pp - stage, stage == cost.pp - 1))


def moments_of_stages(cost: Cost) -> list[StageMoments]:
    """Returns the moments of every stage; of those that are all alike, of one with the most state."""
    model = cost.model.with_stages(cost.pp)
    every = zip(model.layers_of_stages, model.recomputed_of_stages, strict=True)
    if model.stages_differ:
        return [_of_stage(cost, stage, *layers) for stage, layers in enumerate(every)]
    whole = WholeBytes.of(cost) if cost.pp == 1 else WholeBytes()
    return [stage_moments(cost, (1, cost.pp), *next(every), state_bytes(cost), whole)]


def pipeline_moments(cost: Cost, tp: int, pp: int) -> StageMoments:
    """Returns the moments of each stage of a pipeline of plans."""
    layers, recomputed = cost.model.num_layers // pp, cost.model.recomputed_layers // pp
    return stage_moments(cost, (tp, pp), layers, recomputed, pipeline_state_bytes(cost, tp, pp), WholeBytes())


def _of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> StageMoments:
    """Returns the moments of a stage with so many layers, of which so many are recomputed."""
    model = cost.model
    dense = min(max(model.dense_layers - sum(model.layers_of_stages[:stage]), 0), layers)
    params = (layers - dense) * model.layer_params + (dense * model.dense_layer.layer_params if dense else 0)
    state = bytes_of_stage(cost, params, layers - dense, stage == 0, stage == cost.pp - 1)
    return stage_moments(cost, (1, cost.pp), layers, recomputed, state, WholeBytes())


def least_bytes(cost: Cost, num_tokens: int) -> int:
    """Returns the bytes that a rank needs if a micro-batch's tokens are spread evenly and nothing is received: none
    needs less, as all ranks receive no less than they do not keep of their own."""
    return memory_of(cost).bytes(-(-num_tokens // cost.cluster.num_ranks))


def check_memory(cost: Cost) -> None:
    """Raises ValueError where no plan can fit: the model's state and the activations of one token need too much.

    The tokens of a batch say nothing: a system may take them in micro-batches as small as a sequence. One that does
    not, or a sequence that is too long, is out of memory by the executor's verdict.
    """
    device, model = cost.cluster.device, cost.model
    least = least_bytes(cost, 1)
    if least > device.memory_bytes:
        remedy, cause = "more nodes" if model.sharding == "zero3" or cost.pp > 1 else "sharding=zero3", ""
        narrower = range(min(cost.layers_ahead, model.num_layers) - 1, -1, -1) if cost.layers_ahead > 1 else ()
        fitting = (one for one in narrower if least_bytes(replace(cost, layers_ahead=one), 1) <= device.memory_bytes)
        if (window := next(fitting, None)) is not None:
            remedy, cause = f"sharding.window={window}, more nodes", f"sharding.window is {cost.layers_ahead} and "
        raise ValueError(
            f"{cause}model is {model.name}; its parameters, gradients, optimizer state and one token need at least "
            f"{least / cost.tp / 2**30:.1f} GiB on every GPU, and a GPU ({device.name}) has "
            f"{device.memory_bytes / cost.tp / 2**30:.1f} GiB: use {remedy} or another model"
        )
