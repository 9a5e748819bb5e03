"""The memory that planners ask for room: the lines of a job's ranks (zbench.cost.memory.lines), whatever the plan."""

from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.cost.memory.kinds import StageLayers, moments_of_kinds
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.moments import StageMoments
from zbench.cost.memory.shares import moments_of_share
from zbench.cost.memory.state import bytes_of_stage, pipeline_state_bytes, state_bytes
from zbench.describe.model import KV, Q


def memory_of(cost: Cost) -> MemoryLines:
    """Returns the bytes of a job's ranks by the tokens of a micro-batch at home: of all its stages, with as many
    micro-batches under way, all alike, as each holds (zbench.step.passes.pipeline)."""
    stages = moments_of_stages(cost)
    if len(stages) < cost.pp:  # all are alike, so the first and the last need most
        (of,) = stages
        return MemoryLines(of.lines(cost.pp, False, True) + of.lines(1, True))
    lines = (of.lines(cost.pp - stage, stage == cost.pp - 1, stage == 0) for stage, of in enumerate(stages))
    return MemoryLines(tuple(line for some in lines for line in some))


def memory_of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> MemoryLines:
    """Returns the bytes of a stage's rank if it has so many layers, of which so many are recomputed by the model's
    level."""
    if cost.pp == 1:
        own = replace(cost.model, recompute_layers=recomputed) if recomputed else cost.model.keeping_all
        return memory_of(replace(cost, model=own))
    of = _of_stage(cost, stage, layers, recomputed)
    return MemoryLines(of.lines(cost.pp - stage, stage == cost.pp - 1, stage == 0))


def moments_of_stages(cost: Cost) -> list[StageMoments]:
    """Returns the moments of every stage; of those that are all alike, of one with the most state."""
    model = cost.model.with_stages(cost.pp)
    every = zip(model.layers_of_stages, model.recomputed_of_stages, strict=True)
    hosted = model.parameters_on_hosts, model.layers_updated_on_hosts
    some = any(0 < count < model.num_layers for count in hosted)  # first ones, and last ones, of the model
    if model.stages_differ or (cost.pp > 1 and (model.dense_layers or some)):  # dense ones are the first, too
        return [_of_stage(cost, stage, *layers) for stage, layers in enumerate(every)]
    layers, recomputed = next(every)
    return [_moments(cost, (1, cost.pp), StageLayers(layers, model.dense_layers, recomputed), state_bytes(cost))]


def pipeline_moments(cost: Cost, tp: int, pp: int, staged: int | None = None) -> StageMoments:
    """Returns the moments of each stage of a pipeline of plans. staged: as of
    zbench.cost.memory.state.pipeline_state_bytes."""
    layers, recomputed = cost.model.num_layers // pp, cost.model.recomputed_layers // pp
    state = pipeline_state_bytes(cost, tp, pp, staged)
    return _moments(cost, (tp, pp), StageLayers(layers, 0, recomputed), state, False)


def _of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> StageMoments:
    """Returns the moments of a stage with so many layers, of which so many are recomputed."""
    model = cost.model.with_stages(cost.pp)
    dense = min(max(model.dense_layers - sum(model.layers_of_stages[:stage]), 0), layers)
    state = bytes_of_stage(cost, stage, layers, dense)
    return _moments(cost, (1, cost.pp), StageLayers(layers, dense, recomputed), state)


def _moments(
    cost: Cost, shape: tuple[int, int], layers: StageLayers, state: float, are_cut: bool = True
) -> StageMoments:
    """Returns `moments_of_kinds`, where a share of all tokens has something on hosts of that share."""
    found = moments_of_kinds(cost, shape, layers, state, are_cut)
    share = cost.model.offload_tokens
    if isinstance(share, str):
        return found
    others = replace(cost, model=cost.model.offloading(0))
    return moments_of_share(found, moments_of_kinds(others, shape, layers, state, are_cut), share)


def least_bytes(cost: Cost, num_tokens: int) -> int:
    """Returns the bytes that the fullest rank needs at least.

    That is what it needs with an even share of the tokens, of which a rank receives no less than it does not keep of
    its own. Of tokens that cannot be shared evenly some rank has one more, of which attention's q and kv may be on
    others.
    """
    lines, model = memory_of(cost), cost.model
    even, left = divmod(num_tokens, cost.cluster.num_ranks)
    if not left:
        return lines.bytes(even)
    away = sum(model.message_bytes_per_token(tensor, 0, model.num_heads) for tensor in (Q, KV))
    return max(lines.bytes(even), lines.bytes(even + 1, -away))


def check_memory(cost: Cost) -> None:
    """Raises ValueError where no plan can fit: the model's state and the activations of one token need too much.

    The tokens of a batch say nothing: a system may take them in micro-batches as small as a sequence. One that does
    not, or a sequence that is too long, is out of memory by the executor's verdict.
    """
    check_layers_ahead(cost)
    least = least_bytes(cost, 1)
    if least > cost.cluster.device.memory_bytes:
        remedy = "more nodes" if cost.model.sharding == "zero3" else "sharding=zero3"
        raise _no_room(cost, least, "", remedy)


def check_layers_ahead(cost: Cost) -> None:
    """Raises ValueError where no plan can fit as too many layers' parameters are gathered ahead; it names the largest
    window with which one can. Windows of more layers than there are, and models that fit with none, are not its
    matter."""
    room, ahead = cost.cluster.device.memory_bytes, cost.layers_ahead
    if not 1 < ahead <= cost.model.num_layers or (least := least_bytes(cost, 1)) <= room:
        return
    narrower = (one for one in range(ahead - 1, -1, -1) if least_bytes(replace(cost, layers_ahead=one), 1) <= room)
    if (window := next(narrower, None)) is not None:
        raise _no_room(cost, least, f"sharding.window is {ahead} and ", f"sharding.window={window}, more nodes")


def _no_room(cost: Cost, least: int, cause: str, remedy: str) -> ValueError:
    device = cost.cluster.device
    return ValueError(
        f"{cause}model is {cost.model.name}; its parameters, gradients, optimizer state and one token need at least "
        f"{least / cost.tp / 2**30:.1f} GiB on every GPU, and a GPU ({device.name}) has "
        f"{device.memory_bytes / cost.tp / 2**30:.1f} GiB: use {remedy} or another model"
    )
