"""Bytes of parameters, gradients and optimizer state: what a rank has of them all the time, and what is whole for a
moment where they are cut over ranks."""

from typing import NamedTuple

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import Cost
from zbench.cost.memory.nested_parts import NestedParts, has_parts_in_parts
from zbench.describe.degrees import BY_STRATEGY, WORLD, degrees_of
from zbench.describe.model import Model

ADAM_BYTES = 12  # per parameter: float32 master weight and two moments


class ParameterCount(NamedTuple):
    """Numbers of parameters: of all, and of those that are experts', shared ones not among them."""

    all: int
    of_experts: int


class HostedLayers(NamedTuple):
    """Layers of a stage of which something is in host memory, and so on no GPU: how many, and their parameters."""

    layers: int
    params: ParameterCount


_NOTHING = HostedLayers(0, ParameterCount(0, 0))


class WholeBytes(NamedTuple):
    """Bytes of parameters and gradients that are whole for a moment beside a rank's own part of them.

    feed_forward: in a layer's backward, when the gradient of the way down is there: this layer's parameters but those,
    and those of as many layers as are gathered ahead. norm: when all of the feed-forward's gradients are. chunks: and
    its parameters still, for the next chunk of tokens. attention: when the output projection's are, too.
    inputs: when all of the layer's gradients are, and parameters of the layers ahead. loss: the head's gradient, the
    head and the layers ahead. rows: when gradients of rows come to experts, and none of parameters is there. ahead:
    parameters of one layer ahead. embedding: on the first of several stages, where other micro-batches are under way,
    when a forward begins: the table and the layers ahead; table: when a backward ends, the table's gradient.
    """

    feed_forward: float = 0.0
    norm: float = 0.0
    chunks: float = 0.0
    attention: float = 0.0
    inputs: float = 0.0
    loss: float = 0.0
    rows: float = 0.0
    ahead: float = 0.0
    embedding: float = 0.0
    table: float = 0.0

    @staticmethod
    def of(cost: Cost, layers: int) -> "WholeBytes":
        """Returns those of a job's sharding, on a rank of a stage of so many layers that are alike: none where all
        ranks have all parameters and gradients. A stage of one layer is reckoned with another ahead."""
        window = cost.layers_ahead
        return WholeBytes.of_kind(cost, (min(window, max(layers - 1, 1)), min(window, layers), min(window, layers)))

    @staticmethod
    def of_kind(
        cost: Cost, ahead: tuple[int, int, int], others: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ) -> "WholeBytes":
        """Returns those of layers of one kind. ahead: how many layers of it are gathered ahead, in a layer's backward,
        at the loss, and when a forward begins; others: bytes of those of another kind that are."""
        model, degrees, ranks = cost.model, degrees_of(cost.model.sharding), cost.cluster.num_ranks
        if has_parts_in_parts(cost):
            parts = NestedParts.of(cost)
            return WholeBytes(**parts.at_work(ahead[0]), **parts.at_ends(*ahead[1:], adam_bytes(model)))
        weights, gradients = (degree != 1 and ranks > 1 for degree in (degrees.weights, degrees.gradients))
        weight, gradient = weights * model.element_bytes, gradients * GRADIENT_BYTES
        # A rank's own part is one piece of each layer, and one of its experts, which are cut by themselves; and the
        # fullest's where its gradient is still to come, as far as may be. Of parts that lie in one another, as degrees
        # have them, none is taken off.
        all_experts = model.expert_params
        own, own_experts = ((model.layer_params - all_experts) / ranks, all_experts / ranks)
        if degrees not in BY_STRATEGY.values():
            own = own_experts = 0.0
        experts = all_experts * cost.tp / cost.expert_gpus  # as many as a rank's GPUs have between them
        attention, head = model.attention_params, model.head_params
        layer = model.layer_params - all_experts
        ffn, out = layer - attention, attention * model.num_heads / (2 * (model.num_heads + model.num_kv_heads))
        one = weight * (layer - own + experts - own_experts)  # gathered for a layer
        following, of_loss, of_table = (count * one + more for count, more in zip(ahead, others, strict=True))

        def there(left: float, left_experts: float) -> float:
            found = following
            for part, rest in ((own, left), (own_experts, left_experts)):
                found -= min(weight, gradient) * min(part, rest) + gradient * max(part - rest, 0)
            return found

        # Table and head are cut as one, so some ranks have a part of the table and none of the head; of a stage, whose
        # rank with most has a part of one of them and none of the other, it is that rank. Tied ones are cut evenly.
        table = model.table_params if cost.pp > 1 else 0
        apart = model.tied_embeddings * head / ranks
        of_rank = apart if model.tied_embeddings or cost.pp == 1 else (table + head) / ranks
        loss = (weight + gradient) * (head - min(head, of_rank))
        rest = table - min(table, of_rank)
        projections, down = attention - out, (ffn / 3, experts / 3)
        kept = layer - down[0], experts - down[1]
        made = gradient * (ffn + experts)
        return WholeBytes(
            there(*kept) + weight * sum(kept) + gradient * sum(down),
            there(attention, 0) + weight * attention + made,
            there(attention, 0) + weight * (layer + experts) + made,
            there(projections, 0) + weight * projections + gradient * out + made,
            following + gradient * (layer - own + experts - own_experts),
            of_loss + loss,
            there(layer, experts) + weight * (layer + experts),
            one,
            weight * rest + of_table if table else 0.0,
            gradient * rest,
        )


