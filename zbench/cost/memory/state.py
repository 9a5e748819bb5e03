"""Bytes of parameters, gradients and optimizer state: what a rank has of them all the time, and what is whole for a
moment where they are cut over ranks."""

from typing import NamedTuple

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.describe.degrees import BY_STRATEGY, WORLD, degrees_of
from zbench.describe.model import Model

ADAM_BYTES = 12  # per parameter: float32 master weight and two moments


class WholeBytes(NamedTuple):
    """Bytes of parameters and gradients that are whole for a moment beside a rank's own part of them.

    feed_forward: in a layer's backward, when the gradient of the way down is there: this layer's parameters but those,
    and those of as many layers as are gathered ahead. norm: when all of the feed-forward's gradients are. chunks: and
    its parameters still, for the next chunk of tokens. attention: when the output projection's are, too.
    inputs: when all of the layer's gradients are, and parameters of the layers ahead. loss: the head's gradient, the
    head and the layers ahead.
    """

    feed_forward: float = 0.0
    norm: float = 0.0
    chunks: float = 0.0
    attention: float = 0.0
    inputs: float = 0.0
    loss: float = 0.0

    @staticmethod
    def of(cost: Cost) -> "WholeBytes":
        """Returns those of a job's sharding: none where all ranks have all parameters and gradients."""
        model, degrees, ranks = cost.model, degrees_of(cost.model.sharding), cost.cluster.num_ranks
        weights, gradients = (degree != 1 and ranks > 1 for degree in (degrees.weights, degrees.gradients))
        weight, gradient = weights * model.element_bytes, gradients * GRADIENT_BYTES
        layer, attention, head = model.layer_params, model.attention_params, model.head_params
        ffn, out = layer - attention, attention * model.num_heads / (2 * (model.num_heads + model.num_kv_heads))
        down = ffn / 3
        # A rank's own part is one piece of each layer, and the fullest's where its gradient is still to come, as far as
        # may be. Of parts that lie in one another, as degrees have them, none is taken off.
        own = layer / ranks * (degrees in BY_STRATEGY.values())
        one = weight * (layer - own)  # gathered for a layer
        following = one * min(cost.layers_ahead, max(model.num_layers - 1, 1))

        def there(rest: float) -> float:
            return following - min(weight, gradient) * min(own, rest) - gradient * max(own - rest, 0)

        # Table and head are cut as one, so some ranks have a part of the table and none of the head.
        loss = (weight + gradient) * head * (1 - model.tied_embeddings / ranks)
        projections = attention - out
        return WholeBytes(
            there(layer - down) + weight * (layer - down) + gradient * down,
            there(attention) + weight * attention + gradient * ffn,
            there(attention) + weight * layer + gradient * ffn,
            there(projections) + weight * projections + gradient * (ffn + out),
            following + gradient * (layer - own),
            one * min(cost.layers_ahead, model.num_layers) + loss,
        )


def state_bytes(cost: Cost) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on a rank of a job, all the time; of one of its
    stages where these are alike, the fullest."""
    if cost.pp > 1:
        return bytes_of_stage(cost, cost.layers * cost.model.layer_params, False, True)
    degrees, ranks = degrees_of(cost.model.sharding), cost.whole.num_ranks
    weights, gradients, state = (
        1 / (ranks if degree == WORLD else degree)
        for degree in (degrees.secondary, degrees.gradients, degrees.optimizer)
    )
    return _state_bytes(cost, cost.model.total_params, cost.model.num_layers, (weights, gradients, state))


def bytes_of_stage(cost: Cost, params: int, is_first: bool, is_last: bool) -> int:
    """Returns the bytes of a job's stage, with so many parameters of layers, on the rank of it that has most: state of
    the table and the head is cut as one, though each is on another stage, so some of a stage's ranks have more."""
    model, ranks = cost.model, cost.cluster.num_ranks
    layers = max(model.with_stages(cost.pp).layers_of_stages)
    outer = is_first * model.table_params + is_last * (model.head_params + model.hidden)
    if degrees_of(model.sharding).optimizer == 1:
        return _state_bytes(cost, params + outer, layers, (1.0, 1.0, 1.0))
    more = min(outer, (model.table_params + model.head_params) / ranks) - outer / ranks
    found = _state_bytes(cost, params + outer, layers, (1.0, 1.0, 1 / ranks))
    return found + int(max(more, 0) * adam_bytes(model))


def pipeline_state_bytes(cost: Cost, tp: int, pp: int) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on the fullest rank of a pipeline's fullest stage,
    which is one with the table or the head.

    For the whole step also with ZeRO-2 and 3: other pipelines have other numbers of micro-batches, so none could gather
    from all ranks for one of its own. Tensors are evenly on a stage's ranks but for norms' gains, which every rank has,
    and their optimizer state, which one has.
    """
    model, layers = cost.model, cost.model.num_layers // pp
    params = model.total_params if pp == 1 else layers * model.layer_params + model.head_params
    whole = degrees_of(model.sharding).optimizer == 1
    state = adam_bytes(model) * (1 / tp if whole else pp / cost.whole.num_ranks)  # else of all that have the stage
    each = model.element_bytes + GRADIENT_BYTES
    return int(params * (each / tp + state) + _gains(model, layers) * (each + adam_bytes(model))) + model.lse_bytes


def adam_bytes(model: Model) -> int:
    """Returns the bytes of a parameter's optimizer state on GPUs."""
    return 0 if model.optimizer_on_hosts else ADAM_BYTES


def _state_bytes(cost: Cost, params: int, layers: int, shares: tuple[float, float, float]) -> int:
    """Returns the bytes of so many parameters, of which a rank has these shares, of their gradients and of their state.
    Norms' gains and routers are not cut: every GPU has them, and one their state."""
    model, found = cost.model, float(cost.model.lse_bytes)  # a loss
    for size, share in zip((model.element_bytes, GRADIENT_BYTES, adam_bytes(model)), shares, strict=True):
        found += size * (share * params + (cost.tp - share) * _gains(model, layers))
    return int(found)


def _gains(model: Model, layers: int) -> int:
    """Returns the numbers of the norms of so many layers, of the one behind the last, and of routers, which are not cut
    either."""
    one = model.num_experts * (model.router_dim or model.hidden) + model.router_dim * model.hidden
    return model.hidden * (2 * layers + 1) + layers * one * (model.num_experts > 1)
