"""Bytes each rank needs at its fullest.

Static: parameters, gradients, optimizer state, and what chunks of tokens have (memory=), however many tokens there are.
Per token at home: what each layer keeps for its
backward, and the logits (model.loss). Per layer: received q and kv that stay until the backward. At one moment:
the copies and partial sums of the layer under way.
"""

from dataclasses import replace

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.loss import loss_moment_bytes, token_and_chunk_bytes
from zbench.cost.moment_memory import kept_bytes, moment_bytes
from zbench.cost.recompute import (
    again_activation_bytes,
    chunk_activation_bytes,
    chunk_bytes,
    is_selective,
    layer_activation_bytes,
)
from zbench.cost.stage_memory import bytes_of_layers, stage_bytes
from zbench.describe.arrays import Floats
from zbench.describe.degrees import ShardDegrees, degrees_of
from zbench.describe.model import Model
from zbench.plans.plan import Ints, Plan

ADAM_BYTES = 12  # per parameter: float32 master weight and two moments


def static_bytes(cost: Cost) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on every rank, and of chunks of tokens."""
    model, ranks = cost.model, cost.cluster.num_ranks
    if isinstance(model.sharding, ShardDegrees):
        return _nested_bytes(cost, model.sharding)
    if model.sharding == "zero3":
        share = (model.element_bytes + GRADIENT_BYTES + _adam_bytes(model)) / ranks
        whole = max(2 * model.layer_params * model.element_bytes, _whole_at_loss(model, weights=True))
        return int(share * model.total_params) + whole + _chunks(model)
    if model.sharding == "zero2":  # a layer's gradients, or the head's, are whole until they are reduced
        share = model.element_bytes + (GRADIENT_BYTES + _adam_bytes(model)) / ranks
        whole = max(model.layer_params * GRADIENT_BYTES, _whole_at_loss(model, weights=False))
        return int(share * model.total_params) + whole + _chunks(model)
    if cost.model.stages_differ:
        return max(static for static, _, _, _ in _differing(cost))
    return _stage_state_bytes(cost, 1, cost.pp)


def _differing(cost: Cost) -> list[tuple[int, float, float, float]]:
    """Returns _of_stage of every stage of a job whose stages differ."""
    every = zip(cost.model.layers_of_stages, cost.model.recomputed_of_stages, strict=True)
    return [_of_stage(cost, stage, *layers) for stage, layers in enumerate(every)]


def _of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> tuple[int, float, float, float]:
    """Returns the bytes of parameters, gradients and optimizer state on a rank of a stage with so many layers, and
    those of a token as bytes_of_layers has them."""
    model = cost.model
    outer = model.table_params * (stage == 0) + (model.head_params + model.hidden) * (stage == cost.pp - 1)
    dense = min(max(model.dense_layers - sum(model.layers_of_stages[:stage]), 0), layers)
    params = (layers - dense) * model.layer_params + (dense * model.dense_layer.layer_params if dense else 0)
    static = _state_bytes(cost, 1, cost.pp, params + outer)
    return static, *bytes_of_layers(cost, 1, cost.pp, layers, recomputed)


def _nested_bytes(cost: Cost, degrees: ShardDegrees) -> int:
    """Returns the bytes of static_bytes with parameters, gradients and optimizer state each cut by its degree; between
    the forward and the backward of all layers what stays of parameters for the backward."""
    model, ranks = cost.model, cost.cluster.num_ranks
    weights, gradients, state = (
        degree or ranks for degree in (degrees.secondary, degrees.gradients, degrees.optimizer)
    )
    found = model.total_params * (model.element_bytes / weights + GRADIENT_BYTES / gradients + ADAM_BYTES / state)
    whole = 2 * model.layer_params * model.element_bytes if degrees.weights != 1 else 0  # a layer's, and the next
    if degrees.gradients != 1:  # whole until they are reduced
        whole = max(whole + model.layer_params * GRADIENT_BYTES, _whole_at_loss(model, degrees.weights != 1))
    return int(found) + whole + _chunks(model)


def _whole_at_loss(model: Model, weights: bool) -> int:
    """Returns the bytes of what is whole of a head whose gradient is cut, while the loss is computed: that gradient,
    and with parameters that are gathered the head's and a layer's, which was the last or is the next."""
    gathered = (model.layer_params + model.head_params) * model.element_bytes if weights else 0
    return gathered + model.head_params * GRADIENT_BYTES


def pipeline_static_bytes(cost: Cost, tp: int, pp: int) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on the fullest rank of a pipeline's fullest stage,
    for the whole step also with ZeRO-2 and 3: other pipelines have other numbers of micro-batches, so none could gather
    from all ranks for one of its own. Tensors are evenly on a stage's ranks but for norms' gains, which every rank has,
    and their optimizer state, which one has."""
    model = cost.model
    gains = model.hidden * (2 * model.num_layers // pp + 1)
    return _stage_state_bytes(cost, tp, pp) + int(gains * ((model.element_bytes + GRADIENT_BYTES) + _adam_bytes(model)))


def _stage_state_bytes(cost: Cost, tp: int, pp: int) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on every rank of the fullest stage, which is one
    with the embeddings or the head."""
    model = cost.model
    params = model.total_params if pp == 1 else model.num_layers // pp * model.layer_params + model.head_params
    return _state_bytes(cost, tp, pp, params)


def _state_bytes(cost: Cost, tp: int, pp: int, params: int) -> int:
    """Returns the bytes of so many parameters of a stage, their gradients and optimizer state on every rank."""
    model = cost.model
    whole = degrees_of(model.sharding).optimizer == 1
    state = _adam_bytes(model) * (1 / tp if whole else pp / cost.whole.num_ranks)  # else of all that have the stage
    return int(params * ((model.element_bytes + GRADIENT_BYTES) / tp + state) + _chunks(model) / tp)


def _adam_bytes(model: Model) -> int:
    """Returns the bytes of a parameter's optimizer state on GPUs."""
    return 0 if model.optimizer_on_hosts else ADAM_BYTES


def _chunks(model: Model) -> int:
    """Returns the bytes of a chunk of the feed-forward and of a chunk of the loss."""
    return chunk_bytes(model) + token_and_chunk_bytes(model)[1]


def input_layers(model: Model) -> int:
    """Returns the layers whose inputs a GPU has at once: all, or the one at work and the one that comes or goes where
    the others wait in host memory."""
    return min(2, model.num_layers) if model.inputs_on_hosts else model.num_layers


def activation_bytes(model: Model) -> int:
    """Returns the bytes per token at home: every layer's, and the loss's, at whose moment a GPU is fullest."""
    layer, rest = layer_activation_bytes(model), model.num_layers - model.recomputed_layers
    if model.recompute == "full":
        inputs = input_layers(model) if rest == 0 else model.recomputed_layers
        kept = inputs * model.element_bytes * model.hidden + max(rest, 1) * layer
    else:
        again = again_activation_bytes(model) if is_selective(model) else 0
        kept = rest * layer + model.recomputed_layers * (layer - again) + (again if rest == 0 else 0)
    by_chunk = chunk_activation_bytes(model) if rest == 0 or model.recompute == "none" else 0
    return kept - by_chunk + loss_moment_bytes(model)


def keeping_layers(model: Model) -> int:
    """Returns the layers whose received q and kv a rank has at once: all that are not recomputed in full, of those
    that are the one at work."""
    return max(model.num_layers - model.recomputed_layers, 1) if model.recompute == "full" else model.num_layers


def token_bytes(cost: Cost) -> int:
    """Returns the bytes per token at home on the stage that needs most, with as many micro-batches under way, all like
    this one, as it holds (zbench.simulator.one_f_one_b); without stages those of `activation_bytes`."""
    return max(token for _, token in needs_of_stages(cost))


def needs_of_stages(cost: Cost) -> list[tuple[int, int]]:
    """Returns static_bytes and token_bytes of every stage, those that are alike as one, that which needs most."""
    if cost.pp == 1:
        return [(static_bytes(cost), activation_bytes(cost.model))]
    if not cost.model.stages_differ:
        kept, working, loss = stage_bytes(cost, 1, cost.pp)
        return [(static_bytes(cost), int(np.ceil(max(cost.pp * kept + working, kept + loss))))]
    every = zip(cost.model.layers_of_stages, cost.model.recomputed_of_stages, strict=True)
    return [need_of_stage(cost, stage, *layers) for stage, layers in enumerate(every)]


def need_of_stage(cost: Cost, stage: int, layers: int, recomputed: int) -> tuple[int, int]:
    """Returns static_bytes and token_bytes of a stage with so many layers, of which so many are recomputed by the
    model's level."""
    if cost.pp == 1:
        own = replace(cost.model, recompute_layers=recomputed) if recomputed else cost.model.keeping_all
        return static_bytes(cost), activation_bytes(own)
    static, kept, working, loss = _of_stage(cost, stage, layers, recomputed)
    moment = max(working, loss) if stage == cost.pp - 1 else working
    return static, int(np.ceil((cost.pp - stage) * kept + moment))


def least_bytes(cost: Cost, num_tokens: int) -> int:
    """Returns the bytes that a rank needs if a micro-batch's tokens are spread evenly and nothing is received: none
    needs less."""
    tokens = -(-num_tokens // cost.cluster.num_ranks)
    return max(static + token * tokens for static, token in needs_of_stages(cost))


def check_memory(cost: Cost) -> None:
    """Raises ValueError where no plan can fit: the model's state and the activations of one token need too much.

    The tokens of a batch say nothing: a system may take them in micro-batches as small as a sequence. One that does
    not, or a sequence that is too long, is out of memory by the executor's verdict.
    """
    device, model = cost.cluster.device, cost.model
    least = least_bytes(cost, 1)
    if least > device.memory_bytes:
        remedy = "more nodes" if model.sharding == "zero3" or cost.pp > 1 else "sharding=zero3"
        raise ValueError(
            f"model is {model.name}; its parameters, gradients, optimizer state and one token need at least "
            f"{least / cost.tp / 2**30:.1f} GiB on every GPU, and a GPU ({device.name}) has "
            f"{device.memory_bytes / cost.tp / 2**30:.1f} GiB: use {remedy} or another model"
        )


def peak_bytes(plans: tuple[Plan, ...], cost: Cost) -> Ints:
    """Returns int64 [num_ranks], of all stages: the bytes of every rank at its fullest moment over all
    micro-batches."""
    if cost.pp > 1:
        return _staged_bytes(plans, cost)
    if plans[0].pipelines is not None:
        return _pipelined_bytes(plans, cost)
    peak = np.zeros(cost.cluster.num_ranks, np.int64)
    for plan in plans:
        kept = kept_bytes(plan, cost) * keeping_layers(cost.model)
        moment = np.maximum(
            moment_bytes(plan, plan.forward, False, cost), moment_bytes(plan, plan.backward, True, cost)
        )
        peak = np.maximum(peak, activation_bytes(cost.model) * plan.tokens_per_rank + kept + moment)
    return peak + static_bytes(cost)


def _pipelined_bytes(plans: tuple[Plan, ...], cost: Cost) -> Ints:
    """Returns the bytes of every rank, int64 [num_ranks]: stage s of pp holds the activations of pp - s micro-batches
    that follow one another."""
    pipelines = plans[0].pipelines
    assert pipelines is not None
    peak = np.full(cost.cluster.num_ranks, pipeline_static_bytes(cost, cost.cluster.num_ranks, 1), np.int64)
    tokens = np.stack([plan.tokens_per_rank for plan in plans])
    for lead, tp, pp in zip(*(column.tolist() for column in (pipelines.lead, pipelines.tp, pipelines.pp)), strict=True):
        mine = tokens[tokens[:, lead] > 0, lead]
        rows = (-(-mine // tp) * tp).astype(np.float64)  # what a rank has at most, times the ranks
        kept, working, loss = stage_bytes(cost, tp, pp)
        static = pipeline_static_bytes(cost, tp, pp)
        for s in range(pp):
            most = rows.max(initial=0.0) * (max(working, loss) if s == pp - 1 else working)
            first = lead + s * tp
            peak[first : first + tp] = static + int(np.ceil(kept * _window(rows, pp - s) + most))
    return peak


def _staged_bytes(plans: tuple[Plan, ...], cost: Cost, copies: int = 1) -> Ints:
    """Returns int64 [stages x ranks of a stage]: stage s of pp holds pp - s micro-batches that follow one another, with
    activations of its layers and kv that it received and keeps. copies: of every plan."""
    if cost.model.stages_differ:
        return _differing_bytes(plans, cost, copies)
    kept, working, loss = stage_bytes(cost, 1, cost.pp)
    full = cost.model.recompute == "full" and cost.model.recomputed_layers == cost.model.num_layers
    tokens = np.stack([plan.tokens_per_rank for plan in plans])
    each = 1 if full else keeping_layers(cost.model) / cost.pp
    received = each * np.stack([kept_bytes(plan, cost) for plan in plans])
    moment = _moments(plans, cost)
    lasting = np.repeat(kept * tokens + (0 if full else received), copies, axis=0)
    at_work = working * tokens + moment + (received if full else 0)
    peak = []
    for s in range(cost.pp):
        most = (np.maximum(at_work, loss * tokens) if s == cost.pp - 1 else at_work).max(axis=0)
        peak.append([_window(rows, cost.pp - s) for rows in lasting.T] + most)
    return np.asarray(np.ceil(np.concatenate(peak)), np.int64) + static_bytes(cost)


def _differing_bytes(plans: tuple[Plan, ...], cost: Cost, copies: int) -> Ints:
    """Returns the bytes of _staged_bytes where stages differ."""
    tokens, peak = np.stack([plan.tokens_per_rank for plan in plans]), list[Floats]()
    received, moment, laid = np.stack([kept_bytes(plan, cost) for plan in plans]), _moments(plans, cost), cost.model
    layers, again = laid.layers_of_stages, laid.recomputed_of_stages
    for stage, (static, kept, working, loss) in enumerate(_differing(cost)):
        full = cost.model.recompute == "full" and again[stage]
        keeping = layers[stage] - again[stage] if full else layers[stage]
        most = working * tokens + moment + (received if full else 0)
        most = np.maximum(most, loss * tokens) if stage == cost.pp - 1 else most
        lasting = np.repeat(kept * tokens + keeping * received, copies, axis=0)
        peak.append(static + np.array([_window(rows, cost.pp - stage) for rows in lasting.T]) + most.max(axis=0))
    return np.asarray(np.ceil(np.concatenate(peak)), np.int64)


def _moments(plans: tuple[Plan, ...], cost: Cost) -> Ints:
    """Returns int64 [plans, ranks]: what copies and partial sums of the layer under way need at its fullest moment."""
    ways = [((plan, plan.forward, False), (plan, plan.backward, True)) for plan in plans]
    return np.stack([np.maximum(*(moment_bytes(*way, cost) for way in both)) for both in ways])


def step_bytes(plan: Plan, cost: Cost) -> Ints:
    """Gives the `peak_bytes` of a step whose micro-batches are all like `plan`, wherever it is in a step."""
    return peak_bytes((plan,), cost) if cost.pp == 1 else _staged_bytes((plan,), cost, cost.pp)


def _window(rows: Floats, width: int) -> float:
    """Returns the largest sum of `width` successive values, or of all."""
    total = np.concatenate([[0.0], np.cumsum(rows)])
    width = min(width, len(rows))
    return float((total[width:] - total[: len(total) - width]).max())