def state_bytes(cost: Cost) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on a rank of a job, all the time; of one of its
    stages where these are alike, the fullest."""
    if cost.pp > 1:
        ends = (0, cost.pp - 1) if has_parts_in_parts(cost) else (cost.pp - 1,)
        return max(bytes_of_stage(cost, stage, cost.layers) for stage in ends)
    model, degrees = cost.model, degrees_of(cost.model.sharding)
    size = ParameterCount(model.total_params, (model.num_layers - model.dense_layers) * model.expert_params)
    of = degrees.secondary, degrees.gradients, degrees.optimizer
    found = _state_bytes(cost, size, model.num_layers, of, _updated(model), _resting(cost, 0, model.num_layers))
    if 0 < model.layers_updated_on_hosts < model.num_layers and not model.tied_embeddings:
        # Table and head are cut as one: where the head's state is on hosts, ranks with the table alone have most.
        ranks, table = cost.cluster.num_ranks, model.table_params
        found += int(ADAM_BYTES * (min(table, (table + model.head_params) / ranks) - table / ranks))
    return found


def bytes_of_stage(cost: Cost, stage: int, layers: int, dense: int = 0) -> int:
    """Returns the bytes of a job's stage if it has so many layers, on the rank of it that has most: what is cut of the
    table and the head is cut as one, though each is on another stage, so some of a stage's ranks have more; but those
    of tied embeddings, each of which is cut by itself. dense: how many of its layers are dense where others have
    experts; they are the first ones."""
    model, ranks = cost.model.with_stages(cost.pp), cost.cluster.num_ranks
    is_first, is_last = stage == 0, stage == cost.pp - 1
    params = (layers - dense) * model.layer_params + dense * model.dense_layer_params
    outer = is_first * model.table_params + is_last * (model.head_params + model.hidden)
    size = ParameterCount(params + outer, (layers - dense) * model.expert_params)
    degrees, most = degrees_of(model.sharding), max(model.layers_of_stages)
    of = degrees.secondary, degrees.gradients, degrees.optimizer
    if degrees.optimizer == 1:
        return _state_bytes(cost, size, most, of)
    first = sum(model.layers_of_stages[:stage])
    resting = _resting(cost, first, layers)
    every, some = model.layers_updated_on_hosts == model.num_layers, model.layers_updated_on_hosts > 0
    outer_updated = every or (some and is_last and not model.tied_embeddings)  # tied tables are where all layers' is
    updated = HostedLayers(most, size) if every else _last_ones(model, first, layers, outer * outer_updated)
    found = _state_bytes(cost, size, most, of, updated, resting)
    each = float(0 if outer_updated else ADAM_BYTES)
    each += model.element_bytes * (degrees.secondary != 1) + GRADIENT_BYTES * (degrees.gradients != 1)
    if has_parts_in_parts(cost):
        parts = NestedParts.of(cost)
        outer_state = parts.outer_state(is_first, is_last, adam_bytes(model))
        return found + int(outer_state - parts.even_state(outer - is_last * model.hidden, adam_bytes(model)))
    cut_as_one = model.table_params + (0 if model.tied_embeddings else model.head_params)
    more = min(outer, cut_as_one / ranks) - outer / ranks
    return found + int(max(more, 0) * each)


def pipeline_state_bytes(cost: Cost, tp: int, pp: int, staged: int | None = None) -> int:
    """Returns the bytes of parameters, gradients and optimizer state on the fullest rank of a pipeline's fullest stage,
    which is one with the table or the head. staged: ranks of all pipelines of several stages, over which the state of a
    tied table is cut, as these have two; None: not known, and taken to be this pipeline's alone, which has most then.

    For the whole step also with ZeRO-2 and 3: other pipelines have other numbers of micro-batches, so none could gather
    from all ranks for one of its own. Tensors are evenly on a stage's ranks but for norms' gains, which every rank has,
    and their optimizer state, which one has.
    """
    model, layers = cost.model, cost.model.num_layers // pp
    params = model.total_params if pp == 1 else layers * model.layer_params + model.head_params
    whole = degrees_of(model.sharding).optimizer == 1
    state = adam_bytes(model) * (1 / tp if whole else pp / cost.cluster.num_ranks)  # else of all that have the stage
    each = model.element_bytes + GRADIENT_BYTES
    found = params * (each / tp + state) + _gains(model, layers) * (each + adam_bytes(model))
    if model.tied_embeddings and not whole and (pp > 1 or staged):
        of_table = adam_bytes(model) * pp / (staged or tp * pp) if pp > 1 else 0.0
        found += model.table_params * (of_table - state)
    return int(found) + model.lse_bytes


def tables_sum_bytes(cost: Cost, tp: int, pp: int, staged: int) -> int:
    """Returns the bytes that a rank of a pipeline's last stage has beside its state when it adds its tied table's
    gradient to that of the first stage: its share of both is there then, and no other part of its own. staged: as of
    `pipeline_state_bytes`."""
    if not cost.model.tied_embeddings or pp == 1:
        return 0
    return int(GRADIENT_BYTES * cost.model.table_params / tp * max(2 * tp * pp / staged - 1, 0))


def adam_bytes(model: Model) -> int:
    """Returns the bytes of a parameter's optimizer state on GPUs, 0 where hosts have that of all layers."""
    return 0 if model.layers_updated_on_hosts == model.num_layers else ADAM_BYTES


