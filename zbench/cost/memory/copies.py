"""Bytes of a plan's copies and partial sums away from home: those that stay for the backward, and those of a moment."""

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.compiled import ENTERED, INNER
from zbench.describe.model import KV, Q, message_size
from zbench.plans.plan import TRANSFER, Ints, Ops, Plan
from zbench.plans.read_at_home import head_edges, kv_of_heads, read_at_home
from zbench.plans.touches import ACTION, ADD, HI, IS_COPY, LO, PLACE, WRITE, scratch, source, touches

_message_size = nb.njit(**INNER)(message_size)


def kept_bytes(plan: Plan, cost: Cost) -> Ints:
    """Returns int64 [num_ranks]: the bytes of received q and kv that one layer keeps until its backward."""
    ops = plan.forward.take(np.flatnonzero(plan.forward.keep == 1))
    kept = (ops.kind == TRANSFER) & ((ops.tensor == Q) | (ops.tensor == KV))
    size = cost.message_bytes(plan, ops)
    return np.bincount(ops.dst[kept], weights=size[kept], minlength=plan.num_ranks).astype(np.int64)


def kept_over_own(plan: Plan, cost: Cost) -> Ints:
    """Returns int64 [num_ranks]: the bytes of q and kv that one layer of a whole step keeps until its backward, over
    those of a rank's own tokens with all heads: what it received, less what its backward does not read of its own. Less
    than 0 where that is more."""
    cuts = head_edges(plan)
    queries, keys = read_at_home(plan, cuts)
    found = kept_bytes(plan, cost)
    if queries.all() and keys.all():
        return found
    per_head, per_kv_head, per_kv = cost.model.message_rows()
    kv = kv_of_heads(cuts, per_kv)
    first = np.flatnonzero(np.diff(kv, prepend=-1))  # heads that begin a part of the kv heads
    ends = -(-np.maximum.reduceat(cuts[1:], first) // per_kv)
    each = ~queries @ (np.diff(cuts) * per_head[Q])
    each += ~np.logical_or.reduceat(keys, first, axis=1) @ (np.diff(ends, prepend=0) * per_kv_head[KV])
    unread = np.bincount(plan.blocks.home, weights=each * plan.blocks.tokens, minlength=plan.num_ranks)
    return found - unread.astype(np.int64)


def moment_bytes(plan: Plan, ops: Ops, backward: bool, cost: Cost) -> Ints:
    """Returns int64 [num_ranks]: the bytes of copies and partial sums away from home at the fullest moment of one
    layer, in plan order.

    A copy lives from its arrival to its last use, a sum from its first contribution to its departure.
    """
    of = source(plan, ops, backward)
    work = scratch(of, len(plan.blocks))
    found: Ints = _fullest(of, work, plan.blocks.home, plan.blocks.tokens, ops.keep, cost.model.message_rows())
    return found


@nb.njit(**ENTERED)
def _fullest(of, work, home, tokens, keep, rows):  # type: ignore[no-untyped-def]
    """Finds for each rank the most that its items away from home need after any of its operations."""
    offsets, index = of[3]
    peak = np.zeros(len(offsets) - 1, np.int64)
    for rank in range(len(peak)):
        _, items = touches(rank, of, work, home)
        mine = index[offsets[rank] : offsets[rank + 1]]
        change = np.zeros((len(mine), 2), np.int64)  # of what is held, before and after each operation
        _live(rank, items, work, home, tokens, keep[mine], rows, change)
        level = 0
        for place in range(len(mine)):
            level += change[place, 0]
            peak[rank] = max(peak[rank], level)
            level -= change[place, 1]
    return peak


@nb.njit(**INNER)
def _live(rank, items, work, home, tokens, keep, rows, change):  # type: ignore[no-untyped-def]
    """Adds every item away from home where its life begins and where it ends. keep: of the rank's operations.

    A copy that stays until the backward, or was there before the first operation, is in kept_bytes already.
    """
    table, order, runs, keys, _ = work
    for item in range(items):
        tensor, block = keys[item] // len(home), keys[item] % len(home)
        at = order[runs[item]]
        if home[block] == rank or (not IS_COPY[tensor] and table[at, ACTION] != ADD):
            continue
        first, last, lo, hi = len(keep), -1, table[at, LO], table[at, HI]
        for turn in range(runs[item], runs[item + 1]):
            at = order[turn]
            action, place = table[at, ACTION], table[at, PLACE]
            lo, hi = min(lo, table[at, LO]), max(hi, table[at, HI])
            if action == WRITE and (place < 0 or keep[place] == 1):
                first = len(keep)
                break
            if action in (WRITE, ADD):
                first = min(first, place)
            else:
                last = max(last, place)
        if first <= last:
            size = _message_size(tensor, lo, hi, *rows) * tokens[block]
            change[first, 0] += size
            change[last, 1] += size
