"""The backward list of a plan, made by running its forward list in reverse.

An attend stays where it is; o's way home becomes the way out of do; the ways out of q and kv become
the ways home of dq and dkv, which add up on every rank they pass. What differs is where a rank
finds the received kv again:

- keep: it still holds it, in every layer;
- carry: kv travels once more, back along the chain of ranks it came by, beside its gradient; only
  the last rank of a chain keeps its copy (the traffic of Transformer Engine's ring backward: kv and
  dkv once round);
- regather: the forward's kv transfers happen again (Llama 3's all-gather).
"""

from dataclasses import replace
from typing import Literal

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.plans.columns import TYPES
from zbench.plans.plan import ATTEND, TRANSFER, Column, Ints, Ops, Plan
from zbench.plans.touches import by_rank

Mode = Literal["keep", "carry", "regather"]
MODES: tuple[Mode, ...] = ("keep", "carry", "regather")
_GRADIENT = np.zeros(6, np.int8)
_GRADIENT[[Q, KV, O]] = [DQ, DKV, DO]


def check_mode(field: str, mode: object) -> None:
    """Raises ValueError naming `field` if `mode` is none of MODES."""
    if mode not in MODES:
        raise ValueError(f"{field} is {mode!r}; it takes {', '.join(MODES)}")


def reverse(plan: Plan, mode: Mode) -> Plan:
    """Returns `plan` with its backward list, and with the forward copies marked that stay until then.

    Raises:
        ValueError: unknown mode.
    """
    check_mode("backward", mode)
    forward = plan.forward
    is_kv = (forward.kind == TRANSFER) & (forward.tensor == KV)
    keep = (forward.kind == TRANSFER) & (forward.tensor == Q)
    if mode == "carry":
        dropped, sender, before = _carried(plan)
        keep |= is_kv
        keep[dropped] = False
        heads = (forward.head_lo[dropped], forward.head_hi[dropped])
        again = Ops.transfers(KV, sender, forward.dst[dropped], heads, forward.blocks[dropped])
        backward = _merged(again, before, _mirrored(forward))
    elif mode == "regather":
        again = replace(forward, keep=np.zeros(len(forward), np.int8)).take(is_kv)
        backward = Ops.concatenate([again, _mirrored(forward)])
    else:
        keep |= is_kv
        backward = _mirrored(forward)
    return plan.with_(forward=replace(forward, keep=keep.view(np.int8)), backward=backward, backward_mode=mode)


def _mirrored(forward: Ops) -> Ops:
    """Returns every attend, and the gradient of every transfer on its way back, last first."""
    tensor = np.where(forward.kind == TRANSFER, _GRADIENT[forward.tensor], np.int8(-1))
    back = forward.take(slice(None, None, -1))
    none, nothing = np.full(len(forward), -1, np.int16), np.zeros(len(forward), np.int8)
    return replace(back, tensor=tensor[::-1], src=back.dst, dst=back.src, via=none, keep=nothing)


def _merged(again: Ops, before: Ints, mirrored: Ops) -> Ops:
    """Merges operations into `mirrored`, each operation of `again` in front of the one at `before` (int64 [len(again)],
    ascending)."""
    place = before + np.arange(len(before))
    others = np.ones(len(again) + len(mirrored), bool)
    others[place] = False
    columns = {}
    for name, wanted in TYPES.items():
        columns[name] = np.empty(len(others), wanted)
        columns[name][place] = getattr(again, name)
        columns[name][others] = getattr(mirrored, name)
    return Ops(**columns)


def _carried(plan: Plan) -> tuple[Column, Column, Ints]:
    """Copies that are dropped after the forward because the rank they were passed on to can return them.

    Returns, per dropped copy in the order of their returns, the forward operation that brought it, the rank that
    returns it, and in front of which of the mirrored operations it does: before the first use of the copy and before
    the rank it goes on to needs it; of several in one place, those deepest in their chains first.
    """
    ops, heads = plan.forward, plan.num_heads + 1
    rows = by_rank(ops.kind == ATTEND, ops.src, ops.dst, plan.num_ranks)
    columns = (ops.kind, ops.tensor, ops.dst, ops.head_lo, ops.head_hi, ops.blocks, ops.kv_blocks)
    onward, brought_by, use = _chains(columns, rows, len(plan.lists), heads)
    turn, depth = _turns(onward, brought_by, use)
    dropped = np.flatnonzero(turn >= 0).astype(np.int32)
    before = len(ops) - 1 - turn[dropped]
    order = np.lexsort((-depth[dropped], before))
    dropped = dropped[order]
    return dropped, ops.dst[onward[dropped]], before[order].astype(np.int64)


@nb.njit(**ENTERED)
def _chains(columns, rows, num_lists, width):  # type: ignore[no-untyped-def]
    """Links the kv transfers of a copy: returns per kv transfer, int32 [num_ops], -1 where there is none: the last one
    that takes the copy on from where it arrives, the last one that brought it to where it leaves from, and the last
    attend that uses it."""
    kind, tensor, dst, head_lo, head_hi, blocks, kv_blocks = columns
    offsets, index = rows
    onward = np.full(len(kind), -1, np.int32)
    brought_by, use = onward.copy(), onward.copy()
    entry = np.full(num_lists, -1, np.int32)  # a rank's first copy of each list; others follow, by heads
    most = 0
    for rank in range(len(offsets) - 1):
        most = max(most, offsets[rank + 1] - offsets[rank])
    heads, following, known = np.empty(most, np.int64), np.empty(most, np.int32), np.empty((most, 3), np.int32)
    which = np.empty(most, np.int32)
    for rank in range(len(offsets) - 1):
        begin, end, count = offsets[rank], offsets[rank + 1], 0
        for at in range(begin, end):
            i = index[at]
            which[at - begin] = -1
            if kind[i] != ATTEND and tensor[i] != KV:
                continue
            listed = kv_blocks[i] if kind[i] == ATTEND else blocks[i]
            span = head_lo[i] * width + head_hi[i]
            found = entry[listed]
            while found >= 0 and heads[found] != span:
                found = following[found]
            if found < 0:
                found = count
                heads[found], following[found] = span, entry[listed]
                known[found] = -1
                entry[listed] = found
                count += 1
            which[at - begin] = found
            known[found, 2 if kind[i] == ATTEND else 1 if dst[i] == rank else 0] = i  # used, arrived, sent last
        for at in range(begin, end):
            i, found = index[at], which[at - begin]
            if found < 0:
                continue
            entry[kv_blocks[i] if kind[i] == ATTEND else blocks[i]] = -1
            if kind[i] != ATTEND and dst[i] == rank:
                onward[i], use[i] = known[found, 0], known[found, 2]
            elif kind[i] != ATTEND:
                brought_by[i] = known[found, 1]
    return onward, brought_by, use


@nb.njit(**ENTERED)
def _turns(onward, brought_by, use):  # type: ignore[no-untyped-def]
    """Returns per kv transfer, int32 [num_ops]: in front of which forward operation's mirror the copy is returned (-1:
    it is kept), and how deep in its chain it is."""
    turn, depth = np.full(len(use), -1, np.int32), np.zeros(len(use), np.int32)
    for i in range(len(use)):
        if use[i] >= 0 and onward[i] > i:
            turn[i] = use[i]
    for i in range(len(use)):  # in forward order: nearer to home first
        if 0 <= brought_by[i] < i:
            depth[i] = depth[brought_by[i]] + 1
        if turn[i] >= 0 and turn[onward[i]] >= 0:
            turn[onward[i]] = max(turn[onward[i]], turn[i])
    return turn, depth
