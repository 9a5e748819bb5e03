"""Slices of a GPU's own tokens, of about as many tokens each, whatever blocks they are of; parts that end with them."""

from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints


class TokenCuts(NamedTuple):
    """The cuts of a GPU's own tokens. slices: of about as many tokens each. chunks: of each kind of chunks, the tokens
    that a group of GPUs computes at a time, at most."""

    slices: int = 1
    chunks: tuple[int, ...] = ()


def tokens_in_slices(gpu: Ints, sizes: Ints, slices: int | Ints) -> Ints:
    """Returns the tokens that each part has in each slice of its GPU's tokens, int64 [parts, slices].

    A GPU's tokens are those of its parts in their order; slice i of n has tokens total * i // n up to total * (i + 1)
    // n of them. gpu, sizes: of every part its GPU and its tokens, int64 [parts]. slices: of all GPUs, or of each.
    """
    return _tokens_between(gpu, sizes, _ends(_totals(gpu, sizes), slices))


def slices_in_chunks(gpu: Ints, sizes: Ints, degree: int, chunk: int) -> Ints:
    """Returns in how many slices each GPU's own tokens are cut, for chunks of at most so many of a group's tokens,
    int64 [GPUs]; those of a group have as many. gpu, sizes: as above. degree: GPUs of a group."""
    total = _totals(gpu, sizes)
    group = np.arange(len(total)) // degree
    counts = -(-np.bincount(group, weights=total).astype(np.int64) // chunk)
    return np.maximum(counts, 1)[group]


def parts_of_blocks(tokens: Ints, home: Ints, degree: int, cuts: TokenCuts) -> tuple[Ints, Ints, Ints]:
    """Returns (the block, the share of it, the tokens) of every part of blocks whose tokens are divided among `degree`
    GPUs, and each GPU's by cuts; without those of no token. tokens, home: of every block, its tokens and its rank."""
    share = np.arange(degree)
    sizes = tokens[:, None] // degree + (share < tokens[:, None] % degree)
    block, part = np.nonzero(sizes)
    inside = sizes[block, part][:, None]
    if cuts != TokenCuts():
        gpu, own = home[block] * degree + part, inside[:, 0]
        every: list[int | Ints] = [cuts.slices, *(slices_in_chunks(gpu, own, degree, one) for one in cuts.chunks)]
        total = _totals(gpu, own)
        ends = np.sort(np.concatenate([_ends(total, one) for one in every], axis=1), axis=1)
        inside = _tokens_between(gpu, own, ends)
    which, piece = np.nonzero(inside)
    return block[which], part[which], inside[which, piece]


def _totals(gpu: Ints, sizes: Ints) -> Ints:
    """Returns the tokens of every GPU up to the last one that has any, int64 [GPUs]."""
    return np.bincount(gpu, weights=sizes).astype(np.int64)


def _ends(total: Ints, slices: int | Ints) -> Ints:
    """Returns where slices of each GPU's tokens begin and end, int64 [GPUs, most slices + 1]."""
    every = np.broadcast_to(np.asarray(slices, np.int64), total.shape)[:, None]
    at = np.minimum(np.arange(every.max(initial=1) + 1), every)
    return np.asarray(total[:, None] * at // every, np.int64)


def _tokens_between(gpu: Ints, sizes: Ints, ends: Ints) -> Ints:
    """Returns the tokens that each part has between one of its GPU's ends and the next, int64 [parts, ends - 1]."""
    order = np.argsort(gpu, kind="stable")
    total = _totals(gpu, sizes)
    begin = np.zeros(len(gpu), np.int64)
    begin[order] = np.cumsum(sizes[order]) - sizes[order]
    begin -= (np.cumsum(total) - total)[gpu]
    return np.asarray(np.diff(np.clip(ends[gpu] - begin[:, None], 0, sizes[:, None]), axis=1), np.int64)
