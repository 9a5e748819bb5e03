"""Inside a node: which sequences stay on one GPU, and how heads and homes of the others fill the GPUs. Pure: no torch.

Short sequences stay local. The tokens of the others are at home where GPUs lack tokens, one by one; their heads go to
the GPUs that are least loaded then, head by head. A head of all shared sequences together is a large part of a GPU's
work, so they are in groups, each with a split of heads of its own: what one leaves uneven the next fills.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.plans.plan import Ints
from zbench.systems.nodewise import pace
from zbench.systems.nodewise.pace import OTHERS, OWN, TOKENS
from zbench.systems.nodewise.rows import level
from zbench.systems.nodewise.work import Rates

Floats = NDArray[np.float64]
TRIES = 8  # most sequences of a node whose heads are shared, beyond those that have to be
SLACK = 1.02  # sequences of more than so many even shares of a GPU have to be
ORDERED = 4  # groups at most for which every order is looked at


@dataclass(frozen=True, slots=True)
class Node:
    """num_ranks: GPUs. num_heads: of the model. capacity: tokens of a GPU. chunks: most parts a GPU's heads are cut in.

    groups: most groups of shared sequences. homes: whether tokens go where GPUs lack them (otherwise evenly).
    """

    num_ranks: int
    num_heads: int
    capacity: int
    chunks: int
    groups: int
    homes: bool


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """rank: int64 [n] GPU of the node for each of its whole sequences, -1 where its heads are shared.

    group: int64 [n] group of those whose heads are shared, in their order, -1 for the others. heads: int64 [G, P + 1],
    bounds of every GPU's heads of each group. cuts: int64 [2, G], of the groups' heads in the forward and the backward
    (nodewise_pace). share: float64 [P], of the tokens of shared and cut sequences that each GPU is home of;
    sums up to 1. seconds: estimate.
    """

    rank: Ints
    group: Ints
    heads: Ints
    cuts: Ints
    share: Floats
    seconds: float


def inside(lengths: Ints, attention: Floats, row: Floats, rates: Rates, node: Node) -> Inside:
    """For whole sequences (their lengths and attention, [n]) and what of cut ones is on the node (pace.Work.row)."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    found = _split(
        lengths[order], attention[order], row, rates.token, rates.repack, rates.pace, node.num_ranks, node.num_heads,
        node.capacity, node.chunks, node.groups, node.homes, _orders(node.groups),
    )  # fmt: skip
    rank, group = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    rank[order], group[order], heads, cuts, share, seconds = found
    return Inside(rank, group, heads, cuts, share, float(seconds))


@cache
def _orders(most: int) -> tuple[Ints, ...]:
    """For every number of groups up to `most`, orders of them, [n, number]."""
    found = [list(permutations(range(n))) if n <= ORDERED else [tuple(range(n))] for n in range(most + 1)]
    return tuple(np.array(orders, np.int64).reshape(len(orders), n) for n, orders in enumerate(found))


@nb.njit(cache=True)
def _split(  # type: ignore[no-untyped-def]
    tokens, attention, row, token, repack, given, num_ranks, num_heads, capacity, chunks, most, homes, orders
):
    """Sequences sorted, most work first. Shares the first k in up to `most` groups; the best estimate is taken."""
    count, cut_tokens = len(tokens), row[0, TOKENS]
    cut_busy = row[:, OWN].sum() + row[:, OTHERS].sum()
    total = num_ranks * cut_busy + cut_tokens * token
    for s in range(count):
        total += attention[s] + token * tokens[s]
    must = 0
    while num_ranks > 1 and must < count and attention[must] + token * tokens[must] > total / num_ranks * SLACK:
        must += 1
    even = np.arange(num_ranks + 1) * num_heads // num_ranks  # of cut sequences: as on the other nodes
    base = cut_busy * num_ranks * np.diff(even) / num_heads
    shares, best, first = given.ways[:, pace.ATTENTION].copy(), np.inf, True
    for k in range(must, count + 1):
        if k > must + (TRIES if num_ranks > 1 else 0) and not first:
            break
        rank, load, held, fits = _local(tokens, attention, k, base, token, num_ranks, capacity)
        if not fits:
            continue
        alone = load - base - token * held
        pool = float(cut_tokens + tokens[:k].sum())
        home = np.maximum(level(held, pool) - held, 0.0) if homes else np.full(num_ranks, pool / num_ranks)
        load += token * home
        busiest = num_ranks * home.max() / max(home.sum(), 1.0)
        for groups in range(min(k, 1), min(k, most) + 1):
            group, work, size = _groups(tokens, attention, repack, k, groups)
            heads = _heads(load, work / num_heads, num_heads)
            both = np.outer(shares, work - repack * size) + repack * size / 2
            of = pace.Work(token * (held + home), np.outer(shares, alone), row, size, both, heads, busiest)
            cuts = _cuts(groups, chunks)
            seconds = pace.seconds(of, np.arange(groups), cuts, given)
            if seconds < best - 1e-12:
                best, best_of, best_rank, best_group, best_home, first = seconds, of, rank, group, home, False
    order, cuts, best = _ordered(best_of, orders[len(best_of.size)], chunks, given, best)
    turn = np.argsort(order)
    for s in range(count):
        best_group[s] = turn[best_group[s]] if best_group[s] >= 0 else -1
    share = best_home / best_home.sum() if best_home.sum() > 0 else np.full(num_ranks, 1.0 / num_ranks)
    return best_rank, best_group, best_of.heads[order], cuts[:, order], share, best


