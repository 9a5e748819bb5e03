"""Messages: transfers of a template that go together.

Transfers that follow one another in the plan with nothing else between them, of the same kind, queue and layer, go
together where they have the same ends: the parameters of a layer, which FSDP keeps flat and gathers at once, or do
with its row sums, which are one message of a plan. Of sends and moves the lists have to be the same, too, so that what
waits for different computes stays apart; a collective's slices of one tensor, which somebody made slices of, are
messages of their own. What waits for another transfer of the same run goes by itself.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.compiled import ENTERED, IN_PLACE
from zbench.step.operations import COMPUTE, DROP, MOVE, SEND
from zbench.step.proof.items import first_place

_MESSAGE, _TENSOR = 0, 1  # what is looked for in a run: operations of one message, or of one tensor and its members


def leaders(ops: Ints, producer: Ints, consumer: Ints) -> Ints:
    """Returns the first operation of every operation's message, int64 [operations]; itself where it is alone.

    ops: int64 [operations, columns]. producer, consumer: edges between operations.
    """
    found: Ints = _leaders(ops, producer, consumer)
    return found


@nb.njit(**ENTERED)
def _leaders(ops, producer, consumer):  # type: ignore[no-untyped-def]
    """Returns what `leaders` does."""
    count, size = len(ops), 16
    while size < 2 * count:
        size *= 2
    run, waits, times = np.zeros(count, np.int64), np.zeros(count, np.bool_), np.zeros(count, np.int64)
    found, last = np.arange(count), np.arange(count)
    tables = np.full((2, size), -1, np.int64)
    _followed(ops, (producer, consumer), (run, waits, times, last), tables, found)
    return found


@nb.njit(**IN_PLACE)
def _is_transfer(op):  # type: ignore[no-untyped-def]
    return op[0] != COMPUTE and op[0] != DROP


@nb.njit(**IN_PLACE)
def _alike(ops, run, times, what, one, other):  # type: ignore[no-untyped-def]
    """Returns whether two operations of runs are what is looked for, the same."""
    a, b = ops[one], ops[other]
    if run[one] != run[other] or a[3] != b[3]:
        return False
    if what == _TENSOR:
        return a[1] == b[1]
    if a[2] != b[2] or a[9] != b[9] or a[10] != b[10] or a[11] != b[11]:
        return False
    if a[0] == SEND or a[0] == MOVE:
        return a[4] == b[4] and a[5] == b[5]
    return times[one] == times[other]


@nb.njit(**IN_PLACE)
def _place(ops, run, times, what, op, table):  # type: ignore[no-untyped-def]
    """Returns where the first operation of a run that is the same is in a table, or the place that is free for it."""
    key = (run[op] * 1024 + ops[op, 3]) * 1024 + (ops[op, 1] if what == _TENSOR else ops[op, 2] + 1)
    at = first_place(key, len(table))
    while table[at] >= 0 and not _alike(ops, run, times, what, op, table[at]):
        at = (at + 1) & (len(table) - 1)
    return at


@nb.njit(**IN_PLACE)
def _followed(ops, edges, state, tables, found):  # type: ignore[no-untyped-def]
    """Writes the leaders. state: of operations, their run, whether they wait for one of it, how often the tensor went
    to or from the same members before in it, and of the first that did the last one so far."""
    run, waits, times, last = state
    for op in range(1, len(ops)):
        one, other = ops[op - 1], ops[op]
        same = _is_transfer(one) and _is_transfer(other) and one[0] == other[0] and one[8] == other[8]
        if one[0] != SEND and one[0] != MOVE:  # of collectives, one level of homes waits for another
            same = same and one[2] == other[2]
        run[op] = run[op - 1] + (not (same and one[7] == other[7]))
    for edge in range(len(edges[0])):
        if run[edges[0][edge]] == run[edges[1][edge]]:
            waits[edges[1][edge]] = True
    for op in range(len(ops)):
        if not _is_transfer(ops[op]):
            continue
        at = _place(ops, run, times, _TENSOR, op, tables[_TENSOR])
        first = tables[_TENSOR, at]
        if first < 0:
            tables[_TENSOR, at] = op
        else:
            times[op], last[first] = times[last[first]] + 1, op
        if waits[op]:
            continue
        at = _place(ops, run, times, _MESSAGE, op, tables[_MESSAGE])
        if tables[_MESSAGE, at] < 0:
            tables[_MESSAGE, at] = op
        found[op] = tables[_MESSAGE, at]
