"""Memory and traffic of the loss over a vocabulary, with logits of all tokens or of a chunk of them at a time.

In chunks of a number of its own (AUTO) is how the torch executor does it (zbench.runtime.training.blocks.CrossEntropy):
gradients are made where the logits are, so no logits are kept; each chunk adds a [vocab, hidden] array to the gradient
of the weights. Whole logits are what a trainer without such a loss has; of so many tokens at a time where a run says
how many, which are chunks of a step (zbench.step.passes.memory.chunks).
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.model import AUTO, WHOLE, Model

WHOLE_BYTES = 30  # moved per token and vocabulary entry: logits, float32 softmax, gradient (a count)
LEAST_CHUNK = 1024  # tokens of the loss at a time, at least: fewer would read the head's weights too often
CHUNK_SHARE = 4  # memory of a chunk's logits over that of x: every chunk adds [V, h] to the weights' gradient
TILE = 128  # rows of a matmul's tile; a chunk is whole tiles where it has several


def chunk_rows(tokens: int, hidden: int, vocab: int) -> int:
    """Returns how many tokens a chunk has."""
    rows = CHUNK_SHARE * tokens * hidden // vocab
    return max(LEAST_CHUNK, rows - rows % TILE)


def chunked_bytes(model: Model, tokens: int) -> int:
    """Returns the bytes that the loss of `tokens` tokens holds in chunks: the norm's output, its gradient; a chunk's
    logits, their softmax (in the wide dtype first, where nothing is compiled)."""
    e, rows = model.element_bytes, min(tokens, chunk_rows(tokens, model.hidden, model.head_outputs))
    return 2 * e * model.hidden * tokens + rows * model.head_outputs * (2 * e + wide_bytes(model))


def held_bytes(model: Model) -> int:
    """Returns the bytes that the loss holds for each token that it is computed for at a time: whole logits with their
    float32 gradient, or as chunked_bytes of more than a few thousand."""
    e, whole = model.element_bytes, _whole_logits_bytes(model)
    if model.loss_chunk_tokens != AUTO:
        return whole
    return min(whole, 2 * e * model.hidden + CHUNK_SHARE * model.hidden * (2 * e + wide_bytes(model)))


def _whole_logits_bytes(model: Model) -> int:
    """Returns the bytes of a token's logits with their float32 gradient."""
    return model.head_outputs * (model.element_bytes + 4)


def logits_bytes(model: Model, tokens: int, share: float) -> int:
    """Returns the bytes of the logits of so many tokens that are computed at a time, and of what is made of them, of a
    share of the words."""
    e, words = model.element_bytes, share * model.head_outputs
    if model.loss_chunk_tokens != AUTO:
        return int(tokens * words * (e + 4))
    return int(min(tokens, chunk_rows(tokens, model.hidden, max(int(words), 1))) * words * (2 * e + wide_bytes(model)))


def token_and_chunk_bytes(model: Model) -> tuple[int, int]:
    """Returns the bytes that the loss holds for every token of a GPU, and those of a chunk, however many tokens there
    are."""
    if model.loss_chunk_tokens in (WHOLE, AUTO):
        return held_bytes(model), 0
    return 2 * model.element_bytes * model.hidden, int(model.loss_chunk_tokens) * held_bytes(model)


def states_held(model: Model) -> int:
    """Returns how many hidden states are in held_bytes: by chunks the norm's output and its gradient, else none."""
    return 0 if held_bytes(model) == _whole_logits_bytes(model) and model.loss_chunk_tokens in (WHOLE, AUTO) else 2


def loss_moment_bytes(model: Model) -> int:
    """Returns the bytes that a GPU has of a token while its loss is computed, beside what layers keep: what the loss
    holds, the norm's output and its gradient, the last layer's output, and two sums."""
    states = 3 - states_held(model)
    return token_and_chunk_bytes(model)[0] + states * model.element_bytes * model.hidden + 2 * model.lse_bytes


def moved_bytes(model: Model, tokens: Floats) -> Floats:
    """Returns the bytes that the loss of so many tokens moves through memory, beside the matmuls' own.

    In chunks: logits are read twice and their gradient written, fused; or the softmax is written in float32, read and
    written as exponentials, read, and written narrow. Each chunk reads its [vocab, hidden] and adds it to the sum.
    """
    entries = model.head_outputs * tokens
    if model.loss_chunk_tokens != AUTO:
        return np.asarray(WHOLE_BYTES * entries, np.float64)
    e, wide = model.element_bytes, wide_bytes(model)
    chunks = np.minimum(tokens / LEAST_CHUNK, model.head_outputs / (CHUNK_SHARE * model.hidden))
    each = 3 * e if model.kernels == "fused" else 4 * wide + 2 * e
    return np.asarray(each * entries + chunks * model.head_params * (2 * wide + e), np.float64)


def wide_bytes(model: Model) -> int:
    """Returns the bytes of a number in the dtype of parameters and sums."""
    return max(4, model.element_bytes)
