"""What a layer takes on a node: exchanges, attends and ways home, each kind in its order. Pure: no torch.

An estimate of what nodewise_lay lays. Exchanges go in rounds that take as long as the GPU with most to send or
receive; messages wait for each other and for the slowest GPU, attends for their messages and for each other.
"""

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from zbench.plans.plan import Ints

Floats = NDArray[np.float64]
FORWARD, BACKWARD = 0, 1
# How a group's heads are cut, as sums of: the first quarter of every GPU's by itself, the last quarter by itself.
WHOLE, HEAD, TAIL = 0, 1, 2
# Columns of Pace.ways: shares of linear modules and of attention; seconds of a call's start and of a join's; of a
# token's way to the heads and home (all heads, through one NVLink port), the same through all NICs of a node; of
# joining a query's and a key's results.
LINEAR, ATTENTION, START, JOIN, OUT, HOME, OUT_NIC, HOME_NIC, JOIN_Q, JOIN_KV = range(10)
# Columns of Work.row: tokens of rows of cut sequences; seconds of a GPU's attends of a row's own keys, of other rows'
# keys with starts and joins, of all starts of the first; of keys on NICs; the earliest that all these rows' nodes have
# them; the share of a row's tokens that are at home on other nodes; of the last call with another row's keys; a GPU's
# heads of a row.
TOKENS, OWN, OTHERS, STARTS, KEYS, READY, WIDE, LATE, HEADS = range(9)
ROW = 9  # columns


class Pace(NamedTuple):
    """ways: float64 [2, 10], forward and backward. least: seconds of a call at least. latency: of a message."""

    ways: Floats
    least: float
    latency: float


class Work(NamedTuple):
    """Of one node of P GPUs and G groups of sequences that share heads.

    linear: float64 [P], seconds of both directions. local: [2, P], of sequences that are whole on a GPU. row: [2, ROW].
    size, work: [G] tokens and [2, G] seconds, all heads; heads: int64 [G, P + 1], bounds of every GPU's. busiest: the
    share of the homes that the GPU with most of them has, in even shares.
    """

    linear: Floats
    local: Floats
    row: Floats
    size: Floats
    work: Floats
    heads: Ints
    busiest: float


@nb.njit(cache=True)
def bounds(cut):  # type: ignore[no-untyped-def]
    """Where a cut divides a GPU's heads."""
    if cut == HEAD:
        return np.array([0.0, 0.25, 1.0])
    if cut == TAIL:
        return np.array([0.0, 0.75, 1.0])
    if cut == HEAD + TAIL:
        return np.array([0.0, 0.25, 0.75, 1.0])
    return np.array([0.0, 1.0])


@nb.njit(cache=True)
def row_cut(chunks, direction):  # type: ignore[no-untyped-def]
    """Rows' cut in at most so many chunks; in the backward, where a call starts eight kernels, in two."""
    if chunks == 1:
        return WHOLE
    return HEAD + TAIL if chunks > 2 and direction == FORWARD else HEAD


@nb.njit(cache=True)
def row_bounds(cut, heads):  # type: ignore[no-untyped-def]
    """The same of whole heads, of which a GPU has so many of a row: chunks without any are left out."""
    heads = max(heads, 1.0)
    ends = np.floor(bounds(cut) * heads + 0.5) / heads
    ends[-1] = 1.0
    return np.unique(ends)


@nb.njit(cache=True)
def seconds(of, order, cuts, pace):  # type: ignore[no-untyped-def]
    """Seconds of a layer in both directions. order: int64 [G], of the groups in the forward. cuts: [2, G + 1], of every
    group's heads and of the rows'."""
    return _there(of, order, cuts[FORWARD], pace) + _back(of, order, cuts[BACKWARD], pace)


@nb.njit(cache=True)
def _there(of, order, cuts, pace):  # type: ignore[no-untyped-def]
    way, row = pace.ways[FORWARD], of.row[FORWARD]
    at = of.linear * way[LINEAR]
    begin = sent = at.max()
    _local(at, of.local[FORWARD], 0.0, pace)
    ends = row_bounds(cuts[-1], row[HEADS])
    across, wide = max(begin, row[READY]), row[WIDE] * row[TOKENS] * way[OUT_NIC]
    keys = across + max(ends[1] * row[TOKENS] * way[OUT], wide) + _keys(row, way)
    if row[TOKENS] > 0:
        for c in range(len(ends) - 1):
            part = ends[c + 1] - ends[c]
            sent += part * row[TOKENS] * way[OUT] * max(1.0, of.busiest)
            come = max(sent, across + ends[c + 1] * wide) if wide > 0 else sent
            _own(at, part, come, row, pace)
    home = _groups(at, sent, of, FORWARD, order, cuts, pace)
    if row[TOKENS] > 0:
        last = 1 - ends[-2]
        if row[OTHERS] > 0:
            at = np.maximum(at + row[OTHERS], keys + last * row[LATE])
        each = max(way[HOME] * max(1.0, of.busiest), row[WIDE] * way[HOME_NIC])
        home = max(home, at.max()) + last * row[TOKENS] * each
    return max(at.max(), home + pace.latency)


