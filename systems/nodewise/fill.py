"""Fills bins with sequences, whole and cut: the compiled part of zbench.systems.nodewise.cuts. Pure: no torch."""

import numba as nb
import numpy as np

from zbench.plans.area import TILE
from zbench.systems.nodewise.rows import divided, level, row_squares, row_tokens

SQUEEZE = 0.03  # of an even share: room in a bin of a group that is not worth it (a choice)
OVER = 0.05  # of an even share: a sequence that would be so much too long for a bin of a group is cut over them


@nb.njit(cache=True)
def place(  # type: ignore[no-untyped-def]
    tokens, attention, token, square, row, repack, bins, capacity, cut, first, wrap, back, squeeze, even, wide, full
):
    """Sequences sorted, most work first. Returns (bin, rows, whether all fit).

    wide: so many bins next to each other are one when sequences are placed, and are told apart after that. full: bins
    are filled up to so many even shares.
    """
    given = token, square, row, repack
    load, held = np.zeros(bins // wide), np.zeros(bins // wide)
    where, rows, fits = _fill(
        tokens, attention, given, load, held, wide * capacity, cut, first, wrap, back, squeeze, even, full
    )
    if wide == 1 or not fits:
        return where, rows, fits
    return _told_apart(tokens, attention, given, where, rows, wide, capacity)


@nb.njit(cache=True)
def _fill(tokens, attention, given, load, held, capacity, cut, first, wrap, back, squeeze, even, full):  # type: ignore[no-untyped-def]
    """Fills bins that have `load` and hold `held` tokens, which go on; (bin, rows, whether all fit)."""
    token, repack = given[0], given[3]
    count, bins = len(tokens), len(load)
    where, rows = np.full(count, -1, np.int64), np.zeros((cut * bins, 6), np.int64)
    total = load.sum()
    for s in range(count):
        total += attention[s] + (token + (repack if s < cut else 0.0)) * tokens[s]
    mean, used = full * total / bins, 0
    if first:
        used = _cuts(tokens, given, cut, wrap, back, squeeze, even, full, mean, where, load, held, rows)
    for s in range(cut, count):
        best = -1
        for b in range(bins):
            if held[b] + tokens[s] <= capacity and (best < 0 or load[b] < load[best]):
                best = b
        if best < 0:
            return where, rows[:used], False
        where[s] = best
        load[best] += attention[s] + token * tokens[s]
        held[best] += tokens[s]
    if not first:
        used = _cuts(tokens, given, cut, wrap, back, squeeze, even, full, mean, where, load, held, rows)
    return where, rows[:used], full == 1.0 or held.max() <= capacity


@nb.njit(cache=True)
def _told_apart(tokens, attention, given, at, joint, wide, capacity):  # type: ignore[no-untyped-def]
    """From places in groups of `wide` bins to places in bins: (bin, rows, whether all fit).

    Bins of a group share evenly what is cut over groups. What else a group has is placed in its bins; what is longer
    than a bin has room for is cut over them.
    """
    token, square, row, repack = given
    groups = max(at.max() if len(at) else 0, joint[:, 1].max() if len(joint) else 0) + 1
    where = np.full(len(at), -1, np.int64)
    rows = np.zeros((len(joint) * wide + groups * wide * wide, 6), np.int64)
    used = len(joint) * wide
    for r in range(len(joint)):
        rows[r * wide : (r + 1) * wide] = divided(joint[r], np.ones(wide))
    for g in range(groups):
        mine, base, size = np.flatnonzero(at == g), 0.0, 0
        for r in range(len(joint)):
            if joint[r, 1] == g:
                size += row_tokens(joint[r])
                base += (square * row_squares(joint[r]) + (token + repack + row) * row_tokens(joint[r])) / wide
        mean, cut = base, 0
        for s in mine:
            mean += (attention[s] + token * tokens[s]) / wide
        while cut < len(mine) and attention[mine[cut]] + token * tokens[mine[cut]] > mean - base + OVER * mean:
            cut += 1
        load, held = np.full(wide, base), np.full(wide, size / wide)
        found, inner, fits = _fill(
            tokens[mine], attention[mine], given, load, held, capacity, cut, False, False, 0.0, SQUEEZE, False, 1.0
        )
        if not fits:
            return where, rows[:0], False
        for i in range(len(mine)):
            where[mine[i]] = found[i] + g * wide if found[i] >= 0 else -1
        for r in range(len(inner)):
            rows[used] = inner[r]
            rows[used, 0], rows[used, 1] = mine[inner[r, 0]], inner[r, 1] + g * wide
            used += 1
    return where, rows[:used], True


@nb.njit(cache=True)
def _cuts(tokens, given, cut, wrap, back, squeeze, even, full, mean, where, load, held, rows):  # type: ignore[no-untyped-def]
    """Cuts the first `cut` sequences over bins with room up to `mean`; returns the number of rows. Bins that are filled
    up to several even shares are filled alike: what a bin sends is least then."""
    token, square, row, repack = given
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
        if full > 1 and not even:
            share[:n] = np.maximum(level(load[chosen[:n]], work) - load[chosen[:n]], 0.0)
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
def aligned(tokens):  # type: ignore[no-untyped-def]
    """A multiple of the kernel's tile: pieces that begin and end on one waste nothing."""
    return int(np.round(tokens / TILE)) * TILE


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
            stop = min(aligned(at + share[i] / (half + np.sqrt(half * half + square * share[i]))), length)
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
        to = max(min(aligned(begin + size), begin + (end - begin) // 2), left)
        down = min(max(aligned(end - size), to), right)
        if to - left + right - down > 0:
            rows[n] = (s, chosen[i], left, to, down, right) if to > left else (s, chosen[i], down, right, 0, 0)
            n += 1
        left, right = to, down
    if right > left:
        rows[n] = (s, chosen[largest], left, right, 0, 0)
        n += 1
    return n
