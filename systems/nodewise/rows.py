"""Rows of cut sequences: what is in them, and which share heads. Compiled; pure: no torch.

A row is int64 [6]: sequence, bin, and two pieces' starts and stops; the second may be empty. Rows of a sequence are
next to each other. Where groups of `wide` bins next to each other share the heads of a sequence, so do as many rows.
"""

import numba as nb
import numpy as np


@nb.njit(cache=True)
def needs(row, other):  # type: ignore[no-untyped-def]
    """Whether queries of `row` see keys of `other`, rows of one sequence."""
    last = max(row[3], row[5]) if row[5] > row[4] else row[3]
    return other[2] < last


@nb.njit(cache=True)
def row_tokens(row):  # type: ignore[no-untyped-def]
    return row[3] - row[2] + row[5] - row[4]


@nb.njit(cache=True)
def row_squares(row):  # type: ignore[no-untyped-def]
    """What its attention is in proportion to."""
    return row[3] ** 2 - row[2] ** 2 + row[5] ** 2 - row[4] ** 2


@nb.njit(cache=True)
def parts(rows, wide):  # type: ignore[no-untyped-def]
    """Where rows begin that share heads: int64 [n + 1]. Of a sequence's rows `wide` do, or each is for itself."""
    found, used, begin = np.zeros(len(rows) + 1, np.int64), 0, 0
    while begin < len(rows):
        stop = begin
        while stop < len(rows) and rows[stop, 0] == rows[begin, 0]:
            stop += 1
        for at in range(begin, stop, _together(stop - begin, wide)):
            found[used] = at
            used += 1
        begin = stop
    found[used] = len(rows)
    return found[: used + 1]


@nb.njit(cache=True)
def _together(count, wide):  # type: ignore[no-untyped-def]
    """How many of a sequence's rows share heads."""
    return wide if count >= 2 * wide and count % wide == 0 else 1


@nb.njit(cache=True)
def divided(joint, share):  # type: ignore[no-untyped-def]
    """A row of a group of bins as a row of each, with tokens in proportion to `share`: int64 [wide, 6]."""
    wide, total, before = len(share), share.sum(), 0.0
    rows = np.empty((wide, 6), np.int64)
    for b in range(wide):
        rows[b, 0], rows[b, 1] = joint[0], joint[1] * wide + b
        after = 1.0 if b == wide - 1 else before + (share[b] / total if total > 0 else 1 / wide)
        for p in (2, 4):
            size = joint[p + 1] - joint[p]
            rows[b, p], rows[b, p + 1] = joint[p] + int(np.rint(before * size)), joint[p] + int(np.rint(after * size))
        before = after
    return rows


@nb.njit(cache=True)
def whole(rows):  # type: ignore[no-untyped-def]
    """Rows that share heads as the one of their group that was divided."""
    out, last = rows[0].copy(), len(rows) - 1
    out[1], out[3], out[5] = rows[0, 1] // len(rows), rows[last, 3], rows[last, 5]
    return out


@nb.njit(cache=True)
def levelled(tokens, where, rows, bins, wide):  # type: ignore[no-untyped-def]
    """Rows with the same work, bins that share heads being home of as many tokens as make theirs equal."""
    rows, held, pool = rows.copy(), np.zeros(bins), np.zeros(bins // wide)
    for s in range(len(where)):
        if where[s] >= 0:
            held[where[s]] += tokens[s]
    ends = parts(rows, wide)
    for i in range(len(ends) - 1):
        for r in range(ends[i], ends[i + 1]):
            if ends[i + 1] - ends[i] > 1:
                pool[rows[r, 1] // wide] += row_tokens(rows[r])
            else:
                held[rows[r, 1]] += row_tokens(rows[r])
    for i in range(len(ends) - 1):
        begin, stop = ends[i], ends[i + 1]
        if stop - begin > 1:
            g = rows[begin, 1] // wide
            here = held[g * wide : (g + 1) * wide]
            rows[begin:stop] = divided(whole(rows[begin:stop]), np.maximum(level(here, pool[g]) - here, 0.0))
    return rows


@nb.njit(cache=True)
def level(load, work):  # type: ignore[no-untyped-def]
    """Up to where `work` fills the least loaded."""
    order = np.sort(load)
    left = work
    for i in range(len(order)):
        above = order[i + 1] if i + 1 < len(order) else np.inf
        if left <= (above - order[i]) * (i + 1):
            return order[i] + left / (i + 1)
        left -= (above - order[i]) * (i + 1)
    return order[-1]
