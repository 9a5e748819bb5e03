"""Which bins a sequence is in, and which of its tokens: whole sequences first, cut ones fill what is left.

Bins are the nodes of a cluster, or the GPUs of a node. A cut sequence is spread over just enough bins. Of these, **back**
bins share it zigzag, weighted by what each has left; **front** bins take a stretch from its beginning each before. Early
tokens see few keys: they are linear work above all, and fill bins that lack tokens for the price of keys that leave
them; they need hardly any from others. Keys come to few back bins, which do most of the attention. Pure: no torch.
"""

from dataclasses import dataclass

import numba as nb
import numpy as np
from numpy.typing import NDArray

from systems.nodewise_work import Rates
from zbench.area import TILE
from zbench.plan import Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """cut: how many of the longest sequences are cut. first: before the others are placed, so that they get bins of
    their own; otherwise they fill what the others leave. wrap: each goes on where the one before ended; otherwise it
    starts in the bins with the most room. back: bins with less room than this, of the roomiest of the sequence, are
    front bins. squeeze: room that is not worth it, in even shares of a bin.
    """

    cut: int
    first: bool = False
    wrap: bool = False
    back: float = 0.0
    squeeze: float = 0.03


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """rule, seconds: what made it, and its estimate for a layer. bin: int64 [num_sequences], -1 for cut ones.

    rows: int64 [n, 6], of cut sequences: sequence, bin, and two pieces' starts and stops, the second may be empty.
    """

    rule: Rule
    seconds: float
    bin: Ints
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """base: float64 [num_bins], seconds every bin already has. capacity: tokens of a bin; ranks: GPUs of one.

    moved: seconds in which the kv of a token gets through a bin's links. repack: of a cut sequence's token.
    pool: seconds of work that fills up bins in the end.
    """

    base: Floats
    capacity: int
    ranks: int
    moved: float
    repack: float
    pool: float = 0.0


def placements(lengths: Ints, attention: Floats, rates: Rates, bins: Bins, rules: list[Rule]) -> list[Placement]:
    """By every rule under which sequences fit; distinct ones, the best estimate first."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    tokens, work = lengths[order], attention[order]
    found: list[Placement] = []
    seen = set()
    for rule in rules:
        where, rows, load, fits = _place(
            tokens, work, rates.token, rates.square, rates.row, bins.repack, bins.pool, bins.base, bins.capacity,
            rule.cut, rule.first, rule.wrap, rule.back, rule.squeeze,
        )  # fmt: skip
        if not fits:
            continue
        seconds = _estimate(tokens, where, rows, load, rates.token, rates.forward, bins.pool, bins.moved, bins.ranks)
        if seconds in seen:
            continue
        seen.add(seconds)
        at = np.empty(len(lengths), np.int64)
        at[order] = where
        rows[:, 0] = order[rows[:, 0]]
        found.append(Placement(rule, float(seconds), at, rows))
    return sorted(found, key=lambda one: one.seconds)


def needs(row: Ints, other: Ints) -> bool:
    """Whether queries of `row` see keys of `other`, rows of one sequence."""
    found: bool = _needs(row, other)
    return found


@nb.njit(cache=True)
def _needs(row, other):  # type: ignore[no-untyped-def]
    last = max(row[3], row[5]) if row[5] > row[4] else row[3]
    return other[2] < last


@nb.njit(cache=True)
def _place(  # type: ignore[no-untyped-def]
    tokens, attention, token, square, row, repack, pool, base, capacity, cut, first, wrap, back, squeeze
):
    """Sequences sorted, most work first. Returns (bin, rows, load, whether all fit)."""
    count, bins = len(tokens), len(base)
    where, load, held = np.full(count, -1, np.int64), base.copy(), np.zeros(bins, np.int64)
    rows = np.zeros((cut * bins, 6), np.int64)
    total = pool + base.sum()
    for s in range(count):
        total += attention[s] + (token + (repack if s < cut else 0.0)) * tokens[s]
    mean, used = total / bins, 0
    if first:
        used = _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, mean, where, load, held, rows)
    for s in range(cut, count):
        best = -1
        for b in range(bins):
            if held[b] + tokens[s] <= capacity and (best < 0 or load[b] < load[best]):
                best = b
        if best < 0:
            return where, rows[:used], load, False
        where[s] = best
        load[best] += attention[s] + token * tokens[s]
        held[best] += tokens[s]
    if not first:
        used = _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, mean, where, load, held, rows)
    return where, rows[:used], load, True


@nb.njit(cache=True)
def _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, mean, where, load, held, rows):  # type: ignore[no-untyped-def]
    """Cuts the first `cut` sequences over bins with room up to `mean`; returns the number of rows."""
    bins, used = len(load), 0
    turn = np.argsort(load, kind="mergesort")
    chosen, share = np.empty(bins, np.int64), np.empty(bins)
    for s in range(cut):
        if not wrap:
            turn = np.argsort(load, kind="mergesort")
        work = (token + repack + row) * tokens[s] + square * tokens[s] * tokens[s]
        left, n = work, 0
        for b in turn:
            take = min(mean - load[b], left)
            if take > squeeze * mean:
                chosen[n], share[n] = b, take
                n += 1
            left -= max(take, 0.0)
            if left <= 1e-9 * work:
                break
        if n == 0:
            chosen[0], share[0], n = turn[0], work, 1
        share[:n] += (work - share[:n].sum()) / n
        added = _cut(s, tokens[s], token + repack, square, row, chosen[:n], share[:n], back, rows[used:])
        for r in range(used, used + added):
            for at in (2, 4):
                size = rows[r, at + 1] - rows[r, at]
                held[rows[r, 1]] += size
                load[rows[r, 1]] += (token + repack + row) * size
                load[rows[r, 1]] += square * (rows[r, at + 1] ** 2 - rows[r, at] ** 2)
        if added == 1:
            where[s] = rows[used, 1]
        else:
            used += added
    return used


@nb.njit(cache=True)
def _aligned(tokens):  # type: ignore[no-untyped-def]
    """A multiple of the kernel's tile: pieces that begin and end on one waste nothing."""
    return int(round(tokens / TILE)) * TILE


