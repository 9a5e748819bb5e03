"""Puts a plan's lists in rounds: messages, and the attends that go on beside them.

A rank attends once a round, to what it received in the round before; what it computed, and what it received, is sent on
in the round after. Of a zigzag ring over N ranks that makes N rounds of the forward list, which it has by itself, and
N of the backward, in which kv and the gradient of the block before go together, as in Transformer Engine's loop
(`AttnFuncWithCPAndKVP2P`). Who waits for rounds is said by zbench.simulator.rounds.
"""

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.describe.model import DKV
from zbench.plans.dataflow import Violation, edges
from zbench.plans.plan import ATTEND, Ints, Ops, Plan
from zbench.simulator.direct import by_consumer


def into_rounds(plan: Plan) -> Plan:
    """Returns `plan` with both lists in rounds, whose ranks wait for each of them (Plan.in_rounds).

    Raises:
        ValueError: a list uses what no earlier operation made.
    """
    lists = (_in_rounds(plan, ops, backward) for ops, backward in ((plan.forward, False), (plan.backward, True)))
    forward, backward = lists
    return plan.with_(forward=forward, backward=backward, in_rounds=True)


def _in_rounds(plan: Plan, ops: Ops, backward: bool) -> Ops:
    """Returns a list round after round: first gradients, then other messages, then attends, each in order."""
    found = edges(plan, ops, backward)
    if isinstance(found, Violation):
        raise ValueError(f"{'backward' if backward else 'forward'} operation {found.op} {found.reason}")
    attend = ops.kind == ATTEND
    number: Ints = _rounds(attend, ops.src, *by_consumer(len(ops), found), np.full(plan.num_ranks, -1, np.int64))
    kind = np.where(attend, 2, np.where(ops.tensor == DKV, 0, 1))
    return ops.take(np.lexsort((kind, number)))


@nb.njit(**ENTERED)
def _rounds(attend, rank, offsets, producers, last):  # type: ignore[no-untyped-def]
    """Returns the round of every operation: one after those of what it uses, and of its rank's attend before it. last:
    int64 [num_ranks], of each rank's last attend."""
    number = np.zeros(len(attend), np.int64)
    for op in range(len(attend)):
        for at in range(offsets[op], offsets[op + 1]):
            number[op] = max(number[op], number[producers[at]] + 1)
        if attend[op]:
            number[op] = last[rank[op]] = max(number[op], last[rank[op]] + 1)
    return number
