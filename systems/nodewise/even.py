"""Moves cuts, and whole sequences, so that nodes take equally long, by what a played plan took. Pure: no torch.

What estimates leave out (whole tiles, joins, starts) makes nodes differ by some per cent, and cuts can be anywhere.
Tokens and attention of a row are two numbers, and so are the sizes of its two pieces, one from either end of what is
left of the sequence: both can be had, as long as neither piece would be less than nothing.
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints
from zbench.systems.nodewise.cuts import Bins, Placement, groups, placement
from zbench.systems.nodewise.fill import aligned
from zbench.systems.nodewise.load import settle
from zbench.systems.nodewise.rows import divided, row_squares, row_tokens, whole
from zbench.systems.nodewise.work import Rates

LEAST = 0.02  # of a sequence's work: a row that would have less is left as it is


def evened(
    placed: Placement, lengths: Ints, attention: Floats, rates: Rates, bins: Bins, busy: Floats, alike: bool, swap: bool
) -> Placement | None:
    """The placement with the rows of every cut sequence moved and then, with `swap`, whole sequences; None where
    nothing is, or where memory would not do.

    busy: seconds of a GPU of every bin, [num_bins]. Bins of a sequence get the same sum. alike: rows keep the
    proportion of their two pieces; otherwise bins get half of what would make their tokens equal, too, as ranks meet
    between forward and backward, which may cut a sequence in quite another way.
    """
    rows, bin = placed.rows.copy(), placed.bin.copy()
    held = bins.tokens(lengths, bin, rows, placed.rule.wide)
    load, most = bins.ranks * busy, max(bins.capacity, held.max())
    parts = groups(rows, placed.rule.wide)
    for seq in np.unique(rows[:, 0]):
        mine = [part for part in parts if rows[part[0], 0] == seq]
        rows[np.concatenate(mine)] = _moved([rows[part] for part in mine], load, held, rates, bins, alike)
    if swap:
        settle(lengths, attention + rates.token * lengths, bin, load, held, bins.capacity)
    found = placement(placed.rule, bin, rows, lengths, attention, rates, bins)
    if bins.tokens(lengths, bin, found.rows, placed.rule.wide).max() > most:
        return None
    return None if np.array_equal(found.rows, placed.rows) and np.array_equal(bin, placed.bin) else found


def _moved(parts: list[Ints], load: Floats, held: Floats, rates: Rates, bins: Bins, alike: bool) -> Ints:
    """One sequence's rows, in parts that share heads, moved for bins with `load` and `held` tokens, which go on."""
    each, nodes = rates.token + bins.repack + rates.row, np.stack([part[:, 1] for part in parts])
    old = np.array([whole(part) for part in parts])
    work, tokens = each * _tokens(old) + rates.square * _squares(old), held[nodes].sum(axis=1)
    wanted = work + load[nodes].sum(axis=1).mean() - load[nodes].sum(axis=1)
    new = None
    if wanted.min() > LEAST * work.sum():
        kept = np.maximum(_tokens(old) + 0.5 * (tokens.mean() - tokens), 0.0)
        new = _recut(old, wanted, None if alike else kept, each, rates.square)
    if new is None:
        return np.concatenate(parts)
    count, more = nodes.shape[1], _tokens(new) - _tokens(old)
    load[nodes] += (each * more + rates.square * (_squares(new) - _squares(old)))[:, None] / count
    held[nodes] += more[:, None] / count
    return np.concatenate([divided(row, np.ones(count)) for row in new])


def _tokens(rows: Ints) -> Ints:
    return np.array([row_tokens(row) for row in rows])


def _squares(rows: Ints) -> Ints:
    return np.array([row_squares(row) for row in rows])


def _recut(rows: Ints, wanted: Floats, held: Floats | None, each: float, square: float) -> Ints | None:
    """The rows of one sequence with `wanted` seconds and, where that can be, `held` tokens each; the last has the rest.
    Without `held`, with pieces in the proportion that they have.

    None where a row would be left without a tile.
    """
    left, right = int(rows[:, 2].min()), int(rows[:, [3, 5]].max())  # the first row may be at the end only
    out = []
    begin = left  # of what was left of the sequence
    for i, (row, seconds) in enumerate(zip(rows[:-1].tolist(), wanted[:-1].tolist(), strict=True)):
        if held is None:
            own = row[3] - row[2] if row[2] == begin else 0
            begin += own
            front, behind = _alike(own, row[3] - row[2] + row[5] - row[4] - own, left, right, seconds, each, square)
        else:
            front, behind = _pieces(left, right, seconds, float(held[i]), each, square)
        to = min(left + aligned(front), right)
        down = max(right - aligned(behind), to)
        pieces = [piece for piece in ((left, to), (down, right)) if piece[1] > piece[0]]
        if not pieces:
            return None
        out.append((row[0], row[1], *pieces[0], *(pieces[1] if len(pieces) > 1 else (0, 0))))
        left, right = to, down
    if right <= left:
        return None
    return np.array([*out, (rows[-1, 0], rows[-1, 1], left, right, 0, 0)], np.int64)


def _alike(
    front: int, behind: int, left: int, right: int, seconds: float, each: float, square: float
) -> tuple[float, float]:
    """Tokens from either end that have `seconds` and the proportion of `front` and `behind`: as many times so many."""
    twice = square * (front**2 - behind**2)
    once = each * (front + behind) + 2 * square * (left * front + right * behind)
    times = 2 * seconds / (once + float(np.sqrt(max(once**2 + 4 * twice * seconds, 0.0))))
    return times * front, times * behind


def _pieces(left: int, right: int, seconds: float, tokens: float, each: float, square: float) -> tuple[float, float]:
    """Tokens from the left end and from the right one, which have `seconds` and, if neither is below 0, `tokens`.

    f from the left and g from the right see f^2 + 2 f left and 2 g right - g^2 pairs twice; with f + g given the
    squares cancel. Otherwise one end has all of it.
    """
    pairs = max(seconds - each * tokens, 0.0) / square
    front = (
        (pairs - 2 * right * tokens + tokens**2) / (2 * (left - right + tokens)) if tokens < right - left else tokens
    )
    if 0 <= front <= tokens:
        return front, tokens - front
    if front > tokens:
        half = square * left + each / 2
        return seconds / (half + float(np.sqrt(half * half + square * seconds))), 0.0
    half = square * right + each / 2
    return 0.0, (half - float(np.sqrt(max(half * half - square * seconds, 0.0)))) / square
