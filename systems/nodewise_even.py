"""Moves the cuts of sequences so that their nodes take equally long, by what a played plan took. Pure: no torch.

What estimates leave out (whole tiles, joins, starts) makes nodes differ by some per cent, and cuts can be anywhere.
Tokens and attention of a row are two numbers, and so are the sizes of its two pieces, one from either end of what is
left of the sequence: both can be had, as long as neither piece would be less than nothing.
"""

from dataclasses import replace

import numpy as np

from systems import nodewise_fill as fill
from systems.nodewise_cuts import Bins, Placement
from systems.nodewise_fill import aligned
from systems.nodewise_work import Rates
from zbench.cost import Floats
from zbench.plan import Ints

LEAST = 0.02  # of a sequence's work: a row that would have less is left as it is


def evened(
    placed: Placement, lengths: Ints, rates: Rates, bins: Bins, busy: Floats, alike: bool = False
) -> Placement | None:
    """The placement with the rows of every cut sequence moved; None where none can be, where memory would not do, or
    where nodes share heads.

    busy: seconds of a GPU of every bin, [num_bins]. Bins of a sequence get the same sum. alike: rows keep the
    proportion of their two pieces; otherwise bins get half of what would make their tokens equal, too, as ranks meet
    between forward and backward, which may cut a sequence in quite another way.
    """
    rows, each = placed.rows, rates.token + bins.repack + rates.row
    if not len(rows) or placed.rule.wide > 1:
        return None
    load, linear, moved = bins.ranks * busy, bins.ranks * placed.linear, []
    for seq in np.unique(rows[:, 0]):
        mine = rows[rows[:, 0] == seq]
        bin, tokens, squares = mine[:, 1], _tokens(mine), _squares(mine)
        work = each * tokens + rates.square * squares
        wanted = work + load[bin].mean() - load[bin]
        held = tokens + 0.5 * (linear[bin].mean() - linear[bin]) / rates.token
        if wanted.min() > LEAST * work.sum():
            new = _recut(mine, wanted, None if alike else np.maximum(held, 0.0), each, rates.square)
            mine = mine if new is None else new
        load[bin] += each * (_tokens(mine) - tokens) + rates.square * (_squares(mine) - squares)
        linear[bin] += rates.token * (_tokens(mine) - tokens)
        moved.append(mine)
    found = np.concatenate(moved)
    most = max(rates.token * bins.capacity, bins.ranks * placed.linear.max())
    if np.array_equal(found, rows) or linear.max() > most:
        return None
    attention = (rates.row + bins.repack) * (_tokens(found) - _tokens(rows))
    attention += rates.square * (_squares(found) - _squares(rows))
    more = np.bincount(rows[:, 1], attention, bins.count) / bins.ranks
    _, sent = fill.held(lengths, placed.bin, found, bins.count, placed.rule.wide)
    return replace(placed, rows=found, linear=linear / bins.ranks, busy=placed.busy + more, way=sent * bins.moved)


def _tokens(rows: Ints) -> Ints:
    return np.asarray(rows[:, 3] - rows[:, 2] + rows[:, 5] - rows[:, 4])


def _squares(rows: Ints) -> Ints:
    """What the attention of rows is in proportion to."""
    return np.asarray(rows[:, 3] ** 2 - rows[:, 2] ** 2 + rows[:, 5] ** 2 - rows[:, 4] ** 2)


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
