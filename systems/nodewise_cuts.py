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
    """How cut sequences are placed.

    cut: how many of the longest sequences are cut. first: before the others are placed, so that they get bins of
    their own; otherwise they fill what the others leave. wrap: each goes on where the one before ended; otherwise it
    starts in the bins with the most room. back: bins with less room than this, of the roomiest of the sequence, are
    front bins. squeeze: room that is not worth it, in even shares of a bin. even: the same share in all bins.
    wide: of a sequence in at least twice as many bins so many share heads each: fewer keys cross.
    """

    cut: int
    first: bool = False
    wrap: bool = False
    back: float = 0.0
    squeeze: float = 0.03
    even: bool = False
    wide: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """bin: int64 [num_sequences], -1 for cut ones. rows: int64 [n, 6], of these: sequence, bin, and two pieces'
    starts and stops; the second may be empty. linear, busy, way: float64 [num_bins], seconds of a GPU's linear modules
    and attention, and of the keys on the bin's links.
    """

    rule: Rule
    bin: Ints
    rows: Ints
    linear: Floats
    busy: Floats
    way: Floats

    def seconds(self, forward: float, more: Floats | float = 0.0) -> float:
        """Estimate for a layer: in either direction of the slowest bin linear modules, then attention or its keys.

        forward: its share in attention. more: seconds that are added to attention, [num_bins].
        """
        busy = self.busy + more
        both = np.maximum(forward * busy, self.way) + np.maximum((1 - forward) * busy, self.way)
        return float((self.linear + both).max())


@dataclass(frozen=True, slots=True)
class Bins:
    """count; capacity: tokens of one; ranks: GPUs of one.

    moved: seconds in which the kv of a token gets through a bin's links. repack: of a cut sequence's token.
    """

    count: int
    capacity: int
    ranks: int
    moved: float
    repack: float


def placements(lengths: Ints, attention: Floats, rates: Rates, bins: Bins, rules: list[Rule]) -> list[Placement]:
    """By every rule under which sequences fit; distinct ones, the best estimate first."""
    order = np.argsort(-(attention + rates.token * lengths), kind="stable")
    tokens, work = lengths[order], attention[order]
    found: dict[float, Placement] = {}
    for rule in rules:
        where, rows, load, fits = _place(
            tokens, work, rates.token, rates.square, rates.row, bins.repack, bins.count, bins.capacity,
            rule.cut, rule.first, rule.wrap, rule.back, rule.squeeze, rule.even, rule.wide,
        )  # fmt: skip
        if not fits:
            continue
        held, moved = _held(tokens, where, rows, bins.count, rule.wide)
        at = np.empty(len(lengths), np.int64)
        at[order] = where
        rows[:, 0] = order[rows[:, 0]]
        linear = held * rates.token / bins.ranks
        busy = load / bins.ranks - linear
        if rule.wide > 1:
            for group in groups(rows, rule.wide):
                linear[rows[group, 1]] = linear[rows[group, 1]].max()  # the first exchange waits for all of them
        one = Placement(rule, at, rows, linear, busy, moved * bins.moved)
        found.setdefault(one.seconds(rates.forward), one)
    return [found[seconds] for seconds in sorted(found)]


def groups(rows: Ints, wide: int) -> list[Ints]:
    """Indices of the rows that share heads, for every group of a sequence that has any: `wide` rows, else one."""
    found = []
    for seq in np.unique(rows[:, 0]):
        mine = np.flatnonzero(rows[:, 0] == seq)
        found += list(mine.reshape(-1, wide if len(mine) >= 2 * wide else 1))
    return found


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
    tokens, attention, token, square, row, repack, bins, capacity, cut, first, wrap, back, squeeze, even, wide
):
    """Sequences sorted, most work first. Returns (bin, rows, load, whether all fit)."""
    count = len(tokens)
    where, load, held = np.full(count, -1, np.int64), np.zeros(bins), np.zeros(bins, np.int64)
    rows = np.zeros((cut * bins, 6), np.int64)
    total = 0.0
    for s in range(count):
        total += attention[s] + (token + (repack if s < cut else 0.0)) * tokens[s]
    mean, used = total / bins, 0
    if first:
        used = _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, even, wide, mean, where, load, held, rows)
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
        used = _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, even, wide, mean, where, load, held, rows)
    return where, rows[:used], load, True


@nb.njit(cache=True)
def _cuts(tokens, token, square, row, repack, cut, wrap, back, squeeze, even, wide, mean, where, load, held, rows):  # type: ignore[no-untyped-def]
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
        if even:
            chosen[:], share[:], n = np.arange(bins), work / bins, bins
        if n == 0:
            chosen[0], share[0], n = turn[0], work, 1
        together = wide if n >= 2 * wide else 1
        n -= n % together  # the last have the least
        share[:n] += (work - share[:n].sum()) / n
        for i in range(0, n, together):
            share[i : i + together] = share[i : i + together].mean()
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
def _held(tokens, where, rows, bins, wide):  # type: ignore[no-untyped-def]
    """(tokens of every bin, those whose keys it sends or receives, whichever is more)."""
    held, sent, came = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    for s in range(len(tokens)):
        if where[s] >= 0:
            held[where[s]] += tokens[s]
    for i in range(len(rows)):
        own = rows[i, 3] - rows[i, 2] + rows[i, 5] - rows[i, 4]
        held[rows[i, 1]] += own
        begin, count = i, 0  # the sequence's rows
        while begin > 0 and rows[begin - 1, 0] == rows[i, 0]:
            begin -= 1
        while begin + count < len(rows) and rows[begin + count, 0] == rows[i, 0]:
            count += 1
        together = wide if count >= 2 * wide else 1
        for j in range(begin, begin + count):
            size = rows[j, 3] - rows[j, 2] + rows[j, 5] - rows[j, 4]
            if i == j or not _needs(rows[i], rows[j]):
                continue
            if (i - begin) // together == (j - begin) // together:  # q and o as well: about twice as much as kv
                came[rows[i, 1]] += 2 * own / together
            else:
                came[rows[i, 1]] += size / together
                sent[rows[j, 1]] += size / together
    return held, np.maximum(sent, came)
