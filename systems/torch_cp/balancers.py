"""PyTorch's load balancers of context parallelism: which tokens of a pack each rank of a group owns.

A balancer of PyTorch puts a pack's tokens in a new order, of which every rank takes as many in a row. It asks for a
pack of a multiple of 2W tokens (head-tail), documents of such (per document), or a multiple of W tiles (PTRR), for W
ranks. Here everything is cut as if padding had been added at the end of the pack, or of each document, to the next
multiple; then the padding is left out: whoever would own it has fewer tokens.

Source: PyTorch 2.13, torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py.
"""

from typing import Literal, get_args

import numpy as np

from zbench.plans.plan import Ints

Balancer = Literal["headtail", "per_document", "ptrr"]
BALANCERS: tuple[Balancer, ...] = get_args(Balancer)
Pieces = tuple[Ints, Ints, Ints, Ints]  # int64 [n] each: sequence, start, stop, and which of the ranks owns its tokens


def pieces(balancer: Balancer, lengths: Ints, num_ranks: int, tile: int) -> Pieces:
    """Returns what every rank owns of a pack of documents of `lengths`, in PyTorch's order. tile: the mask's, in
    tokens."""
    if balancer == "headtail":
        return head_tail(lengths, num_ranks)
    return per_document(lengths, num_ranks) if balancer == "per_document" else ptrr(lengths, num_ranks, tile)


def head_tail(lengths: Ints, num_ranks: int) -> Pieces:
    """Cuts the pack into 2W chunks, of which rank r owns chunks r and 2W-1-r, whatever documents they cut."""
    chunk = -(-int(lengths.sum()) // (2 * num_ranks))
    start = chunk * _head_tail_order(num_ranks)
    return _of_documents(lengths, start, start + chunk, np.repeat(np.arange(num_ranks), 2))


def per_document(lengths: Ints, num_ranks: int) -> Pieces:
    """Orders documents one after another, each in 2W chunks in the order 0, 2W-1, 1, 2W-2, and so on; of all this rank
    r owns the r-th part. A rank thus owns whole documents, not a share of each, as PyTorch's class has it in fact."""
    chunk, number = -(-lengths // (2 * num_ranks)), _head_tail_order(num_ranks)
    seq = np.repeat(np.arange(len(lengths)), len(number))
    start, size = (chunk[:, None] * number).reshape(-1), np.repeat(chunk, len(number))
    ends, share = np.cumsum(size), 2 * int(chunk.sum())
    edges = np.union1d(ends, share * np.arange(num_ranks))  # places in PyTorch's order
    left, right = edges[:-1], edges[1:]
    run = np.searchsorted(ends, left, side="right")
    shift = start[run] - (ends - size)[run]
    return _filled(seq[run], left + shift, np.minimum(right + shift, lengths[seq[run]]), left // share)


def ptrr(lengths: Ints, num_ranks: int, tile: int) -> Pieces:
    """Deals tiles of the pack by processing time, round-robin: rows of the mask's tiles, those with most of them first,
    in turns of W, every second turn backwards."""
    ends = np.cumsum(lengths)
    first = np.arange(0, ends[-1], tile)
    begin = (ends - lengths)[np.searchsorted(ends, first, side="right")]  # of the document in which a row begins
    work = np.zeros(-(-len(first) // num_ranks) * num_ranks, np.int64)
    work[: len(first)] = first // tile - begin // tile + 1
    turns = np.argsort(-work, kind="stable").reshape(-1, num_ranks)
    turns[1::2] = turns[1::2, ::-1]
    dealt = np.sort(turns, axis=0).T  # [W, tiles of a rank]
    start = tile * dealt.reshape(-1)
    return _of_documents(lengths, start, start + tile, np.repeat(np.arange(num_ranks), dealt.shape[1]))


def _head_tail_order(num_ranks: int) -> Ints:
    """Returns the chunks 0, 2W-1, 1, 2W-2, and so on."""
    head = np.arange(num_ranks, dtype=np.int64)
    return np.stack([head, 2 * num_ranks - 1 - head], axis=1).reshape(-1)


def _of_documents(lengths: Ints, start: Ints, stop: Ints, owner: Ints) -> Pieces:
    """Runs [start, stop) of a pack's tokens, cut at the ends of its documents and at the pack's."""
    ends = np.cumsum(lengths)
    stop = np.minimum(stop, ends[-1])
    kept = stop > start
    start, stop, owner = start[kept], stop[kept], owner[kept]
    first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left")
    count = last - first + 1  # documents in a run
    run = np.repeat(np.arange(len(start)), count)
    seq = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
    begin = (ends - lengths)[seq]
    left, right = np.maximum(start[run], begin) - begin, np.minimum(stop[run], ends[seq]) - begin
    return _filled(seq, left, right, owner[run])


def _filled(seq: Ints, start: Ints, stop: Ints, owner: Ints) -> Pieces:
    kept = stop > start
    return seq[kept], start[kept], stop[kept], owner[kept]
