"""What bins have: work, tokens, keys, an estimate of seconds; and whole sequences moved from one to another.

Compiled for zbench.systems.nodewise.cuts; knows nothing of how sequences came to be where they are. Pure: no torch.
"""

import numba as nb
import numpy as np

from zbench.systems.nodewise.rows import needs, parts, row_squares, row_tokens, whole

EVEN = 0.003  # of the mean: bins that differ by less are left as they are (a choice)


@nb.njit(cache=True)
def loads(tokens, attention, where, rows, token, square, row, repack, bins, wide):  # type: ignore[no-untyped-def]
    """Seconds of every bin's GPUs together."""
    load = np.zeros(bins)
    for s in range(len(where)):
        if where[s] >= 0:
            load[where[s]] += attention[s] + token * tokens[s]
    ends = parts(rows, wide)
    for i in range(len(ends) - 1):
        work, count = 0.0, ends[i + 1] - ends[i]
        for r in range(ends[i], ends[i + 1]):
            work += square * row_squares(rows[r]) + (row + repack) * row_tokens(rows[r])
            load[rows[r, 1]] += token * row_tokens(rows[r])
        for r in range(ends[i], ends[i + 1]):
            load[rows[r, 1]] += work / count
    return load


@nb.njit(cache=True)
def held(tokens, where, rows, bins, wide, alone):  # type: ignore[no-untyped-def]
    """(tokens of every bin, those whose keys it sends or receives, whichever is more, or `alone` times as many as go
    from one bin to one other)."""
    held, sent, came = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    pair = np.zeros((bins, bins if alone > 1 else 0))  # from, to
    for s in range(len(tokens)):
        if where[s] >= 0:
            held[where[s]] += tokens[s]
    ends = parts(rows, wide)
    for i in range(len(ends) - 1):
        mine, count = rows[ends[i] : ends[i + 1]], ends[i + 1] - ends[i]
        one = whole(mine)
        for row in mine:
            held[row[1]] += row_tokens(row)
            came[row[1]] += 2 * row_tokens(row) * (count - 1) / count  # q and o as well: about twice as much as kv
        for j in range(len(ends) - 1):
            others = rows[ends[j] : ends[j + 1]]
            if i != j and others[0, 0] == one[0] and needs(one, whole(others)):
                for row in mine:
                    came[row[1]] += row_tokens(whole(others)) / count
                for row in others:
                    sent[row[1]] += row_tokens(whole(others)) / count
                for at in range(len(others) if alone > 1 else 0):  # GPUs send to the one in their place
                    pair[others[at, 1], mine[at, 1]] += row_tokens(whole(others)) / count
    keys = np.maximum(sent, came)
    for b in range(bins if alone > 1 else 0):
        keys[b] = max(keys[b], alone * pair[b].max(), alone * pair[:, b].max())
    return held, keys


@nb.njit(cache=True)
def estimate(tokens, where, rows, load, token, moved, alone, forward, ranks, wide):  # type: ignore[no-untyped-def]
    """(linear, busy, way: as of a Placement, [bins]; seconds of a layer; of its forward and its backward, [2]): of the
    slowest bin, in either direction linear modules, then attention or its keys. forward: its share in attention.
    """
    own, keys = held(tokens, where, rows, len(load), wide, alone)
    linear, way, seconds = own * token / ranks, keys * moved, 0.0
    busy, ends = load / ranks - linear, parts(rows, wide)
    for i in range(len(ends) - 1):
        bins = rows[ends[i] : ends[i + 1], 1]
        linear[bins] = linear[bins].max()  # the first exchange waits for all of them
    passes = np.zeros(2)
    for b in range(len(load)):
        ahead, behind = max(forward * busy[b], way[b]), max((1 - forward) * busy[b], way[b])
        seconds = max(seconds, linear[b] + (ahead + behind))
        passes[0], passes[1] = max(passes[0], linear[b] / 3 + ahead), max(passes[1], 2 * linear[b] / 3 + behind)
    return linear, busy, way, seconds, passes


@nb.njit(cache=True)
def settle(tokens, work, where, load, held, capacity):  # type: ignore[no-untyped-def]
    """Moves whole sequences, or has two change places, from the bin with most work to that with which both have least.

    where, load and held go on. work: of every sequence. Returns whether anything was moved.
    """
    bins, done = len(load), False
    for _ in range(4 * bins):
        high = load.argmax()
        if load[high] <= (1 + EVEN) * load.mean():
            break
        least, give, take, to = load[high] * (1 - EVEN), -1, -1, -1
        for i in range(len(where)):
            if where[i] != high:
                continue
            for j in range(-bins, len(where)):
                low = j + bins if j < 0 else where[j]
                if low < 0 or low == high or load[low] > least:
                    continue
                moved, size = work[i] - (work[j] if j >= 0 else 0.0), tokens[i] - (tokens[j] if j >= 0 else 0)
                most = max(load[high] - moved, load[low] + moved)
                if most < least and held[low] + size <= capacity and held[high] - size <= capacity:
                    least, give, take, to = most, i, j, low
        if give < 0:
            break
        for s, old, new in ((give, high, to), (take, to, high)):
            if s >= 0:
                where[s] = new
                load[old] -= work[s]
                load[new] += work[s]
                held[old] -= tokens[s]
                held[new] += tokens[s]
        done = True
    return done
