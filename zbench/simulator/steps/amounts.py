"""Adds up what a variant of a template keeps busy and sends, hop by hop; compiled."""

from functools import lru_cache
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.compiled import ENTERED
from zbench.describe.links import NIC
from zbench.simulator.steps.expand import BYTES, CLASS, LINK_A, LINK_B, OP, RANK
from zbench.simulator.steps.variant import Variant
from zbench.step.form import LayoutForm
from zbench.step.operations import COMPUTE, PURPOSE_OF, QUEUES

ATTEND, OPTIMIZER = len(QUEUES), len(QUEUES) + 1  # rows of `busy` after those of QUEUES
_ROWS = {"attend": ATTEND, "attend_d": ATTEND, "adam": OPTIMIZER}  # by function; others are computes' own


class Amounts(NamedTuple):
    """The amounts of a variant.

    busy: seconds, float64 [QUEUES and ATTEND and OPTIMIZER, GPUs], of computes and of sending ports. sent, received:
    bytes, int64 [QUEUES, NICs]. inside: bytes on links inside nodes, int64 [QUEUES]. A transfer is in the row of
    what it is for (zbench.step.operations.PURPOSE_OF).
    """

    busy: Floats
    sent: Ints
    received: Ints
    inside: Ints


def amounts_of(variant: Variant, cluster: Cluster) -> Amounts:
    """Adds up the hops of a variant."""
    lowered, rows = variant.lowered, _rows_of(variant.of.layout.form)
    shape = len(QUEUES), cluster.num_ranks, cluster.num_nics
    return Amounts(*_added(lowered.table, lowered.busy, variant.ops, (rows, PURPOSE_OF), shape))


@lru_cache(maxsize=64)
def _rows_of(form: LayoutForm) -> Ints:
    """Returns the row of `busy` that the computes of each formula are in, -1: computes' own."""
    return np.array([_ROWS.get(one.terms[0].function, -1) for one in form.formulas], np.int64)


@nb.njit(**ENTERED)
def _added(table, busy, ops, rows, shape):  # type: ignore[no-untyped-def]
    """Returns the fields of `Amounts`. rows: by formula, of `_rows_of`, and PURPOSE_OF. shape: queues, GPUs, NICs."""
    queues, gpus, nics = shape
    seconds = np.zeros((queues + 2, gpus))
    sent, received = np.zeros((queues, nics), np.int64), np.zeros((queues, nics), np.int64)
    inside = np.zeros(queues, np.int64)
    for hop in range(len(busy)):
        op, size = table[OP, hop], table[BYTES, hop]
        row = rows[0][ops[op, 1]] if ops[op, 0] == COMPUTE else np.int64(-1)
        row = rows[1][ops[op, 0], ops[op, 8]] if row < 0 else row
        if table[RANK, hop] < gpus:  # else of a node's CPUs
            seconds[row, table[RANK, hop]] += busy[hop]
        if 0 < row < queues and table[CLASS, hop] == NIC:
            sent[row, table[LINK_A, hop] // 2 - gpus] += size
            received[row, table[LINK_B, hop] // 2 - gpus] += size
        elif 0 < row < queues and table[CLASS, hop] >= 0:
            inside[row] += size
    return seconds, sent, received, inside
