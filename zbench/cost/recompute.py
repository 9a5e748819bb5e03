"""Counts what selective recomputation runs again in a layer's backward, and what its forward need not keep for that;
what of it, and of what all layers do, there is for a chunk of tokens alone; and what a layer keeps without it.

It is the feed-forward up to its activation, as zbench.step.passes.recompute makes it again: the norm before it, gate
and up, and their product. The way down is not run again, as nothing reads what it makes. Of experts it is those that a
token has, shared ones among them; where they are, and what was exchanged for that, stays.

What is exchanged with experts is counted where feed-forwards go by chunks of tokens, whose planners have less room to
be wrong in: rows as if each expert of a token were on a GPU of its own, and all experts as popular.
"""

from math import comb

from zbench.describe.model import WHOLE, Model

AGAIN_KERNELS = 6  # of the 20 of a layer's forward: two each for norm, gate and up, activation (a count)


def layer_activation_bytes(model: Model) -> int:
    """Returns the bytes per token that one layer keeps for its backward, without recomputation.

    Two norm inputs, q, k, v, o, the o projection's and the norm's outputs (4 hidden in all with their
    inputs shared), gate, up and their product of every active expert, log-sum-exp.
    """
    e = model.element_bytes
    attention = e * model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads) + model.lse_bytes * model.num_heads
    return 4 * e * model.hidden + attention + 3 * e * model.active_ffn + chunk_routed_bytes(model)


def kept_activation_bytes(model: Model) -> int:
    """Returns the bytes per token that one layer keeps for its backward with the model's recomputation, without what is
    sent to experts where feed-forwards are whole."""
    if model.recompute == "full":
        return model.element_bytes * model.hidden
    return layer_activation_bytes(model) - (again_activation_bytes(model) if is_selective(model) else 0)


def rows_of_token(model: Model, expert_gpus: int, expert_cut: int = 1) -> float:
    """Returns the rows that a token has with its experts on so many GPUs, one on each of those that have some: as many
    as are expected where all experts are as popular. expert_cut: GPUs that have the same experts, some columns each."""
    count, chosen = model.num_experts, model.experts_per_token
    groups = min(expert_gpus // expert_cut, count)
    others = count - count // groups  # experts that a group does not have
    return expert_cut * groups * (1 - comb(others, chosen) / comb(count, chosen))


def chunk_routed_bytes(model: Model) -> int:
    """Returns the bytes per token that one layer keeps of what is sent to experts where feed-forwards go by chunks of
    tokens: logits, rows as if each of a token's experts were on a GPU of its own, and shares of its experts with each;
    0 of other layers."""
    if model.num_experts == 1 or model.mlp_chunk_tokens == WHOLE:
        return 0
    row = model.element_bytes * model.hidden + model.experts_per_token * model.lse_bytes
    return model.experts_per_token * row + model.element_bytes * model.num_experts


def is_selective(model: Model) -> bool:
    """Returns whether the feed-forward runs again."""
    return model.recompute in ("selective", "chunked")


def chunk_activation_bytes(model: Model) -> int:
    """Returns the bytes of a token that a layer at work has for a chunk of tokens alone, of those that recomputation
    makes again there; 0 without chunks, or where it makes them again for all tokens before. In a tensor-parallel group
    the norm's output is gathered for all. What was sent to experts stays, unless all of the layer is made again."""
    if model.mlp_chunk_tokens == WHOLE or model.recompute not in ("chunked", "full"):
        return 0
    norm = model.element_bytes * model.hidden if model.tensor_parallel > 1 else 0
    return again_activation_bytes(model) - norm + (chunk_routed_bytes(model) if model.recompute == "full" else 0)


def chunk_gradient_bytes(model: Model, experts: float) -> float:
    """Returns the bytes of gradients per token of a chunk of the feed-forward at their fullest moment, when the product
    is gone: of gate and up, and, of experts, of the rows that came and of those that go back. experts: rows of a token,
    as many as it has experts where these are all as popular."""
    rows = experts * model.hidden if model.num_experts > 1 else 0
    columns = model.active_ffn + model.ffn_hidden * (experts - model.experts_per_token)
    return 2 * model.element_bytes * (columns + rows)


def again_flops(model: Model) -> int:
    """Returns the FLOPs of a token's matmuls that run again: gate and up, two of the feed-forward's three."""
    return 2 * (2 * model.hidden * model.active_ffn)


def again_elementwise_bytes(model: Model) -> int:
    """Returns the bytes of a token that elementwise work passes through memory again: those of a norm and of the
    activation, as zbench.describe.model.Model.elementwise_bytes counts them."""
    ffn = model.active_ffn
    if model.kernels == "eager":
        return 28 * model.hidden + 10 * ffn
    return model.element_bytes * (2 * model.hidden + 3 * ffn)


def again_activation_bytes(model: Model) -> int:
    """Returns the bytes of a token that a layer has while its backward runs, and not from its forward to that: the
    norm's output, gate, up and their product."""
    return model.element_bytes * (model.hidden + 3 * model.active_ffn)