@nb.njit(cache=True)
def _back(of, order, cuts, pace):  # type: ignore[no-untyped-def]
    way, row = pace.ways[BACKWARD], of.row[BACKWARD]
    at = of.linear * way[LINEAR]
    sent = at.max()
    ends, keys = row_bounds(cuts[-1], row[HEADS]), 0.0
    if row[TOKENS] > 0:
        last, each = 1 - ends[-2], row[TOKENS] * max(way[OUT] * max(1.0, of.busiest), row[WIDE] * way[OUT_NIC])
        sent += last * each
        if row[OTHERS] > 0:
            at = np.maximum(at, sent + pace.latency) + row[OTHERS]
            keys = max(sent + pace.latency, row[READY]) + last * row[LATE] + _keys(row, way)
        sent += (1 - last) * each
    home = _groups(at, sent, of, BACKWARD, order[::-1], cuts, pace)
    if row[TOKENS] > 0:
        each = max(way[HOME] * max(1.0, of.busiest), row[WIDE] * way[HOME_NIC])
        for c in range(len(ends) - 2, -1, -1):
            part = ends[c + 1] - ends[c]
            _own(at, part, 0.0, row, pace)
            home = max(home, at.max(), keys if c == 0 or row[WIDE] > 0 else 0.0) + part * row[TOKENS] * each
    _local(at, of.local[BACKWARD], way[START], pace)
    return max(at.max(), home + pace.latency)


@nb.njit(cache=True)
def _keys(row, way):  # type: ignore[no-untyped-def]
    """Seconds of keys on NICs without what nodes that share heads exchange, which goes before and after them."""
    return max(row[KEYS] - row[WIDE] * row[TOKENS] * (way[OUT_NIC] + way[HOME_NIC]), 0.0)


@nb.njit(cache=True)
def _local(at, local, start, pace):  # type: ignore[no-untyped-def]
    for r in range(len(at)):
        at[r] += max(local[r] + start, pace.least) if local[r] > 0 else 0.0


@nb.njit(cache=True)
def _own(at, part, come, row, pace):  # type: ignore[no-untyped-def]
    """A chunk of the rows' attends of their own keys, which waits for its messages."""
    for r in range(len(at)):
        at[r] = max(at[r], come + pace.latency) + max(part * row[OWN] + row[STARTS], pace.least)


@nb.njit(cache=True)
def _groups(at, sent, of, direction, order, cuts, pace):  # type: ignore[no-untyped-def]
    """Moves every GPU's time on over the groups; returns when all is home. A way home begins when all is sent."""
    way, heads, backwards = pace.ways[direction], of.heads, direction == BACKWARD
    ranks, home = len(at), sent
    for g in order:
        home += of.size[g] * way[OUT] * _chunks(heads[g], bounds(cuts[g]), of.busiest).sum()
    for g in order:
        ends = bounds(cuts[g])
        shares = _chunks(heads[g], ends, of.busiest)
        for turn in range(len(shares)):
            c = len(shares) - 1 - turn if backwards else turn
            sent += of.size[g] * way[OUT] * shares[c]
            for r in range(ranks):
                part = _part(heads[g, r + 1] - heads[g, r], ends[c], ends[c + 1])
                if part > 0:
                    busy = of.work[direction, g] * part / heads[g, ranks] + way[START]
                    at[r] = max(at[r], sent + pace.latency) + max(busy, pace.least)
            home = max(home, at.max()) + of.size[g] * way[HOME] * shares[c]
    return home


@nb.njit(cache=True)
def _part(width, lo, hi):  # type: ignore[no-untyped-def]
    return np.floor(width * hi + 0.5) - np.floor(width * lo + 0.5)


@nb.njit(cache=True)
def _chunks(heads, ends, busiest):  # type: ignore[no-untyped-def]
    """Of every chunk, the heads of the GPU with most, in even shares of all heads; or what the busiest home sends."""
    shares, ranks = np.empty(len(ends) - 1), len(heads) - 1
    for c in range(len(shares)):
        most, total = 0.0, 0.0
        for r in range(ranks):
            part = _part(heads[r + 1] - heads[r], ends[c], ends[c + 1])
            most, total = max(most, part), total + part
        shares[c] = max(most * ranks, busiest * total) / heads[ranks]
    return shares
