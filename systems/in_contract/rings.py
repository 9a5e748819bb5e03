"""Rounds of ring groups that end together: samples placed under a time, the least time that holds them all, and moves.

A round is found as in dual approximation (Hochbaum and Shmoys 1987): for a time, samples are placed longest first, each
in the open group that it fills most, or in a new one of the fewest ranks that end in time; the least time at which all
find a place is searched for by halving. Then ranks without a group are given to groups, and samples change places
between groups as long as the busiest one gets less.
"""

from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.in_contract.rates import RingRates
from zbench.systems.in_contract.ring_seconds import (
    ring_layer_seconds,
    seconds_alone,
    seconds_at,
    sum_groups,
    with_exchanged,
)

HALVINGS = 18  # of the interval of a round's seconds: to 1 part in 250,000
MOVES = 400  # most moves or exchanges of samples in a round


class Round(NamedTuple):
    """The groups of a round: the size of each (its place in RingRates.sizes), int64 [groups], the group of every sample
    that was to be placed, int64 [S], -1 where it waits, and the seconds of the busiest group."""

    size: Ints
    group: Ints
    seconds: float


@nb.njit(**INNER)
def _fill(rates, order, most, cap, num_ranks, size, group, state):  # type: ignore[no-untyped-def]
    """Places samples in groups that end by `most` seconds; returns (groups, samples that found no place).

    order: samples, longest first. cap: tokens of a rank. size, group: as in Round, filled in. state: float64 [3,
    num_ranks], tokens of a rank and hop seconds of every group, filled in.
    """
    count, used, waiting = 0, 0, 0
    for s in order:
        place, fullest = -1, -1.0
        for g in range(count):
            k = size[g]
            tokens = state[0, g] + rates.length[s] / rates.sizes[k]
            if tokens > cap:
                continue
            then = ring_layer_seconds(rates, k, tokens, state[1, g] + rates.ahead[s, k], state[2, g] + rates.back[s, k])
            if then <= most and then > fullest:
                place, fullest = g, then
        if place < 0:
            chosen, least = -1, np.inf
            for k in range(len(rates.sizes)):
                if rates.sizes[k] > num_ranks - used:
                    break
                if rates.length[s] / rates.sizes[k] > cap:
                    continue
                alone = seconds_alone(rates, s, k)
                if alone <= most:
                    chosen = k
                    break
                if count == 0 and alone < least and len(order) > 0 and s == order[0]:
                    chosen, least = k, alone  # of the first sample, whatever it takes
            if chosen < 0:
                group[s] = -1
                waiting += 1
                continue
            place = count
            size[place] = chosen
            state[:, place] = 0.0
            used += rates.sizes[chosen]
            count += 1
        k = size[place]
        group[s] = place
        state[0, place] += rates.length[s] / rates.sizes[k]
        state[1, place] += rates.ahead[s, k]
        state[2, place] += rates.back[s, k]
    return count, waiting


@nb.njit(**INNER)
def _halved(rates, order, group, g, k):  # type: ignore[no-untyped-def]
    """Divides the samples of group g over two groups of the k-th size, longest first to the one that is done first;
    returns (seconds of the slower one, whether each sample of `order` goes to the second)."""
    sums = np.zeros((2, 3))
    second = np.zeros(len(order), np.bool_)
    for i in range(len(order)):
        s = order[i]
        if group[s] != g:
            continue
        best, chosen = np.inf, 0
        for half in range(2):
            then = ring_layer_seconds(
                rates,
                k,
                sums[half, 0] + rates.length[s] / rates.sizes[k],
                sums[half, 1] + rates.ahead[s, k],
                sums[half, 2] + rates.back[s, k],
            )
            if then < best:
                best, chosen = then, half
        second[i] = chosen == 1
        sums[chosen, 0] += rates.length[s] / rates.sizes[k]
        sums[chosen, 1] += rates.ahead[s, k]
        sums[chosen, 2] += rates.back[s, k]
    if sums[1, 0] == 0.0:
        return np.inf, second
    return max(
        ring_layer_seconds(rates, k, sums[0, 0], sums[0, 1], sums[0, 2]),
        ring_layer_seconds(rates, k, sums[1, 0], sums[1, 1], sums[1, 2]),
    ), second


