"""Fills bins with sequences, whole and cut: the compiled part of systems.nodewise_cuts. Pure: no torch."""

import numba as nb
import numpy as np

from zbench.area import TILE


@nb.njit(cache=True)
def needs(row, other):  # type: ignore[no-untyped-def]
    last = max(row[3], row[5]) if row[5] > row[4] else row[3]
    return other[2] < last


@nb.njit(cache=True)
def place(  # type: ignore[no-untyped-def]
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
        used = _cuts(
            tokens, token, square, row, repack, cut, wrap, back, squeeze, even, wide, mean, where, load, held, rows
        )
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
        used = _cuts(
            tokens, token, square, row, repack, cut, wrap, back, squeeze, even, wide, mean, where, load, held, rows
        )
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


@nb.njit(cache=True)
def estimate(tokens, where, rows, load, token, moved, forward, ranks, wide):  # type: ignore[no-untyped-def]
    """(linear, busy, way: as of a Placement, [bins]; seconds of a layer): in either direction, of the slowest bin,
    linear modules, then attention or its keys. forward: its share in attention."""
    own, keys = held(tokens, where, rows, len(load), wide)
    linear, way, seconds = own * token / ranks, keys * moved, 0.0
    busy, begin = load / ranks - linear, 0
    while wide > 1 and begin < len(rows):
        stop = begin
        while stop < len(rows) and rows[stop, 0] == rows[begin, 0]:
            stop += 1
        together = _together(stop - begin, wide)
        for i in range(begin, stop, together):
            bins = rows[i : i + together, 1]
            linear[bins] = linear[bins].max()  # the first exchange waits for all of them
        begin = stop
    for b in range(len(load)):
        both = max(forward * busy[b], way[b]) + max((1 - forward) * busy[b], way[b])
        seconds = max(seconds, linear[b] + both)
    return linear, busy, way, seconds


@nb.njit(cache=True)
def _together(count, wide):  # type: ignore[no-untyped-def]
    """How many of a sequence's rows share heads."""
    return wide if count >= 2 * wide and count % wide == 0 else 1


@nb.njit(cache=True)
def held(tokens, where, rows, bins, wide):  # type: ignore[no-untyped-def]
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
        together = _together(count, wide)
        for j in range(begin, begin + count):
            size = rows[j, 3] - rows[j, 2] + rows[j, 5] - rows[j, 4]
            if i == j or not needs(rows[i], rows[j]):
                continue
            if (i - begin) // together == (j - begin) // together:  # q and o as well: about twice as much as kv
                came[rows[i, 1]] += 2 * own / together
            else:
                came[rows[i, 1]] += size / together
                sent[rows[j, 1]] += size / together
    return held, np.maximum(sent, came)
