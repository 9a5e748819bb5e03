"""Hydraulis' dispatch and packing as its public code has them, and the packs of its baselines.

Dispatch: sequences that a single pipeline can have go there first; the others follow in random orders, each to the
pipeline with which the slowest one is done first, where pipelines tie to the last empty one, else to the first. The
best of the trials stands. Packing: of v micro-batches, v from the least that memory allows on, the one with the
least (slowest + constant) (pp - 1 + v), the bound for equal micro-batches. For each v the public code has an integer
programme with half a second; here it is longest processing time first, then moves and swaps. Micro-batches run fullest
first. Greedy packs (the code's "fixed packing") begin with the shortest sequence left and take the longest that still
fit; the packs of systems without any dispatch are first fit in the batch's order, dealt to pipelines in turn.
Source: lhy101/Hydraulis (4489487e), examples/strategy/dynamic_pulp.py and examples/data_utils/bucket.py.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.common.best_fit import best_fit_sorted
from zbench.systems.common.bins import balanced_bins
from zbench.systems.hydraulis.pack import MORE, PLACES, TRIES, within_capacity


def published_dispatch(seconds: Floats, fits: Flags, scheme: Ints, stages: Ints, trials: int) -> Ints:
    """Deals sequences to pipelines as the public code does: int64 [n], the pipeline of every sequence; arguments as
    zbench.systems.hydraulis.dispatch.dispatch has them."""
    rng, count = np.random.default_rng(0), seconds.shape[1]
    several = fits[scheme].sum(axis=0) > 1
    orders = np.stack([np.lexsort((rng.random(count), several)) for _ in range(trials)])
    found: Ints = dispatched(seconds, fits, scheme, stages, orders)
    return found


@nb.njit(**ENTERED)
def dispatched(seconds, fits, scheme, stages, orders):  # type: ignore[no-untyped-def]
    """Deals sequences in the best of `orders`, int64 [trials, n]: each to the pipeline that then ends soonest."""
    count, pipelines = seconds.shape[1], len(scheme)
    best, goal = np.zeros(count, np.int64), np.inf
    for t in range(len(orders)):
        found, total, longest = np.zeros(count, np.int64), np.zeros(pipelines), np.zeros(pipelines)
        slowest = 0.0
        for i in orders[t]:
            to, least = -1, np.inf
            for p in range(pipelines):
                if fits[scheme[p], i]:
                    s = seconds[scheme[p], i]
                    end = max(slowest, total[p] + s + (stages[p] - 1) * max(longest[p], s))
                    if end < least or (end == least and total[p] == 0):
                        to, least = p, end
            s = seconds[scheme[to], i]
            found[i], slowest = to, least
            total[to] += s
            longest[to] = max(longest[to], s)
        if slowest < goal:
            best, goal = found, slowest
    return best


@nb.njit(**ENTERED)
def pack_evenly(seconds, tokens, fixed, stages, capacity):  # type: ignore[no-untyped-def]
    """Packs a pipeline's sequences evenly: returns (int64 [n], the micro-batch of each; (slowest + fixed) (stages - 1 +
    micro-batches)).

    seconds: of the sequences on a stage. A sequence above `capacity` has a micro-batch of its own.
    """
    count = len(tokens)
    by_tokens, by_seconds = np.argsort(-tokens), np.argsort(-seconds)
    best = np.empty(count, np.int64)
    best[by_tokens] = best_fit_sorted(tokens[by_tokens], capacity)
    goal = _bound(seconds, best, fixed, stages)
    is_long = tokens > capacity
    least = max(is_long.sum() + (tokens[~is_long].sum() + capacity - 1) // capacity, 1)
    tries = min(TRIES, PLACES // count**2)
    for v in range(least, min(least + MORE, count + 1)):
        found = balanced_bins(seconds, tokens, by_seconds, v, capacity, tries)
        if not within_capacity(tokens, found, v, capacity):
            found = balanced_bins(tokens.astype(np.float64), tokens, by_tokens, v, capacity, tries)
        bound = _bound(seconds, found, fixed, stages)
        if bound < goal and within_capacity(tokens, found, v, capacity):
            goal, best = bound, found
    return best, goal


@nb.njit(**INNER)
def _bound(seconds, micro, fixed, stages):  # type: ignore[no-untyped-def]
    each = np.zeros(micro.max() + 1)
    for i in range(len(seconds)):
        each[micro[i]] += seconds[i]
    return (each.max() + fixed) * (stages - 1 + (each > 0).sum())


@nb.njit(**ENTERED)
def greedy_packs(tokens, size):  # type: ignore[no-untyped-def]
    """Packs greedily: the shortest sequence left, then the longest that fit; returns int64 [n], the pack of every
    sequence. tokens: ascending."""
    pack, number = np.full(len(tokens), -1, np.int64), 0
    for i in range(len(tokens)):
        if pack[i] >= 0:
            continue
        pack[i], room = number, size - tokens[i]
        for j in range(len(tokens) - 1, i, -1):
            if pack[j] < 0 and tokens[j] <= room:
                pack[j] = number
                room -= tokens[j]
        number += 1
    return pack


@nb.njit(**ENTERED)
def first_fit(tokens, size):  # type: ignore[no-untyped-def]
    """Packs every sequence into the first pack with room; a longer one than `size` has its own. Returns int64 [n], the
    pack of each."""
    pack, room, number = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64), 0
    for i in range(len(tokens)):
        to = 0
        while to < number and room[to] < tokens[i]:
            to += 1
        if to == number:
            room[to] = max(size, tokens[i])
            number += 1
        pack[i] = to
        room[to] -= tokens[i]
    return pack


def packs_in_turn(tokens: Ints, capacity: Ints, start: Ints) -> Ints:
    """Deals packs to pipelines, each to the next in turn that has room; returns int64 [num_packs].

    tokens: [num_packs]. capacity: [num_pipelines]; the largest has room for every pack. start: micro-batches that
    pipelines have already, [num_pipelines]; who has fewest is next.
    """
    held, out = start.copy(), np.empty(len(tokens), np.int64)
    for number, size in enumerate(tokens.tolist()):
        able = np.flatnonzero(capacity >= size)
        out[number] = able[held[able].argmin()]
        held[out[number]] += 1
    return out