@nb.njit(**INNER)
def _widen(rates, order, count, size, group, state, cap, num_ranks):  # type: ignore[no-untyped-def]
    """Gives every rank a group: one is widened to the next size, or halved into two of its size, whichever leaves the
    busiest group, and then the one that is changed, done sooner. Returns the number of groups, -1 where ranks are left
    that no group can have."""
    used = 0
    for g in range(count):
        used += rates.sizes[size[g]]
    while used < num_ranks:
        seconds = sum_groups(rates, order, count, size, group, state)
        last = int(np.argmax(seconds))
        second = 0.0  # the busiest but that one
        for g in range(count):
            if g != last:
                second = max(second, seconds[g])
        best, least, chosen, split = np.inf, np.inf, -1, False
        for g in range(count):
            others, k = second if g == last else seconds[last], size[g]
            if k + 1 < len(rates.sizes) and rates.sizes[k + 1] - rates.sizes[k] <= num_ranks - used:
                then = seconds_at(rates, order, group, g, k + 1)
                if (max(then, others), then - seconds[g]) < (best, least):
                    best, least, chosen, split = max(then, others), then - seconds[g], g, False
            if rates.sizes[k] <= num_ranks - used:
                then, _ = _halved(rates, order, group, g, k)
                if (max(then, others), then - seconds[g]) < (best, least):
                    best, least, chosen, split = max(then, others), then - seconds[g], g, True
        if chosen < 0:
            chosen = _split_off(rates, order, count, size, group, cap, num_ranks - used)
            if chosen < 0:
                return -1
            used += rates.sizes[size[count]]
            count += 1
        elif split:
            _, moved = _halved(rates, order, group, chosen, size[chosen])
            for i in range(len(order)):
                if moved[i]:
                    group[order[i]] = count
            size[count] = size[chosen]
            used += rates.sizes[size[chosen]]
            count += 1
        else:
            used += rates.sizes[size[chosen] + 1] - rates.sizes[size[chosen]]
            size[chosen] += 1
    return count


@nb.njit(**INNER)
def _split_off(rates, order, count, size, group, cap, free):  # type: ignore[no-untyped-def]
    """Opens a group of at most `free` ranks, as the last one, with the shortest sample that is not alone in its group;
    returns the group that had it, -1 if there is none that so few ranks hold."""
    widest = -1
    for k in range(len(rates.sizes)):
        if rates.sizes[k] <= free:
            widest = k
    for i in range(len(order) - 1, -1, -1):
        g, shared = group[order[i]], False
        for other in order:
            if other != order[i] and g >= 0 and group[other] == g:
                shared = True
        if shared and widest >= 0 and rates.length[order[i]] / rates.sizes[widest] <= cap:
            group[order[i]] = count
            size[count] = widest
            return g
    return -1


@nb.njit(**INNER)
def _even(rates, order, count, size, group, state, cap, moves):  # type: ignore[no-untyped-def]
    """Moves samples of the busiest group to others, or exchanges them, as long as the slower of the two then ends
    sooner; returns the seconds of the busiest group."""
    seconds = sum_groups(rates, order, count, size, group, state)
    for _ in range(moves):
        a = int(np.argmax(seconds))
        members = 0
        for s in order:
            members += group[s] == a
        best, one, two, to = seconds[a] * (1 - 1e-6), -1, -1, -1
        for s in order:
            if group[s] != a:
                continue
            for g in range(count):
                if g == a:
                    continue
                if members > 1:
                    tokens, there = with_exchanged(rates, state, g, size[g], s, -1)
                    if tokens <= cap and there < best:
                        _, here = with_exchanged(rates, state, a, size[a], -1, s)
                        if max(here, there) < best:
                            best, one, two, to = max(here, there), s, -1, g
            for t in order:
                g = group[t]
                if g < 0 or g == a or rates.length[t] == rates.length[s]:
                    continue
                tokens, there = with_exchanged(rates, state, g, size[g], s, t)
                if tokens > cap or there >= best:
                    continue
                tokens, here = with_exchanged(rates, state, a, size[a], t, s)
                if tokens <= cap and max(here, there) < best:
                    best, one, two, to = max(here, there), s, t, g
        if one < 0:
            break
        group[one] = to
        if two >= 0:
            group[two] = a
        seconds = sum_groups(rates, order, count, size, group, state)
    return seconds.max()


@nb.njit(**ENTERED)
def form_round(rates, order, most, cap, num_ranks, halvings, moves):  # type: ignore[no-untyped-def]
    """Forms a round under `most` seconds, or, where that is infinite, under the least at which it holds all samples.
    Returns (size, group, seconds); no group where ranks are left that none can have."""
    size, group = np.zeros(num_ranks, np.int64), np.full(len(rates.length), -1, np.int64)
    state = np.zeros((3, num_ranks))
    if most == np.inf:
        low, high = 0.0, 0.0
        for s in order:
            high += seconds_alone(rates, s, 0)
        count, waiting = _fill(rates, order, high, cap, num_ranks, size, group, state)
        if waiting == 0:
            for _ in range(halvings):
                middle = (low + high) / 2
                count, waiting = _fill(rates, order, middle, cap, num_ranks, size, group, state)
                if waiting == 0 and sum_groups(rates, order, count, size, group, state).max() <= middle:
                    high = middle
                else:
                    low = middle
        most = high
    count, waiting = _fill(rates, order, most, cap, num_ranks, size, group, state)
    count = _widen(rates, order, count, size, group, state, cap, num_ranks)
    if count < 0:
        return size[:0], np.full(len(rates.length), -1, np.int64), np.inf
    seconds = _even(rates, order, count, size, group, state, cap, moves)
    return size[:count], group, seconds


def least_round(rates: RingRates, order: Ints, most: float, cap: float, num_ranks: int) -> Round:
    """Forms one round of the samples `order`, longest first, of which those wait that find no place.

    most: seconds of a layer that groups end by; infinite: the least at which all samples have a place, if any. cap:
    tokens of a rank at most.
    """
    size, group, seconds = form_round(rates, order, most, cap, num_ranks, HALVINGS, MOVES)
    return Round(size, group, float(seconds))
