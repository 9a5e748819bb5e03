"""Bytes of a token on a stage of a pipeline: what is kept for the backward, and what else is there at the fullest
moments of a backward and of the loss.

A stage's ranks have a share of everything but of what tensor parallelism gathers and has not reduced yet: a hidden
state of all tokens is then whole on every rank, which on 16 ranks is as much as half a layer that is kept.
"""

from zbench.cost.cost import Cost
from zbench.cost.loss import states_held, token_and_chunk_bytes
from zbench.cost.recompute import (
    again_activation_bytes,
    chunk_activation_bytes,
    layer_activation_bytes,
)
from zbench.describe.model import WHOLE


def stage_bytes(cost: Cost, tp: int, pp: int) -> tuple[float, float, float]:
    """Returns the bytes of activations on each rank of a stage, a token of all its ranks: kept for every micro-batch
    under way; besides, while the stage is at work on the backward of a layer; or, on the last stage, on the loss. Kv
    heads that are replicated are counted."""
    kept, working, loss = bytes_of_layers(cost, tp, pp, cost.model.num_layers, cost.model.recomputed_layers)
    return kept / pp, working, loss


def bytes_of_layers(cost: Cost, tp: int, pp: int, layers: int, recomputed: int) -> tuple[float, float, float]:
    """Returns the bytes of stage_bytes for so many layers, of which so many are recomputed."""
    model = cost.model
    copies = max(tp - model.num_kv_heads, 0) / tp  # k and v that this rank has and another has too
    layer = layer_activation_bytes(model) / tp + 2 * copies * model.head_dim * model.element_bytes
    rest = layers - recomputed
    if not recomputed:
        return layers * layer, _backward_bytes(cost, tp, pp, 0), _loss_bytes(cost, tp)
    if model.recompute == "full":
        inputs = recomputed * model.element_bytes * model.hidden / tp
        kept, again, gathered = inputs + rest * layer, layer, 2  # outputs of both norms are made again, and gathered
    else:
        again = again_activation_bytes(model) / tp
        kept, gathered = rest * layer + recomputed * (layer - again), 1
    again -= chunk_activation_bytes(model) / tp
    return kept, again + _backward_bytes(cost, tp, pp, gathered), _loss_bytes(cost, tp)


def _hidden_bytes(cost: Cost, tp: int) -> tuple[float, float]:
    """Returns the bytes of a token's hidden state on a rank of a stage: whole, as what is gathered or not yet reduced,
    of every GPU that a rank stands for; and the rank's own share."""
    whole = cost.model.element_bytes * cost.model.hidden
    return whole * cost.tp, whole / tp


def _backward_bytes(cost: Cost, tp: int, pp: int, gathered: int) -> float:
    """Returns the bytes of a token that the backward of a layer's feed-forward has beside what is kept or made again,
    at the fullest of its three moments. gathered: hidden states that are whole since they were made again."""
    model = cost.model
    whole, own = _hidden_bytes(cost, tp)
    other = whole - own  # of a gathered hidden state, what other ranks have too
    ffn = model.element_bytes * model.active_ffn / tp if model.mlp_chunk_tokens == WHOLE else 0.0
    product = gathered * other + whole + ffn  # its gradient is made of what came back, gathered
    halves = gathered * other + own + 2 * ffn  # those of gate and up, when the product itself is gone
    norm = max(gathered, 1) * other + whole + own - ffn  # that of the norm's output, which is whole twice
    early = own if pp > 1 and model.recompute != "full" else 0.0  # an input of the next micro-batch is there already
    return max(product, halves, norm) + early


def _loss_bytes(cost: Cost, tp: int) -> float:
    """Returns the bytes of a token while its loss is computed: logits, the norm's output and its gradient, both whole
    on every rank, the last layer's output and two sums a token."""
    whole, own = _hidden_bytes(cost, tp)
    held = token_and_chunk_bytes(cost.model)[0] / tp - states_held(cost.model) * own
    return held + 2 * whole + own + 2 * cost.model.lse_bytes * cost.tp
