"""The backward list of a plan, made by running its forward list in reverse. Pure: no torch.

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

from zbench.model import DKV, DO, DQ, KV, O, Q
from zbench.plan import ATTEND, TRANSFER, Ints, Ops, Plan

Mode = Literal["keep", "carry", "regather"]
MODES: tuple[Mode, ...] = ("keep", "carry", "regather")
_GRADIENT = np.zeros(6, np.int64)
_GRADIENT[[Q, KV, O]] = [DQ, DKV, DO]


def check_mode(field: str, mode: object) -> None:
    """Raises ValueError naming `field` if `mode` is none of MODES."""
    if mode not in MODES:
        raise ValueError(f"{field} is {mode!r}; it takes {', '.join(MODES)}")


def reverse(plan: Plan, mode: Mode) -> Plan:
    """`plan` with its backward list, and with the forward copies marked that stay until then.

    Raises:
        ValueError: unknown mode.
    """
    check_mode("backward", mode)
    forward = plan.forward
    transfer = forward.kind == TRANSFER
    mirrored = replace(
        forward,
        tensor=np.where(transfer, _GRADIENT[forward.tensor], -1),
        src=forward.dst,
        dst=forward.src,
        via=np.full(len(forward), -1, np.int64),
        keep=np.zeros(len(forward), np.int64),
    ).take(np.arange(len(forward))[::-1])
    is_kv = transfer & (forward.tensor == KV)
    keep = (transfer & (forward.tensor == Q)) | (is_kv & (mode == "keep"))
    backward = mirrored
    if mode == "regather":
        again = replace(forward, keep=np.zeros(len(forward), np.int64)).take(is_kv)
        backward = Ops.concatenate([again, mirrored])
    if mode == "carry":
        dropped, sender, turn, depth = _carried(plan, np.flatnonzero(is_kv))
        keep |= is_kv
        keep[dropped] = False
        heads = (forward.head_lo[dropped], forward.head_hi[dropped])
        again = Ops.transfers(KV, sender, forward.dst[dropped], heads, forward.blocks[dropped])
        turns = np.concatenate([turn, 2 * np.arange(len(forward))])
        depths = np.concatenate([depth, np.zeros(len(forward), np.int64)])
        backward = Ops.concatenate([again, mirrored]).take(np.lexsort((-depths, turns)))
    return plan.with_(forward=replace(forward, keep=keep.astype(np.int64)), backward=backward, backward_mode=mode)


def _carried(plan: Plan, kv: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Copies that are dropped after the forward because the rank they were passed on to can return them.

    Returns, per dropped copy, the forward operation that brought it, the rank that returns it, the
    place of the return among the mirrored operations (which stand at even turns), and its depth in the chain.
    """
    ops = plan.forward
    attend = np.flatnonzero(ops.kind == ATTEND)
    arrived = _key(plan, ops.blocks[kv], kv, ops.dst)
    sent = _key(plan, ops.blocks[kv], kv, ops.src)
    used = _key(plan, ops.kv_blocks[attend], attend, ops.src)
    onward = _last(sent, arrived)
    use = _last(used, arrived)
    both = (onward >= 0) & (use >= 0) & (onward > np.arange(len(kv)))
    last_use = np.where(both, attend[use], 0)
    turn, depth = _turns(both, onward, _last(arrived, sent), 2 * (len(ops) - 1 - last_use) - 1)
    dropped = np.flatnonzero(both)
    return kv[dropped], ops.dst[kv[onward[dropped]]], turn[dropped], depth[dropped]


def _key(plan: Plan, lists: Ints, index: Ints, rank: Ints) -> Ints:
    """One number for (list of blocks, heads, rank)."""
    ops, heads = plan.forward, plan.num_heads + 1
    return ((lists * heads + ops.head_lo[index]) * heads + ops.head_hi[index]) * plan.num_ranks + rank[index]


def _last(keys: Ints, wanted: Ints) -> Ints:
    """Index of the last of `keys` equal to each of `wanted`, -1 if there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    found = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (keys[found] == wanted), found, -1)


@nb.njit(cache=True)
def _turns(dropped, onward, brought_by, turn):  # type: ignore[no-untyped-def]
    """A copy is back before its own first use and before the rank it goes on to needs it, deepest first."""
    depth = np.zeros(len(turn), np.int64)
    for copy in range(len(turn)):  # in forward order: nearer to home first
        if 0 <= brought_by[copy] < copy:
            depth[copy] = depth[brought_by[copy]] + 1
        if dropped[copy] and dropped[onward[copy]]:
            turn[onward[copy]] = min(turn[onward[copy]], turn[copy])
    return turn, depth
