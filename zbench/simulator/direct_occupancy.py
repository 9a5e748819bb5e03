"""Times ranks' attending and transferring, of a list played in plan order: compiled, for zbench.simulator.direct."""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.links import NIC

HERE, ACROSS = 0, 1 + NIC  # where an operation's data ends: an attend's; a transfer's, 1 + the class of its links


@nb.njit(**ENTERED)
def occupied(rows, ops, start, modules, queues, out):  # type: ignore[no-untyped-def]
    """Writes, rank by rank, the seconds of attending, transferring, transferring uncovered, and of that across nodes.

    rows: Direct.rows. ops: DirectRows. modules: zbench.simulator.estimate.layers.Modules. queues: for transfers, of a
    rank: one a direction of every class of links.
    """
    (offsets, index), src, where, busy = rows, ops.src, ops.where, ops.busy
    first, following, seconds = modules
    most = 0
    for rank in range(len(seconds)):
        most = max(most, offsets[rank + 1] - offsets[rank])
    attends, moves = np.empty((most + 2, 2)), np.empty((most, 3))  # from, to, whether across
    served, count = np.empty((queues, most), np.int32), np.zeros(queues, np.int64)  # a rank's transfers, by queue
    for rank in range(len(seconds)):
        attends[0] = first[rank], first[rank] + seconds[rank]
        num, count[:] = 1, 0
        for at in range(offsets[rank], offsets[rank + 1]):
            op = index[at]
            if where[op] == HERE:
                out[0, rank] += busy[op]
                attends[num] = start[op], start[op] + busy[op]
                num += 1
            else:
                queue = 2 * (where[op] - 1) + (1 if src[op] == rank else 0)
                served[queue, count[queue]] = op
                count[queue] += 1
        attends[num] = following[rank], following[rank] + seconds[rank]
        num += 1
        total = _merged(served, count, start, busy, where, moves)
        out[1, rank], out[2, rank] = _uncovered(moves[:total], attends[:num], False)
        _, out[3, rank] = _uncovered(moves[:total], attends[:num], True)


@nb.njit(**INNER)
def _merged(served, count, start, busy, where, moves):  # type: ignore[no-untyped-def]
    """Merges a rank's transfers by when they start (ties: plan order); each queue's are in that order already."""
    place, total = np.zeros(len(count), np.int64), count.sum()
    for at in range(total):
        best = -1
        for queue in range(len(count)):
            if place[queue] < count[queue]:
                op = served[queue, place[queue]]
                if best < 0:
                    best = queue
                else:
                    other = served[best, place[best]]
                    if start[op] < start[other] or (start[op] == start[other] and op < other):
                        best = queue
        op = served[best, place[best]]
        place[best] += 1
        moves[at] = start[op], start[op] + busy[op], 1.0 if where[op] == ACROSS else 0.0
    return total


@nb.njit(**INNER)
def _uncovered(moves, attends, across):  # type: ignore[no-untyped-def]
    """Returns (length of the union of transfers, of what of it no compute covers); across: only of those across nodes.

    attends: the rank's compute in time order, its linear modules first, the next layer's last.
    """
    moved, shown, left, right, place = 0.0, 0.0, 0.0, 0.0, 0  # left, right: the union's open interval
    for index in range(len(moves) + 1):
        if index < len(moves):
            if across and moves[index, 2] == 0.0:
                continue
            if moves[index, 0] <= right:
                right = max(right, moves[index, 1])
                continue
        covered, at = 0.0, place
        while at < len(attends):
            a, b = attends[at]
            if b <= left:
                place = at + 1
            elif a >= right:
                break
            else:
                covered += min(b, right) - max(a, left)
            at += 1
        moved += right - left
        shown += max(right - left - covered, 0.0)  # 0 may be rounded to less
        if index < len(moves):
            left, right = moves[index, 0], moves[index, 1]
    return moved, shown