@nb.njit(cache=True)
def _cut(s, length, token, square, row, chosen, share, back, rows):  # type: ignore[no-untyped-def]
    """Writes a row for each bin that gets tokens; returns how many.

    A stretch of y tokens from x takes square (y^2 + 2 x y) + (row + token) y. What is behind the stretches is cut in
    nested pairs of chunks, one a bin: the attention and the tokens of a pair are in proportion to its share.
    """
    largest = share.argmax()
    least, at, n = back * share[largest], 0, 0
    for i in range(len(share)):
        if i != largest and share[i] < least:
            half = square * at + (row + token) / 2
            stop = min(_aligned(at + share[i] / (half + np.sqrt(half * half + square * share[i]))), length)
            if stop > at:
                rows[n] = (s, chosen[i], at, stop, 0, 0)
                n += 1
            at = stop
    rest, total = 0.0, 0.0
    for i in range(len(share)):
        if i == largest or share[i] >= least:
            total += share[i]
    begin, end, left, right = at, length, at, length
    for i in range(len(share)):
        if i == largest or share[i] < least:
            continue
        rest += share[i]
        size = rest / total * (end - begin) / 2
        to = max(min(_aligned(begin + size), begin + (end - begin) // 2), left)
        down = min(max(_aligned(end - size), to), right)
        if to - left + right - down > 0:
            rows[n] = (s, chosen[i], left, to, down, right) if to > left else (s, chosen[i], down, right, 0, 0)
            n += 1
        left, right = to, down
    if right > left:
        rows[n] = (s, chosen[largest], left, right, 0, 0)
        n += 1
    return n


@nb.njit(cache=True)
def _estimate(tokens, where, rows, load, token, forward, pool, moved, ranks):  # type: ignore[no-untyped-def]
    """Seconds of a layer: in either direction of the slowest bin linear modules, then attention or its keys' way."""
    bins = len(load)
    held, sent, came = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    for s in range(len(tokens)):
        if where[s] >= 0:
            held[where[s]] += tokens[s]
    for i in range(len(rows)):
        held[rows[i, 1]] += rows[i, 3] - rows[i, 2] + rows[i, 5] - rows[i, 4]
        for j in range(len(rows)):
            if i != j and rows[i, 0] == rows[j, 0] and _needs(rows[i], rows[j]):
                size = rows[j, 3] - rows[j, 2] + rows[j, 5] - rows[j, 4]
                came[rows[i, 1]] += size
                sent[rows[j, 1]] += size
    worst, mean = 0.0, (load.sum() + pool) / bins
    for b in range(bins):
        work = (load[b] + max(mean - load[b], 0.0) * (1 if pool > 0 else 0)) / ranks
        linear = held[b] * token / ranks
        busy, way = work - linear, max(came[b], sent[b]) * moved
        worst = max(worst, linear + max(forward * busy, way) + max((1 - forward) * busy, way))
    return worst