def _updated(model: Model) -> HostedLayers:
    """Returns the layers whose optimizer state is in host memory, the last ones, and all parameters whose is."""
    layers = model.layers_updated_on_hosts
    experts = min(layers, model.num_layers - model.dense_layers) * model.expert_params
    return HostedLayers(layers, ParameterCount(model.params_updated_on_hosts, experts))


def _last_ones(model: Model, first: int, layers: int, outer: int) -> HostedLayers:
    """Returns the layers of a stage, from the first one on so many, whose optimizer state is in host memory as some of
    the model's last ones' is. outer: parameters of no layer whose is, too."""
    begin = max(first, model.num_layers - model.layers_updated_on_hosts)
    count = max(first + layers - begin, 0)
    dense = min(max(model.dense_layers - begin, 0), count)
    others = count - dense
    params = others * model.layer_params + dense * model.dense_layer_params + outer
    return HostedLayers(count, ParameterCount(params, others * model.expert_params))


def _resting(cost: Cost, first: int, layers: int) -> HostedLayers:
    """Returns the layers of a stage whose parameters are in host memory alone when it has most: of those that rest
    there, the model's first ones, all but the one at work and those ahead. Where some are dense these are of the kind
    that has more parameters, as they may be. first: the stage's first layer; layers: how many it has."""
    model = cost.model
    count = min(max(model.parameters_on_hosts - first, 0), layers)
    if degrees_of(model.sharding).secondary != WORLD:
        count = 0  # parts that stay for a backward are all that is counted of parameters, and are on GPUs
    dense = min(max(model.dense_layers - first, 0), count)
    others, here = count - dense, min(1 + cost.layers_ahead, count)
    if model.dense_layer_params > model.layer_params:
        others -= max(here - dense, 0)
        dense -= min(here, dense)
    else:
        dense -= max(here - others, 0)
        others -= min(here, others)
    params = others * model.layer_params + dense * model.dense_layer_params
    return HostedLayers(others + dense, ParameterCount(params, others * model.expert_params))


def _state_bytes(
    cost: Cost,
    params: ParameterCount,
    layers: int,
    degrees: tuple[int, int, int],
    updated: HostedLayers = _NOTHING,
    resting: HostedLayers = _NOTHING,
) -> int:
    """Returns the bytes of so many parameters, each cut over so many of a stage's ranks, of their gradients and of
    their state.

    Norms' gains and routers are not cut: every GPU has them, and one their state. Experts lie over GPUs of their own:
    each has its part of them, and what ZeRO cuts it cuts over the GPUs that have the same part. What rests in host
    memory is not there: parameters (resting), and optimizer state (updated). Where workers train apart in rounds there
    are outer parameters besides, evenly over the GPUs of all workers.
    """
    model, found = cost.model, float(cost.model.lse_bytes)  # a loss
    on_hosts, sizes = (resting, _NOTHING, updated), (model.element_bytes, GRADIENT_BYTES, ADAM_BYTES)
    for size, degree, (away, gone) in zip(sizes, degrees, on_hosts, strict=True):
        ranks = cost.cluster.num_ranks if degree == WORLD else degree
        gpus = cost.expert_gpus if degree == 1 else max(ranks * cost.tp, cost.expert_gpus)
        if gone.all and gone.all == params.all:
            continue
        share, experts = 1 / ranks, params.of_experts - gone.of_experts
        of_rest = share * (params.all - gone.all - experts) + (cost.tp - share) * _gains(model, layers - away)
        found += size * (of_rest + experts * cost.tp / gpus)
    if cost.workers > 1:  # outer parameters, and their momentum, are where optimizer state is, averages on GPUs
        outer = 2 * (params.all - updated.params.all) / cost.workers + cost.under_way * params.all
        found += max(GRADIENT_BYTES, model.element_bytes) * outer / cost.cluster.num_ranks
    return int(found)


def _gains(model: Model, layers: int) -> int:
    """Returns the numbers of the norms of so many layers, of the one behind the last, and of routers, which are not cut
    either."""
    one = model.num_experts * (model.router_dim or model.hidden) + model.router_dim * model.hidden
    return model.hidden * (2 * layers + 1) + layers * one * (model.num_experts > 1)
