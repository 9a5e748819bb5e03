"""Messages: transfers of a template that go together.

Transfers that follow one another in the plan with nothing else between them, of the same kind, queue and layer, go
together where they have the same ends: the parameters of a layer, which FSDP keeps flat and gathers at once, or do
with its row sums, which are one message of a plan. Of sends and moves the lists have to be the same, too, so that what
waits for different computes stays apart; a collective's slices of one tensor, which somebody made slices of, are
messages of their own. What waits for another transfer of the same run goes by itself.
"""

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.operations import COMPUTE, DROP, MOVE, SEND


def leaders(ops: Ints, producer: Ints, consumer: Ints) -> Ints:
    """Returns the first operation of every operation's message, int64 [operations]; itself where it is alone.

    ops: int64 [operations, columns]. producer, consumer: edges between operations.
    """
    if not len(ops):  # as of what gathers parameters ahead where none are gathered
        return np.zeros(0, np.int64)
    transfer = (ops[:, 0] != COMPUTE) & (ops[:, 0] != DROP)
    direct = np.isin(ops[:, 0], (SEND, MOVE))
    every = np.where(direct, 0, ops[:, 2] + 1)  # of collectives: one level of homes waits for another
    alike = ((every * 8 + ops[:, 0]) * 16 + ops[:, 8]) * 1024 + ops[:, 7] + 512
    alike = np.where(transfer, alike, -1 - np.arange(len(ops)))
    run = np.cumsum(np.concatenate([[0], (alike[1:] != alike[:-1]).astype(np.int64)]))
    waits = np.zeros(len(ops), bool)
    waits[consumer[run[producer] == run[consumer]]] = True
    ends = np.where(direct[:, None], ops[:, [2, 3, 4, 5, 11]], ops[:, [2, 3, 2, 2, 11]])
    key = np.column_stack([run, ends, ops[:, 9], ops[:, 10], np.where(direct, 0, _times(ops, run))])
    together = transfer & ~waits
    found = np.arange(len(ops), dtype=np.int64)
    which = np.flatnonzero(together)
    order = which[np.lexsort(key[which].T[::-1])]  # stable: the first of those that are alike is the first of all
    if len(order):
        fresh = np.concatenate([[True], (key[order[1:]] != key[order[:-1]]).any(axis=1)])
        found[order] = order[fresh][np.cumsum(fresh) - 1]
    return found


def _times(ops: Ints, run: Ints) -> Ints:
    """Returns how often a tensor went to or from the same members before in the same run."""
    order = np.lexsort((ops[:, 3], ops[:, 1], run))
    table = np.column_stack([run, ops[:, 1], ops[:, 3]])[order]
    fresh = np.concatenate([[True], (table[1:] != table[:-1]).any(axis=1)])[: len(order)]
    place = np.arange(len(order))
    found = np.zeros(len(order), np.int64)
    found[order] = place - np.maximum.accumulate(np.where(fresh, place, 0))
    return found
