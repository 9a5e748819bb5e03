"""Memory and traffic of the loss over a vocabulary, with logits of all tokens or of a chunk of them at a time.

In chunks of a number of its own (AUTO) is how the torch executors do it: gradients are made where the logits are, so no
logits are kept. Those of attention's plans (zbench.runtime.training.blocks.CrossEntropy) add a [vocab, hidden] array to
the gradient of the weights with each chunk, which is what `moved_bytes` counts for all; whole steps
(zbench.runtime.handlers.functions) make that gradient by chunks of words, and logits once more for it. Whole logits are
what a trainer without such a loss has; of so many tokens at a time where a run says how many, which are chunks of a
step (zbench.step.passes.memory.chunks). Either way whole steps have the same arrays of a logit at a time.
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.model import AUTO, Model

WHOLE_BYTES = 30  # moved per token and vocabulary entry: logits, float32 softmax, gradient (a count)
LEAST_CHUNK = 1024  # tokens of the loss at a time, at least: fewer would read the head's weights too often
CHUNK_SHARE = 4  # memory of a chunk's logits over that of x: every chunk adds [V, h] to the weights' gradient
TILE = 128  # rows of a matmul's tile; a chunk is whole tiles where it has several
ALIGNED = 8  # words of a chunk are as many times this, so that rows of two bytes a number begin at 16 bytes


def chunk_rows(tokens: int, hidden: int, vocab: int) -> int:
    """Returns how many tokens a chunk has."""
    rows = CHUNK_SHARE * tokens * hidden // vocab
    return max(LEAST_CHUNK, rows - rows % TILE)


def chunk_words(tokens: int, words: int, rows: int) -> int:
    """Returns how many words a chunk of all tokens has, so that it has no more logits than one of so many rows of all
    words."""
    found = words * rows // max(tokens, rows, 1)
    return max(found - found % ALIGNED if ALIGNED <= found < words else found, 1)


def chunked_bytes(model: Model, tokens: int) -> int:
    """Returns the bytes that the loss of `tokens` tokens holds in CrossEntropy's chunks: the norm's output, its
    gradient; a chunk's logits, their softmax (in the wide dtype first, where nothing is compiled)."""
    e, rows = model.element_bytes, min(tokens, chunk_rows(tokens, model.hidden, model.head_outputs))
    return 2 * e * model.hidden * tokens + rows * model.head_outputs * (2 * e + wide_bytes(model))


def logits_of_token(model: Model, share: float) -> float:
    """Returns the bytes of the logits of a token in a whole step: made in the model's dtype, and wide before their
    exponentials are taken, in place; or these wide, and narrow for the matmul. share: of the words."""
    e, wide = model.element_bytes, wide_bytes(model)
    return share * model.head_outputs * (e if e == wide else e + wide)


def logits_of_share(model: Model, share: float) -> float:
    """Returns the bytes that AUTO's logits, of a share of the words, have of each token of all, where these are more
    than a few thousand: as many tokens are computed at a time as chunk_rows has it."""
    words = min(share * model.head_outputs, CHUNK_SHARE * model.hidden)
    return logits_of_token(model, words / model.head_outputs)


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
