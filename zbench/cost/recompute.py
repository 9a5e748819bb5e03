"""Counts what selective recomputation runs again in a layer's backward, and what its forward need not keep for that.

It is the feed-forward up to its activation, as zbench.step.passes.recompute makes it again: the norm before it, gate
and up, and their product. The way down is not run again, as nothing reads what it makes. Of experts it is those that a
token has; where they are, and what was exchanged for that, stays.
"""

from zbench.describe.model import Model

AGAIN_KERNELS = 6  # of the 20 of a layer's forward: two each for norm, gate and up, activation (a count)


def is_selective(model: Model) -> bool:
    """Returns whether the feed-forward runs again."""
    return model.recompute == "selective"


def again_flops(model: Model) -> int:
    """Returns the FLOPs of a token's matmuls that run again: gate and up, two of the feed-forward's three."""
    return 2 * (2 * model.hidden * model.ffn_hidden * model.experts_per_token)


def again_elementwise_bytes(model: Model) -> int:
    """Returns the bytes of a token that elementwise work passes through memory again: those of a norm and of the
    activation, as zbench.describe.model.Model.elementwise_bytes counts them."""
    ffn = model.ffn_hidden * model.experts_per_token
    if model.kernels == "eager":
        return 28 * model.hidden + 10 * ffn
    return model.element_bytes * (2 * model.hidden + 3 * ffn)


def again_activation_bytes(model: Model) -> int:
    """Returns the bytes of a token that a layer has while its backward runs, and not from its forward to that: the
    norm's output, gate, up and their product."""
    return model.element_bytes * (model.hidden + 3 * model.ffn_hidden * model.experts_per_token)
