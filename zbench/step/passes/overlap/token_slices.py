"""Slices of a GPU's own tokens, of about as many tokens each, whatever blocks they are of; parts that end with them."""

import numpy as np

from zbench.describe.arrays import Ints


def tokens_in_slices(gpu: Ints, sizes: Ints, slices: int) -> Ints:
    """Returns the tokens that each part has in each slice of its GPU's tokens, int64 [parts, slices].

    A GPU's tokens are those of its parts in their order; slice i of n has tokens total * i // n up to total * (i + 1)
    // n of them. gpu, sizes: of every part its GPU and its tokens, int64 [parts].
    """
    order = np.argsort(gpu, kind="stable")
    total = np.bincount(gpu, weights=sizes).astype(np.int64)
    begin = np.zeros(len(gpu), np.int64)
    begin[order] = np.cumsum(sizes[order]) - sizes[order]
    begin -= (np.cumsum(total) - total)[gpu]
    ends = total[gpu, None] * np.arange(slices + 1) // slices - begin[:, None]
    return np.asarray(np.diff(np.clip(ends, 0, sizes[:, None]), axis=1), np.int64)


def parts_of_blocks(tokens: Ints, home: Ints, degree: int, slices: int) -> tuple[Ints, Ints, Ints]:
    """Returns (the block, the share of it, the tokens) of every part of blocks whose tokens are divided among `degree`
    GPUs, and each GPU's in slices; without those of no token. tokens, home: of every block, its tokens and its rank."""
    share = np.arange(degree)
    sizes = tokens[:, None] // degree + (share < tokens[:, None] % degree)
    block, part = np.nonzero(sizes)
    inside = sizes[block, part][:, None]
    if slices > 1:
        inside = tokens_in_slices(home[block] * degree + part, inside[:, 0], slices)
    which, piece = np.nonzero(inside)
    return block[which], part[which], inside[which, piece]
