"""Homes after planning: a plan's tokens live where their queries are attended, or every rank has as many of them.

Who attends to what stays. A planner that puts tokens elsewhere than where their queries are attended (remapping,
zbench.passes.remap) moves q and kv there and o home, and gradients back; one that does not leaves ranks with as many
tokens as attention gave them. What is computed at home is dense modules; with experts most of a layer is computed where
routing sends rows, whatever home they come from, and homes decide what a rank sends. So which homes are better depends
on what comes after attention, and these passes turn one into the other (docs/dispatch.md).
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.passes.remap import remap
from zbench.passes.reverse import MODES, reverse
from zbench.passes.route import route
from zbench.plans.plan import ATTEND, TRANSFER, Ints, Lists, Ops, Plan


def with_even_homes(plan: Plan, cost: Cost, tolerance: int = 128, across: bool = True) -> Plan:
    """Returns a plan with forward and backward with homes balanced to within `tolerance` tokens, as remapping has them,
    the plan itself where they are; its backward is made anew, and it is routed where the plan is. across: as of
    zbench.passes.remap.remap.

    Plans with pipelines, whose tokens are at leads of groups, and those that a package stands for stay as they are.
    """
    if _stays(plan):
        return plan
    routed, forward = bool((plan.forward.via >= 0).any()), plan.forward
    if routed:  # anew, as other transfers are sent
        forward = replace(forward, via=np.full(len(forward), -1, np.int16))
    bare = plan.with_(forward=forward, backward=Ops.concatenate([]))
    moved = remap(bare, cost, tolerance, across)
    if moved is bare:
        return plan
    mode = next(one for one in MODES if one == plan.backward_mode)
    even = reverse(moved, mode)
    return route(even, cost) if routed else even


def with_attention_homes(plan: Plan) -> Plan:
    """Returns a plan with forward and backward whose tokens live where their queries are attended, the plan itself
    where all do that can: those stay with whose queries several ranks attend, some heads or keys each.

    Plans stay as they are that do with even homes.
    """
    moves = None if _stays(plan) else _Moves.of(plan)
    if moves is None or not moves.moved.any():
        return plan
    table = _ListRows(plan.lists)
    forward, backward = (moves.of_ops(plan, ops, table) for ops in (plan.forward, plan.backward))
    blocks = replace(plan.blocks, home=np.where(moves.moved, moves.attends, plan.blocks.home))
    return plan.with_(blocks=blocks, lists=table.lists(), forward=forward, backward=backward)


def _stays(plan: Plan) -> bool:
    """Returns whether nothing of a plan may be moved."""
    return plan.pipelines is not None or bool(plan.attention)


@dataclass(frozen=True)
class _Moves:
    """The blocks that get another home. moved: [blocks]; attends: int64 [blocks], the rank that attends with their
    queries; needed: [blocks], whether the old home uses their keys."""

    moved: Flags
    attends: Ints
    needed: Flags

    @staticmethod
    def of(plan: Plan) -> "_Moves":
        """Finds them in a plan's forward list."""
        ops, home, count = plan.forward, plan.blocks.home, len(plan.blocks)
        at, block = _touched(ops.blocks, plan.lists)
        tensor, here = ops.tensor[at], home[block]
        heads = (ops.head_hi.astype(np.int64) - ops.head_lo)[at]
        out = (tensor == Q) & (ops.src[at] == here)
        back = (tensor == O) & (ops.dst[at] == here)
        attends = np.full(count, -1, np.int64)
        attends[block[out]] = ops.dst[at[out]]
        # All heads went to one rank and came back from it, and nobody else has had or attended with any of them.
        moved = np.bincount(block[out], heads[out], count) == plan.num_heads
        moved &= np.bincount(block[back], heads[back], count) == plan.num_heads
        ends = np.where(tensor == Q, ops.dst[at], ops.src[at])
        moved[block[((tensor == Q) | (tensor == O)) & ((ends != attends[block]) | ~(out | back))]] = False
        moved[block[(ops.kind[at] == ATTEND) & (ops.src[at] != attends[block])]] = False
        # Keys that the old home attends with or sends on to others, it has to be sent, which takes whole ones.
        at, block = _touched(np.where(ops.kind == ATTEND, ops.kv_blocks, ops.blocks), plan.lists)
        used = (ops.kind[at] == ATTEND) | ((ops.tensor[at] == KV) & (ops.dst[at] != attends[block]))
        used &= ops.src[at] == home[block]
        needed = np.zeros(count, bool)
        needed[block[used]] = True
        moved[block[used & ((ops.head_lo[at] > 0) | (ops.head_hi[at] < plan.num_heads))]] = False
        return _Moves(moved, attends, needed)

    def of_ops(self, plan: Plan, ops: Ops, table: "_ListRows") -> Ops:
        """Returns a list of operations without what is no longer sent of moved blocks."""
        at, block = _touched(ops.blocks, plan.lists)
        home, there, tensor = plan.blocks.home[block], self.attends[block], ops.tensor[at]
        arrives = (ops.dst[at] == there) & np.isin(tensor, (Q, KV, DO))  # and is there already
        leaves = (ops.src[at] == there) & (ops.dst[at] == home) & np.isin(tensor, (O, DQ, DKV))
        gone = (ops.kind[at] == TRANSFER) & self.moved[block] & (arrives | leaves)
        blocks, kept = ops.blocks.astype(np.int64), np.ones(len(ops), bool)
        for one in np.unique(at[gone]).tolist():
            rest = block[(at == one) & ~gone]
            kept[one] = len(rest) > 0
            blocks[one] = table.number(rest) if len(rest) else blocks[one]
        return self._with_keys(plan, replace(ops, blocks=blocks).take(kept), table, ops is plan.forward)

    def _with_keys(self, plan: Plan, ops: Ops, table: "_ListRows", forward: bool) -> Ops:
        """Returns operations with the keys of moved blocks that old homes are sent before all else, and with the
        gradients of these, which they give when all they have of them is there."""
        which = np.flatnonzero(self.moved & self.needed)
        if not len(which):
            return ops
        ends, of = np.unique(np.stack([self.attends, plan.blocks.home])[:, which], axis=1, return_inverse=True)
        lists = np.array([table.number(which[of.reshape(-1) == one]) for one in range(ends.shape[1])], np.int64)
        keys = Ops.transfers(KV, ends[0], ends[1], (0, plan.num_heads), lists)
        again = plan.backward_mode == "regather"
        if forward:
            return Ops.concatenate([replace(keys, keep=np.full(len(lists), not again, np.int8)), ops])
        back = Ops.transfers(DKV, ends[1], ends[0], (0, plan.num_heads), lists)
        return Ops.concatenate([*([keys] if again else []), ops, back])


class _ListRows:
    """Lists of a plan, and those that are made beside them, each once."""

    def __init__(self, lists: Lists) -> None:
        self._before, self._numbers = lists, dict[tuple[int, ...], int]()

    def number(self, blocks: Ints) -> int:
        """Returns the number of a list of blocks."""
        return self._numbers.setdefault(tuple(blocks.tolist()), len(self._before) + len(self._numbers))

    def lists(self) -> Lists:
        """Returns all lists."""
        extra = Lists.of([list(row) for row in self._numbers])
        offsets = np.concatenate([self._before.offsets, self._before.offsets[-1] + extra.offsets[1:]])
        return Lists(offsets, np.concatenate([self._before.items, extra.items]))


def _touched(named: Ints, lists: Lists) -> tuple[Ints, Ints]:
    """Returns (operation, block) for every block of the lists that operations name; -1: none."""
    real = np.flatnonzero(named >= 0)
    which = named[real].astype(np.int64)
    counts = lists.lengths[which]
    begin = np.repeat(lists.offsets[which] - (np.cumsum(counts) - counts), counts)
    return np.repeat(real, counts), lists.items[begin + np.arange(int(counts.sum()))]