@nb.njit(cache=True)
def _cuts(groups, chunks):  # type: ignore[no-untyped-def]
    """[2, groups + 1]: the ends cut in the forward, in the backward only the first; last the rows'."""
    cuts = np.zeros((2, groups + 1), np.int64)
    for direction in range(2):
        if groups > 0 and chunks > 1:
            cuts[direction, 0] = pace.HEAD
            if chunks > 2 and direction == pace.FORWARD:
                cuts[direction, groups - 1] += pace.TAIL
        cuts[direction, groups] = pace.row_cut(chunks, direction)
    return cuts


@nb.njit(cache=True)
def _ordered(of, orders, chunks, given, best):  # type: ignore[no-untyped-def]
    """The groups' best order, and cuts of its first and last group; (order, cuts, seconds)."""
    groups = len(of.size)
    found, found_cuts, cuts = np.arange(groups), _cuts(groups, chunks), _cuts(groups, chunks)
    for order in orders if groups > 0 and chunks > 1 else orders[:0]:
        for ends in range(16):
            cuts[:, :groups] = 0
            for direction in range(2):
                bits = ends >> (2 * direction)
                cuts[direction, order[0]] += bits & pace.HEAD
                cuts[direction, order[-1]] += bits & pace.TAIL
            seconds = pace.seconds(of, order, cuts, given)
            if seconds < best - 1e-12:
                best, found, found_cuts = seconds, order.copy(), cuts.copy()
    return found, found_cuts, best


@nb.njit(cache=True)
def _local(tokens, attention, k, base, token, num_ranks, capacity):  # type: ignore[no-untyped-def]
    """Sequences from k on, each to the least loaded GPU that has room: (rank, load, tokens held, whether all fit)."""
    load, held = base.copy(), np.zeros(num_ranks)
    rank = np.full(len(tokens), -1, np.int64)
    for s in range(k, len(tokens)):
        best = -1
        for r in range(num_ranks):
            if held[r] + tokens[s] <= capacity and (best < 0 or load[r] < load[best]):
                best = r
        if best < 0:
            return rank, load, held, False
        rank[s] = best
        load[best] += attention[s] + token * tokens[s]
        held[best] += tokens[s]
    return rank, load, held, True


@nb.njit(cache=True)
def _groups(tokens, attention, repack, k, count):  # type: ignore[no-untyped-def]
    """The first k sequences in groups of about as much work: (group of each, work and tokens of every group)."""
    group, work, size = np.full(len(tokens), -1, np.int64), np.zeros(count), np.zeros(count)
    for s in range(k):
        g = work.argmin()
        group[s] = g
        work[g] += attention[s] + repack * tokens[s]
        size[g] += tokens[s]
    return group, work, size


@nb.njit(cache=True)
def _heads(load, each, num_heads):  # type: ignore[no-untyped-def]
    """Heads one by one to the least loaded GPU: bounds of every group's, whose heads take `each`."""
    heads, load = np.zeros((len(each), len(load) + 1), np.int64), load.copy()
    for g in range(len(each)):
        for _ in range(num_heads):
            r = load.argmin()
            heads[g, r + 1] += 1
            load[r] += each[g]
        heads[g] = np.cumsum(heads[g])
    return heads
