"""A node's sequences on its GPUs, whole, or with heads and tokens dealt: step 2 of docs/planner.md.

Short sequences stay local. The tokens of the others are at home where GPUs lack tokens, one by one; their heads go to
the GPUs that are least loaded then, head by head. A head of all shared sequences together is a large part of a GPU's
work, so they are in groups, each with a split of heads of its own: what one leaves uneven the next fills.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.nodewise import node_seconds
from zbench.systems.nodewise.chunks import FIRST_QUARTER, LAST_QUARTER, shard_cut
from zbench.systems.nodewise.loads import level
from zbench.systems.nodewise.rates import Rates
from zbench.systems.nodewise.records import FORWARD, NodeSettings, NodeWork, Pace, Sequences, Table, TokenSeconds

TRIES = 8  # most sequences of a node whose heads are shared, beyond those that have to be
SLACK = 1.02  # sequences of more than so many even shares of a GPU have to be
ORDERED = 4  # groups at most for which every order is looked at


@dataclass(frozen=True, slots=True, eq=False)
class NodeLayout:
    """Says where the whole sequences of a node are inside it.

    rank: int64 [n], GPU of the node for each of them, -1 where its heads are shared. group: int64 [n], group of those
    whose heads are shared, in the groups' order, -1 for the others. heads: int64 [G, P + 1], bounds of every GPU's
    heads of each group. cuts: int64 [2, G], of the groups' heads in the forward and in the backward
    (zbench.systems.nodewise.chunks). share: float64 [P], of the tokens of shared and cut sequences that each GPU is
    home of; sums up to 1. seconds: estimate of a layer.
    """

    rank: Ints
    group: Ints
    heads: Ints
    cuts: Ints
    share: Floats
    seconds: float


class _Local(NamedTuple):
    """Sequences that stay on one GPU: rank [n] of each (-1: shared); load and held, [P] seconds and tokens of GPUs."""

    rank: Ints
    load: Floats
    held: Floats
    fits: bool


def node_layout(sequences: Sequences, shards: Table, rates: Rates, settings: NodeSettings) -> NodeLayout:
    """Lays out the whole sequences of a node, which has `shards` (SHARD_WORK [2]) of cut ones to attend to, too."""
    order = np.argsort(-sequences.work(rates.token.linear), kind="stable")
    ranked = Sequences(sequences.tokens[order], sequences.attention[order])
    orders = _orders(settings.groups)
    found_rank, found_group, heads, cuts, share, seconds = _share_best(
        ranked, shards, rates.token, rates.pace, settings, orders
    )
    rank, group = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    rank[order], group[order] = found_rank, found_group
    return NodeLayout(rank, group, heads, cuts, share, float(seconds))


@cache
def _orders(most: int) -> tuple[Ints, ...]:
    """For every number of groups up to `most`, orders of them, [n, number]."""
    found = [list(permutations(range(n))) if n <= ORDERED else [tuple(range(n))] for n in range(most + 1)]
    return tuple(np.array(orders, np.int64).reshape(len(orders), n) for n, orders in enumerate(found))


@nb.njit(**ENTERED)
def _share_best(
    ranked: Sequences, shards: Table, token: TokenSeconds, pace: Pace, settings: NodeSettings, orders: tuple[Ints, ...]
) -> tuple[Ints, Ints, Ints, Ints, Floats, float]:
    """Shares the k sequences with most work, in some groups; of all k and numbers of groups the best estimate is taken.

    Returns (rank, group, heads, cuts, share, seconds) as a NodeLayout has them, of sequences sorted by work.
    """
    tokens, ranks = ranked.tokens, settings.num_ranks
    even = np.arange(ranks + 1) * settings.num_heads // ranks  # heads of cut sequences: as on the other nodes
    attend = (shards[0]["own"] + shards[1]["own"]) + (shards[0]["others"] + shards[1]["others"])
    base = attend * ranks * np.diff(even) / settings.num_heads
    must = _too_long(ranked, ranks * attend + shards[0]["tokens"] * token.linear, token, ranks)
    share_of_pass = np.array([pace.passes[0].attention, pace.passes[1].attention])
    best, found = np.inf, False
    for k in range(must, len(tokens) + 1):
        if k > must + (TRIES if ranks > 1 else 0) and found:
            break
        local = _keep_local(ranked, k, base, token, settings)
        if not local.fits:
            continue
        alone = local.load - base - token.linear * local.held  # attention only
        home = _homes(local.held, float(shards[0]["tokens"] + tokens[:k].sum()), settings)
        load = local.load + token.linear * home
        busiest = ranks * home.max() / max(home.sum(), 1.0)
        for groups in range(min(k, 1), min(k, settings.groups) + 1):
            group, work, size = _group(ranked, token.repack, k, groups)
            heads = _deal_heads(load, work / settings.num_heads, settings.num_heads)
            # Copies are shared evenly by the directions, attention is not.
            by_pass = np.outer(share_of_pass, work - token.repack * size) + token.repack * size / 2
            local_by_pass = np.outer(share_of_pass, alone)
            linear = token.linear * (local.held + home)
            node = NodeWork(linear, local_by_pass, shards, size, by_pass, heads, busiest)
            seconds = node_seconds.seconds(node, np.arange(groups), _end_cuts(groups, settings.chunks), pace)
            if seconds < best - 1e-12:
                best, found = seconds, True
                best_node, best_rank, best_group, best_home = node, local.rank, group, home
    order, cuts, best = _best_order(best_node, orders[len(best_node.group_tokens)], settings.chunks, pace, best)
    turn = np.argsort(order)
    for s in range(len(tokens)):
        best_group[s] = turn[best_group[s]] if best_group[s] >= 0 else -1
    share = best_home / best_home.sum() if best_home.sum() > 0 else np.full(ranks, 1.0 / ranks)
    return best_rank, best_group, best_node.heads[order], cuts[:, order], share, best


@nb.njit(**INNER)
def _too_long(ranked: Sequences, cut_work: float, token: TokenSeconds, ranks: int) -> int:
    """How many sequences are too long for one GPU of a node that has `cut_work` seconds of cut ones besides."""
    total, must = cut_work, 0
    for s in range(len(ranked.tokens)):
        total += ranked.attention[s] + token.linear * ranked.tokens[s]
    while ranks > 1 and must < len(ranked.tokens):
        if ranked.attention[must] + token.linear * ranked.tokens[must] <= total / ranks * SLACK:
            break
        must += 1
    return must


@nb.njit(**INNER)
def _keep_local(ranked: Sequences, k: int, base: Floats, token: TokenSeconds, settings: NodeSettings) -> _Local:
    """Gives each sequence from k on to the least loaded GPU that has room; `base` is what GPUs have before, [P]."""
    tokens, ranks = ranked.tokens, settings.num_ranks
    load, held = base.copy(), np.zeros(ranks)
    rank = np.full(len(tokens), -1, np.int64)
    for s in range(k, len(tokens)):
        best = -1
        for r in range(ranks):
            if held[r] + tokens[s] <= settings.capacity and (best < 0 or load[r] < load[best]):
                best = r
        if best < 0:
            return _Local(rank, load, held, False)
        rank[s] = best
        load[best] += ranked.attention[s] + token.linear * tokens[s]
        held[best] += tokens[s]
    return _Local(rank, load, held, True)


@nb.njit(**INNER)
def _homes(held: Floats, pool: float, settings: NodeSettings) -> Floats:
    """How many of `pool` tokens of shared and cut sequences are at home on each GPU: where tokens are lacking."""
    if settings.homes:
        lacking: Floats = np.maximum(level(held, pool) - held, 0.0)
        return lacking
    return np.full(settings.num_ranks, pool / settings.num_ranks)


@nb.njit(**INNER)
def _group(ranked: Sequences, repack: float, k: int, count: int) -> tuple[Ints, Floats, Floats]:
    """Puts the first k sequences in groups of about as much work: (group of each, work and tokens of every group)."""
    group, work, size = np.full(len(ranked.tokens), -1, np.int64), np.zeros(count), np.zeros(count)
    for s in range(k):
        g = work.argmin()
        group[s] = g
        work[g] += ranked.attention[s] + repack * ranked.tokens[s]
        size[g] += ranked.tokens[s]
    return group, work, size


@nb.njit(**INNER)
def _deal_heads(load: Floats, head_seconds: Floats, num_heads: int) -> Ints:
    """Deals the heads of every group one by one to the least loaded GPU; returns their bounds, int64 [G, P + 1]."""
    heads, load = np.zeros((len(head_seconds), len(load) + 1), np.int64), load.copy()
    for g in range(len(head_seconds)):
        for _ in range(num_heads):
            r = load.argmin()
            heads[g, r + 1] += 1
            load[r] += head_seconds[g]
        heads[g] = np.cumsum(heads[g])
    return heads


@nb.njit(**INNER)
def _end_cuts(groups: int, chunks: int) -> Ints:
    """Cuts of the groups' heads at either end in the forward, in the backward only at the first, as seconds takes them:
    int64 [2, groups + 1], last the shards'.
    """
    cuts = np.zeros((2, groups + 1), np.int64)
    for direction in range(2):
        if groups > 0 and chunks > 1:
            cuts[direction, 0] = FIRST_QUARTER
            if chunks > 2 and direction == FORWARD:
                cuts[direction, groups - 1] += LAST_QUARTER
        cuts[direction, groups] = shard_cut(chunks, direction)
    return cuts


@nb.njit(**INNER)
def _best_order(node: NodeWork, orders: Ints, chunks: int, pace: Pace, best: float) -> tuple[Ints, Ints, float]:
    """The groups' best order, and cuts of its first and last group: (order, cuts, seconds)."""
    groups = len(node.group_tokens)
    found, found_cuts, cuts = np.arange(groups), _end_cuts(groups, chunks), _end_cuts(groups, chunks)
    for order in orders if groups > 0 and chunks > 1 else orders[:0]:
        for ends in range(16):  # two bits a direction: whether the first and the last quarter go by themselves
            cuts[:, :groups] = 0
            for direction in range(2):
                bits = ends >> (2 * direction)
                cuts[direction, order[0]] += bits & FIRST_QUARTER
                cuts[direction, order[-1]] += bits & LAST_QUARTER
            seconds = node_seconds.seconds(node, order, cuts, pace)
            if seconds < best - 1e-12:
                best, found, found_cuts = seconds, order.copy(), cuts.copy()
    return found, found_cuts, best
