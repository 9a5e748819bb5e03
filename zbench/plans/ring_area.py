"""Counts the work of all pairs of lists of a ring at once.

Where every one of n lists attends to every other, walking n x n pairs of lists piece by piece (zbench.plans.walk) is
most of what a plan costs. In a ring the walk can be spared: every sequence visits the lists in ascending and then in
descending order (the zigzag), so that what list i sees of list j in a sequence depends only on the sizes of their
chunks and on which of the two comes first. Sizes are alike along runs of lists, so that a sequence's contributions are
constant over rectangles of pairs, and a row of pairs is the row before with the rectangles added and taken away that
begin and end there. The numbers are those of the walk (tests/plans/test_ring_area.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.area import COLUMNS, HALF, STRIP, TILE
from zbench.plans.plan import Ints

LEAST = 16  # lists of a ring below which walking takes less time
CELLS = 1 << 18  # pairs that are made at a time
# Columns as in zbench.plans.area.Work.
AREA, TILES, QUERIES, KEYS, SEGMENTS, LONGEST, ROWS, TRIANGLES, STRIPS, HALVES = range(COLUMNS)


@dataclass(frozen=True)
class Rectangles:
    """Rectangles of a ring's pairs: pairs (i, j) of its lists to which one sequence contributes the same.

    table: int64 [num, 7]: rows i0:i1, columns j0:j1, queries m, keys n seen by all of them, and whether it is of the
        pairs with j < i (0) or j > i (1). own: int64 [num_lists, COLUMNS], the work of every list with itself.
    """

    table: Ints
    own: Ints

    def rows(self) -> Iterator[tuple[int, Ints]]:
        """Yields all rows, some at a time: the first of them, and their pairs' work, int64 [rows x num_lists,
        COLUMNS]."""
        count = len(self.own)
        starts, ends = (np.argsort(self.table[:, column], kind="stable") for column in (0, 1))
        sums = np.zeros((2, count + 1, COLUMNS), np.int64)
        place = np.zeros(2, np.int64)
        long = self.table[self.table[:, 5] > TILE]
        step = max(CELLS // count, 1)
        for begin in range(0, count, step):
            end = min(begin + step, count)
            out = np.empty(((end - begin) * count, COLUMNS), np.int64)
            _rows(self.table, starts, ends, place, sums, self.own, begin, out)
            _longest(long, begin, end, count, out)
            yield begin, out


def rectangles(members: Ints, lists: tuple[Ints, Ints], seq: Ints, sizes: Ints, causal: bool) -> Rectangles | None:
    """Returns the rectangles of all pairs of the lists `members`, or None where the lists are no ring or walking costs
    less.

    lists: offsets and, in (sequence, start) order, pieces of every list. seq, sizes: of every piece.
    """
    piece, owner = _visits(members, *lists, len(seq))
    if not len(piece):
        return None
    own = np.zeros((len(members), COLUMNS), np.int64)
    nothing = np.empty((0, 7), np.int64)
    count = _cut(piece, owner, seq, sizes, causal, own, nothing, False)
    if count < 0 or count > len(piece) + len(members) ** 2:
        return None
    table = np.empty((count, 7), np.int64)
    own[:] = 0
    _cut(piece, owner, seq, sizes, causal, own, table, True)
    return Rectangles(table, own)


@nb.njit(**ENTERED)
def _visits(members, offsets, items, num_pieces):  # type: ignore[no-untyped-def]
    """Returns the pieces of the lists in order, and the place in `members` of the list each is in; nothing if one is in
    two."""
    count = 0
    for member in members:
        count += offsets[member + 1] - offsets[member]
    place = np.full(num_pieces, -1, np.int32) if 8 * count > num_pieces else np.empty(0, np.int32)
    piece, owner = np.empty(count, np.int64), np.empty(count, np.int32)
    fill = 0
    for at in range(len(members)):
        for index in range(offsets[members[at]], offsets[members[at] + 1]):
            if len(place):
                if place[items[index]] >= 0:
                    return piece[:0], owner[:0]
                place[items[index]] = at
            else:
                piece[fill], owner[fill] = items[index], at
                fill += 1
    if len(place):
        for index in range(num_pieces):
            if place[index] >= 0:
                piece[fill], owner[fill] = index, place[index]
                fill += 1
    else:
        order = np.argsort(piece)
        piece, owner = piece[order], owner[order]
        for at in range(1, count):
            if piece[at] == piece[at - 1]:
                return piece[:0], owner[:0]
    return piece, owner


@nb.njit(**ENTERED)
def _cut(piece, owner, seq, sizes, causal, own, table, fill):  # type: ignore[no-untyped-def]
    """Cuts every sequence's pairs into rectangles; returns how many, or -1 if one visits the lists in another order.

    own: gets the work of every list with itself. table: gets the rectangles, if `fill`.
    """
    ring = len(own)
    up, down = np.zeros(ring, np.int64), np.zeros(ring, np.int64)  # a sequence's chunks on its way up and down
    up_runs = np.empty((ring, 3), np.int64)
    down_runs, both_runs = np.empty_like(up_runs), np.empty_like(up_runs)
    count, at = 0, 0
    while at < len(piece):
        s, first, last, rising = seq[piece[at]], owner[at], owner[at], True
        low, high = first, first
        begin = at
        while at < len(piece) and seq[piece[at]] == s:
            here = owner[at]
            if at > begin and here != last:
                if rising and here < last:
                    rising = False
                elif not rising and here > last:
                    return -1
            if rising:
                up[here] += sizes[piece[at]]
            else:
                down[here] += sizes[piece[at]]
            low, high, last = min(low, here), max(high, here), here
            at += 1
        for i in range(low, high + 1):
            _with_itself(own[i], up[i] + down[i], causal)
        ups = _runs(up, down, low, high + 1, 1, 0, up_runs)
        downs = _runs(up, down, low, high + 1, 0, 1, down_runs)
        boths = _runs(up, down, low, high + 1, 1, 1, both_runs)
        if causal:
            count = _pairs(both_runs[:boths], up_runs[:ups], 0, table, count, fill)
            count = _pairs(down_runs[:downs], both_runs[:boths], 1, table, count, fill)
        else:
            count = _pairs(both_runs[:boths], both_runs[:boths], 0, table, count, fill)
            count = _pairs(both_runs[:boths], both_runs[:boths], 1, table, count, fill)
        for i in range(low, high + 1):
            up[i], down[i] = 0, 0
    return count


@nb.njit(**INNER)
def _runs(up, down, low, high, with_up, with_down, out):  # type: ignore[no-untyped-def]
    """Finds stretches low:high of lists with the same size, (begin, end, size) without those of none; returns how
    many."""
    count, begin, size = 0, low, 0
    for i in range(low, high + 1):
        here = 0
        if i < high:
            here = with_up * up[i] + with_down * down[i]
        if here != size or i == high:
            if size > 0:
                out[count] = (begin, i, size)
                count += 1
            begin, size = i, here
    return count


@nb.njit(**INNER)
def _pairs(q_runs, kv_runs, above, table, count, fill):  # type: ignore[no-untyped-def]
    """Writes the rectangles that have pairs on their side of the diagonal; returns how many there are now."""
    for q in range(len(q_runs)):
        for kv in range(len(kv_runs)):
            i0, i1, m = q_runs[q]
            j0, j1, n = kv_runs[kv]
            if (j0 < i1 - 1) if above == 0 else (j1 - 1 > i0):
                if fill:
                    table[count] = (i0, i1, j0, j1, m, n, above)
                count += 1
    return count


@nb.njit(**INNER)
def _with_itself(row, m, causal):  # type: ignore[no-untyped-def]
    """Adds a list's m tokens of a sequence, which see each other."""
    if m == 0:
        return
    tiles = -(-m // TILE)
    row[AREA] += m * (m + 1) // 2 if causal else m * m
    row[TILES] += tiles * (tiles + 1) // 2 if causal else tiles * tiles
    row[QUERIES] += m
    row[KEYS] += m
    row[SEGMENTS] += 1
    row[LONGEST] = max(row[LONGEST], tiles)
    row[ROWS] += tiles
    row[TRIANGLES] += 1 if causal else 0
    empty = tiles * TILE - m
    row[STRIPS] += tiles * (empty // STRIP)
    row[HALVES] += tiles * (empty // HALF)


@nb.njit(**INNER)
def _add(sums, rectangle, sign):  # type: ignore[no-untyped-def]
    """Begins a rectangle (sign 1) or ends it (-1): its work is added from its first column on, and taken away after."""
    _, _, j0, j1, m, n, above = rectangle
    q_tiles, kv_tiles = -(-m // TILE), -(-n // TILE)
    empty = q_tiles * TILE - m
    for j, factor in ((j0, sign), (j1, -sign)):
        row = sums[above, j]
        row[AREA] += factor * m * n
        row[TILES] += factor * q_tiles * kv_tiles
        row[QUERIES] += factor * m
        row[KEYS] += factor * n
        row[SEGMENTS] += factor
        row[ROWS] += factor * q_tiles
        row[STRIPS] += factor * kv_tiles * (empty // STRIP)
        row[HALVES] += factor * kv_tiles * (empty // HALF)


@nb.njit(**ENTERED)
def _rows(table, starts, ends, place, sums, own, begin, out):  # type: ignore[no-untyped-def]
    """Fills `out` with the rows from `begin` on; place and sums go on from call to call.

    LONGEST becomes 1 wherever there is anything: `_longest` has the rest.
    """
    count = len(own)
    level = np.zeros(COLUMNS, np.int64)
    for i in range(begin, begin + len(out) // count):
        while place[0] < len(starts) and table[starts[place[0]], 0] == i:
            _add(sums, table[starts[place[0]]], 1)
            place[0] += 1
        while place[1] < len(ends) and table[ends[place[1]], 1] == i:
            _add(sums, table[ends[place[1]]], -1)
            place[1] += 1
        for above in range(2):
            level[:] = 0
            for j in range(count):
                for column in range(COLUMNS):
                    level[column] += sums[above, j, column]
                if (j < i) if above == 0 else (j > i):
                    cell = out[(i - begin) * count + j]
                    cell[:] = level
                    cell[LONGEST] = 1 if level[SEGMENTS] > 0 else 0
        out[(i - begin) * count + i] = own[i]


@nb.njit(**ENTERED)
def _longest(long, begin, end, count, out):  # type: ignore[no-untyped-def]
    """Writes the longest row of tiles, from the rectangles with keys in more than a tile."""
    for at in range(len(long)):
        i0, i1, j0, j1, _, n, above = long[at]
        tiles = -(-n // TILE)
        for i in range(max(i0, begin), min(i1, end)):
            first, last = (j0, min(j1, i)) if above == 0 else (max(j0, i + 1), j1)
            for j in range(first, last):
                cell = out[(i - begin) * count + j]
                cell[LONGEST] = max(cell[LONGEST], tiles)
