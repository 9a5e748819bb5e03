"""Slices of a GPU's own tokens, of about as many tokens each, whatever blocks they are of; parts that end with them."""

from math import lcm
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.plans.cut_blocks import cut_blocks
from zbench.plans.plan import Plan


class TokenChunk(NamedTuple):
    """Tokens that a group of GPUs computes at a time, at most. alike: GPUs that follow one another and have as many
    chunks as the one of them that needs most, as what they compute is exchanged chunk by chunk."""

    tokens: int
    alike: int = 1


class TokenCuts(NamedTuple):
    """The cuts of a GPU's own tokens. slices: of about as many tokens each, and as many of each chunk. chunks: of each
    kind. by_area: whether GPUs have about as much attention of a block. shares: of each sequence of the plan the share
    of its tokens that is sent to host memory, where they end (sent_tokens); (): none end."""

    slices: int = 1
    chunks: tuple[TokenChunk, ...] = ()
    by_area: bool = False
    shares: tuple[float, ...] = ()


def tokens_in_slices(gpu: Ints, sizes: Ints, slices: int | Ints) -> Ints:
    """Returns the tokens that each part has in each slice of its GPU's tokens, int64 [parts, slices].

    A GPU's tokens are those of its parts in their order; slice i of n has tokens total * i // n up to total * (i + 1)
    // n of them. gpu, sizes: of every part its GPU and its tokens, int64 [parts]. slices: of all GPUs, or of each.
    """
    return _tokens_between(gpu, sizes, _ends(_totals(gpu, sizes), slices))


def chunks_of_parts(gpu: Ints, sizes: Ints, slices: int | Ints) -> Ints:
    """Returns the first slice of its GPU's tokens that each part has some of, int64 [parts]: the one that it is in
    where parts end with slices. gpu, sizes, slices: as above."""
    return np.asarray(np.argmax(tokens_in_slices(gpu, sizes, slices) > 0, axis=1), np.int64)


def slices_in_chunks(gpu: Ints, sizes: Ints, degree: int, chunk: TokenChunk) -> Ints:
    """Returns in how many slices each GPU's own tokens are cut, for chunks of a group's tokens, int64 [GPUs]; those of
    a group have as many. gpu, sizes: as above. degree: GPUs of a group."""
    total = _totals(gpu, sizes)
    group = np.arange(len(total)) // degree
    counts = -(-np.bincount(group, weights=total).astype(np.int64) // chunk.tokens)
    alike = np.arange(len(total)) // lcm(degree, chunk.alike)
    most = np.ones(alike[-1] + 1 if len(alike) else 0, np.int64)
    np.maximum.at(most, alike, counts[group])
    return np.asarray(most[alike])


def parts_of_blocks(plan: Plan, degree: int, cuts: TokenCuts) -> tuple[Ints, Ints, Ints]:
    """Returns (the block, the GPU of its group, the tokens) of every part of blocks whose tokens are divided among
    `degree` GPUs, and each GPU's by cuts; without those of no token."""
    block, part, sizes = _divided(plan, degree, cuts.by_area)
    inside = sizes[:, None]
    if cuts.slices > 1 or cuts.chunks:
        gpu = plan.blocks.home[block] * degree + part
        counts: list[int | Ints] = [cuts.slices]
        counts += [cuts.slices * slices_in_chunks(gpu, sizes, degree, one) for one in cuts.chunks]
        total = _totals(gpu, sizes)
        ends = np.sort(np.concatenate([_ends(total, one) for one in counts], axis=1), axis=1)
        inside = _tokens_between(gpu, sizes, ends)
    which, piece = np.nonzero(inside)
    found = block[which], part[which], inside[which, piece]
    if not cuts.shares:
        return found
    sent = sent_tokens(plan, degree, cuts, found)
    inside = np.stack([sent, found[2] - sent], axis=1)
    which, piece = np.nonzero(inside)
    return found[0][which], found[1][which], inside[which, piece]


def sent_tokens(plan: Plan, degree: int, cuts: TokenCuts, parts: tuple[Ints, Ints, Ints]) -> Ints:
    """Returns how many tokens of each part are sent to host memory, int64 [parts]: all or none where parts end with
    them. parts: as parts_of_blocks returns them.

    A GPU sends as many tokens as the shares of those that it has come to, rounded up, of blocks with the largest shares
    first. Where a block has tokens of several sequences, its share is that of all of them together.
    """
    blocks, gpus = plan.blocks, plan.num_ranks * degree
    weights = (blocks.stop - blocks.start) * np.array(cuts.shares)[blocks.seq]
    share = np.bincount(blocks.block, weights=weights, minlength=len(blocks)) / blocks.tokens
    share = np.round(share, 12)  # alike where blocks are
    block, part, sizes = _divided(plan, degree, cuts.by_area)
    exact = np.bincount(blocks.home[block] * degree + part, weights=share[block] * sizes, minlength=gpus)
    count = np.ceil(exact - 1e-4).astype(np.int64)  # sums of shares are inexact
    block, part, sizes = parts
    gpu = blocks.home[block] * degree + part
    order = np.lexsort((np.arange(len(gpu)), -share[block], gpu))
    every = np.bincount(gpu, weights=sizes, minlength=gpus).astype(np.int64)
    of_others = np.cumsum(every) - every  # tokens of the GPUs before each
    before = np.cumsum(sizes[order]) - sizes[order] - of_others[gpu[order]]
    found = np.empty(len(gpu), np.int64)
    found[order] = np.clip(count[gpu[order]] - before, 0, sizes[order])
    return found


def _divided(plan: Plan, degree: int, by_area: bool) -> tuple[Ints, Ints, Ints]:
    """Returns the parts of blocks that are divided among GPUs, as parts_of_blocks, without other cuts."""
    if by_area:
        return _by_area(plan, degree)
    tokens, share = plan.blocks.tokens, np.arange(degree)
    every = tokens[:, None] // degree + (share < tokens[:, None] % degree)
    block, part = np.nonzero(every)
    return block, part, every[block, part]


def _by_area(plan: Plan, degree: int) -> tuple[Ints, Ints, Ints]:
    """Returns parts of blocks, as parts_of_blocks, of which the GPUs of a group have as many tokens of each block and
    about as much attention: a block's tokens are cut in two runs for each GPU, one has the runs of which queries see
    the most keys and the fewest, another one the next two. Of one sequence that is zigzag."""
    blocks, share = plan.blocks, np.arange(2 * degree)
    every = blocks.tokens[:, None] // len(share) + (share < blocks.tokens[:, None] % len(share))
    block, run = np.nonzero(every)
    sizes = every[block, run]
    runs = cut_blocks(blocks, block, sizes)
    seen = plan.mask.between(runs.start, runs.stop, 0 * runs.start, plan.lengths[runs.seq])
    area = np.bincount(runs.block, weights=seen, minlength=len(sizes))
    rank = np.empty(len(sizes), np.int64)
    rank[np.lexsort((-area, block))] = np.arange(len(sizes)) - np.searchsorted(block, block)
    return block, np.minimum(rank, 2 * degree - 1 - rank), sizes


def _totals(gpu: Ints, sizes: Ints) -> Ints:
    """Returns the tokens of every GPU up to the last one that has any, int64 [GPUs]."""
    return np.bincount(gpu, weights=sizes).astype(np.int64)


def _ends(total: Ints, slices: int | Ints) -> Ints:
    """Returns where slices of each GPU's tokens begin and end, int64 [GPUs, most slices + 1]."""
    each = np.asarray(slices, np.int64)
    every = np.broadcast_to(each[: len(total)] if each.ndim else each, total.shape)[:, None]
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
