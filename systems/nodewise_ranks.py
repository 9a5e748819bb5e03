"""Inside a node: which sequences stay on one GPU, and how heads and homes of the others fill the GPUs. Pure: no torch.

Short sequences stay local. The tokens of the others are at home where GPUs lack tokens, and their heads are split over
the node's GPUs by what each has left then: both parts are divisible, heads by whole ones, tokens one by one.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from systems.nodewise_work import Rates
from zbench.plan import Ints

Floats = NDArray[np.float64]
TRIES = 24  # most sequences of a node whose heads are shared, beyond those that have to be


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """rank: int64 [n] GPU of the node for each of its whole sequences, -1 where its heads are shared.

    heads: int64 [P + 1], bounds of every GPU's heads of shared sequences. share: float64 [P], of the tokens of
    shared and cut sequences that each GPU is home of; sums up to 1. seconds: estimate.
    """

    rank: Ints
    heads: Ints
    share: Floats
    seconds: float


def inside(
    lengths: Ints,
    attention: Floats,
    cut_tokens: int,
    cut_attention: float,
    rates: Rates,
    num_ranks: int,
    num_heads: int,
    capacity: int,
    chunks: int,
    homes: bool = True,
) -> Inside:
    """For whole sequences (their lengths and attention, [n]) and what of cut ones is on the node."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    found = _split(
        lengths[order], attention[order], cut_tokens, cut_attention, rates.token, rates.repack,
        rates.exchange * (num_ranks - 1) / num_ranks / chunks, num_ranks, num_heads, capacity, homes,
    )  # fmt: skip
    rank = np.empty(len(lengths), np.int64)
    rank[order], heads, share, seconds = found
    return Inside(rank, heads, share, float(seconds))


@nb.njit(cache=True)
def _split(  # type: ignore[no-untyped-def]
    tokens, attention, cut_tokens, cut_attention, token, repack, exchange, num_ranks, num_heads, capacity, homes
):
    """Sequences sorted, most work first. Tries to share the first k for growing k; the best estimate is taken."""
    count = len(tokens)
    best, best_k = np.inf, count
    total = cut_attention + cut_tokens * (token + repack)
    for s in range(count):
        total += attention[s] + token * tokens[s]
    must = 0
    while must < count and attention[must] + token * tokens[must] > total / num_ranks * 1.02:
        must += 1
    if num_ranks == 1:
        must = 0
    for k in range(must, min(count, must + (TRIES if num_ranks > 1 else 0)) + 1):
        load, _, fits = _local(tokens, attention, k, cut_attention / num_ranks, token, num_ranks, capacity)
        if not fits:
            continue
        pool, heads_work = _pool(tokens, attention, k, cut_tokens)
        level = _level(load, heads_work + pool * (token + repack))
        seconds = max(level, load.max()) + exchange * pool / num_ranks
        if seconds < best - 1e-12:
            best, best_k = seconds, k
    load, rank, _ = _local(tokens, attention, best_k, cut_attention / num_ranks, token, num_ranks, capacity)
    pool, heads_work = _pool(tokens, attention, best_k, cut_tokens)
    held = np.zeros(num_ranks)
    for s in range(count):
        if rank[s] >= 0:
            held[rank[s]] += tokens[s]
    home = np.maximum(_level(held, pool) - held, 0.0) if homes else np.full(num_ranks, pool / num_ranks)
    share = home / home.sum() if home.sum() > 0 else np.full(num_ranks, 1.0 / num_ranks)
    load += home * (token + repack)
    room = np.maximum(_level(load, heads_work) - load, 0.0)
    bounds = np.arange(num_ranks + 1) * num_heads // num_ranks
    if room.sum() > 0:
        bounds = np.round(np.cumsum(np.append(0.0, room)) / room.sum() * num_heads).astype(np.int64)
    return rank, bounds, share, best


@nb.njit(cache=True)
def _pool(tokens, attention, k, cut_tokens):  # type: ignore[no-untyped-def]
    pool, work = float(cut_tokens), 0.0
    for s in range(k):
        pool += tokens[s]
        work += attention[s]
    return pool, work


@nb.njit(cache=True)
def _local(tokens, attention, k, base, token, num_ranks, capacity):  # type: ignore[no-untyped-def]
    """Sequences from k on, each to the least loaded GPU that has room: (load, rank, whether all fit)."""
    load, held = np.full(num_ranks, base), np.zeros(num_ranks, np.int64)
    rank = np.full(len(tokens), -1, np.int64)
    for s in range(k, len(tokens)):
        best = -1
        for r in range(num_ranks):
            if held[r] + tokens[s] <= capacity and (best < 0 or load[r] < load[best]):
                best = r
        if best < 0:
            return load, rank, False
        rank[s] = best
        load[best] += attention[s] + token * tokens[s]
        held[best] += tokens[s]
    return load, rank, True


@nb.njit(cache=True)
def _level(load, work):  # type: ignore[no-untyped-def]
    """Up to where `work` fills the least loaded."""
    order = np.sort(load)
    left = work
    for i in range(len(order)):
        above = order[i + 1] if i + 1 < len(order) else np.inf
        if left <= (above - order[i]) * (i + 1):
            return order[i] + left / (i + 1)
        left -= (above - order[i]) * (i + 1)
    return order[-1]
