"""The heads of q and kv that a rank's backward list reads of its own tokens: what it attends with, and what it sends.

Who sends heads away attends to few of its own tokens' itself, and its backward need not keep the others.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.compiled import ENTERED
from zbench.describe.model import KV, Q
from zbench.plans.plan import ATTEND, Ints, Plan


def head_edges(plan: Plan) -> Ints:
    """Returns the heads at which a range of the plan's operations begins or ends, 0 and the number of heads among them,
    ascending, int64 [edges]."""
    met = np.zeros(plan.num_heads + 1, np.bool_)
    met[[0, -1]] = True
    for ops in (plan.forward, plan.backward):
        met[ops.head_lo] = met[ops.head_hi] = True
    return np.flatnonzero(met)


def kv_of_heads(cuts: Ints, per_kv: int) -> Ints:
    """Returns the part of the kv heads that every part of the heads reads, ascending, int64 [len(cuts) - 1]. cuts: the
    heads at which parts end, from 0 on; per_kv: heads that share a kv head. Parts of kv heads are as fine as they can
    be while each part of the heads reads one."""
    first = cuts[:-1] // per_kv
    last = (cuts[1:] - 1) // per_kv
    fresh = np.concatenate([[True], first[1:] > np.maximum.accumulate(last)[:-1]])
    return np.asarray(np.cumsum(fresh) - 1, np.int64)


def read_at_home(plan: Plan, cuts: Ints) -> tuple[Flags, Flags]:
    """Returns whether a backward list reads q of each block on its home, by parts of the heads, and the same of kv by
    the heads whose kv heads it reads, both bool [blocks, len(cuts) - 1]. cuts: `head_edges`, and maybe others."""
    ops, place = plan.backward, np.zeros(plan.num_heads + 1, np.int64)
    place[cuts] = np.arange(len(cuts))
    found = np.zeros((2, len(plan.blocks), len(cuts) - 1), np.bool_)
    columns = ops.kind, ops.tensor, ops.src, place[ops.head_lo], place[ops.head_hi], ops.blocks, ops.kv_blocks
    _mark(columns, (plan.lists.offsets, plan.lists.items), plan.blocks.home, found)
    return found[0], found[1]


@nb.njit(**ENTERED)
def _mark(columns, lists, home, found):  # type: ignore[no-untyped-def]
    """Marks what operations read of blocks that are at home: 0 of q, 1 of kv."""
    kind, tensor, src, low, high, blocks, kv_blocks = columns
    offsets, items = lists
    for i in range(len(kind)):
        for of in range(2):
            if kind[i] == ATTEND:
                which = kv_blocks[i] if of else blocks[i]
            elif tensor[i] == (KV if of else Q):
                which = blocks[i]
            else:
                continue
            for at in range(offsets[which], offsets[which + 1]):
                block = items[at]
                if home[block] == src[i]:
                    for head in range(low[i], high[i]):
                        found[of, block, head] = True
