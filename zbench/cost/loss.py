"""Memory and traffic of the loss over a vocabulary, with logits of all tokens or of a chunk of them at a time.

In chunks of a number of its own (AUTO) is how the torch executor does it (zbench.runtime.training.blocks.CrossEntropy):
gradients are made where the logits are, so no logits are kept; each chunk adds a [vocab, hidden] array to the gradient
of the weights. Whole logits are what a trainer without such a loss has; of so many tokens at a time where a run says
how many, which are chunks of a step (zbench.step.passes.memory.chunks).
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.model import AUTO, Model

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


def logits_of_token(model: Model, share: float) -> float:
    """Returns the bytes of the logits of a token that they are computed of, and of what is made of them: a float32
    gradient, or in AUTO's chunks their softmax (in the wide dtype first). share: of the words."""
    e = model.element_bytes
    return share * model.head_outputs * (e + 4 if model.loss_chunk_tokens != AUTO else 2 * e + wide_bytes(model))


def logits_of_share(model: Model, share: float) -> float:
    """Returns the bytes that AUTO's logits, of a share of the words, have of each token of all, where these are more
    than a few thousand: as many tokens are computed at a time as chunk_rows has it."""
    words = min(share * model.head_outputs, CHUNK_SHARE * model.hidden)
    return words * (2 * model.element_bytes + wide_bytes(model))


def logits_bytes(model: Model, tokens: int, share: float) -> int:
    """Returns the bytes of the logits of so many tokens, of a share of the words, and of what is made of them, as far
    as they are there at a time."""
    rows = tokens
    if model.loss_chunk_tokens == AUTO:
        rows = min(tokens, chunk_rows(tokens, model.hidden, max(int(share * model.head_outputs), 1)))
    return int(rows * logits_of_token(model, share))


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
