"""Puts a plan together from groups of sequences.

A `Builder` collects blocks, lists of blocks and operations from patterns (zbench.plans.patterns) that
know nothing of each other; laying several over one another is calling several patterns. Blocks that
turn out to hold no token (a sequence shorter than its group) are dropped at the end, with every
operation left without blocks and every copy that then nothing uses: a rank without queries needs no keys. So are,
under a window, attends whose queries see none of their keys.
"""

from dataclasses import replace
from typing import NamedTuple

import numba as nb
import numpy as np

from zbench.describe.compiled import ENTERED
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import KV
from zbench.plans.area import work
from zbench.plans.columns import Column, in_order
from zbench.plans.plan import ATTEND, Blocks, Ints, Lists, Ops, Plan


class Builder:
    """Collects the parts of one plan; `build` checks nothing (that is zbench.proof.verify) and returns it.

    While building, a block names its own one-block list by its id; a list made by `add_list` is
    named by a negative number from -2 down (-1 says "none" in a plan's columns).
    """

    def __init__(
        self, lengths: Ints, num_ranks: int, num_heads: int, mask: Mask = CAUSAL, sequences: Ints | None = None
    ) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.sequences = np.arange(len(self.lengths)) if sequences is None else sequences
        self.num_ranks, self.num_heads, self.mask = num_ranks, num_heads, mask
        self._pieces: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._homes: list[Ints] = []
        self._lists: list[Ints] = []
        self._list_sizes: list[Ints] = []
        self._num_blocks = self._num_lists = 0
        self._ops: list[Ops] = []

    def add_blocks(self, seq: Ints, start: Ints, stop: Ints, block: Ints, home: Ints) -> int:
        """Adds pieces [start, stop) of sequences, grouped by `block` (from 0), and returns the id of block 0."""
        base = self._num_blocks
        self._pieces.append((seq, start, stop, block + base if base else block))
        self._homes.append(home)
        self._num_blocks += len(home)
        return base

    def add_lists(self, rows: Ints) -> Ints:
        """Adds every row of an [n, k] array of block ids as a list; returns the n names."""
        names = -2 - self._num_lists - np.arange(len(rows), dtype=np.int64)
        self._lists.append(rows.reshape(-1))
        self._list_sizes.append(np.full(len(rows), rows.shape[1], np.int64))
        self._num_lists += len(rows)
        return names

    def add_ops(self, *ops: Ops) -> None:
        """Appends operations to the forward list."""
        self._ops.extend(ops)

    def build(self) -> Plan:
        """Returns the plan of what was added: empty blocks are dropped with what moves or attends to them alone, and
        pieces are sorted."""
        seq, start, stop, block = (
            column[0] if len(column) == 1 else np.concatenate(column) for column in zip(*self._pieces, strict=True)
        )
        filled = stop > start
        if not filled.all():
            seq, start, stop, block = seq[filled], start[filled], stop[filled], block[filled]
        alive = np.zeros(self._num_blocks, bool)
        alive[block] = True
        new_id = np.cumsum(alive) - 1
        home = np.concatenate(self._homes)[alive]
        if not in_order(seq, start):
            order = np.lexsort((start, seq))
            seq, start, stop, block = seq[order], start[order], stop[order], block[order]
        blocks = Blocks(seq, start, stop, block if alive.all() else new_id[block], home)
        lists, rename = self._renamed_lists(alive, new_id)
        ops = Ops.concatenate(self._ops)
        if self._num_lists or not alive.all():  # else every block has kept its name
            moved, kv = rename[ops.blocks], rename[ops.kv_blocks]
            kept = (moved >= 0) & ((ops.kind != ATTEND) | (kv >= 0))
            kv[ops.kind != ATTEND] = -1
            ops = replace(ops, blocks=moved, kv_blocks=kv).take(kept)
        if not alive.all():
            ops = without_unused(ops, lists, self.num_ranks, len(blocks))
        empty = Ops.concatenate([])
        plan = Plan(
            self.lengths,
            self.sequences,
            self.num_ranks,
            self.num_heads,
            blocks,
            lists,
            ops,
            empty,
            Lists.of([]),
            self.mask,
        )
        return _seen(plan) if self.mask.window else plan

    def _renamed_lists(self, alive: Ints, new_id: Ints) -> tuple[Lists, Ints]:
        """Returns the plan's lists (first one per block), and final names by building name; -1 where nothing is left.

        The second array is indexed by building name directly: block ids from the front, list names
        from the back (numpy's negative indices, -1 being unused).
        """
        count = int(alive.sum())
        rename = np.full(self._num_blocks + self._num_lists + 1, -1, np.int64)
        rename[: self._num_blocks][alive] = np.arange(count)
        if not self._num_lists:
            return Lists.singletons(count), rename
        items = np.concatenate(self._lists)
        sizes = np.concatenate(self._list_sizes)
        row = np.repeat(np.arange(self._num_lists), sizes)[alive[items]]
        left = np.bincount(row, minlength=self._num_lists)
        full = left > 0
        rename[-2 - np.flatnonzero(full)] = count + np.arange(int(full.sum()))
        offsets = np.concatenate([np.arange(count + 1), count + np.cumsum(left[full])])
        return Lists(offsets, np.concatenate([np.arange(count), new_id[items[alive[items]]]])), rename


def _seen(plan: Plan) -> Plan:
    """Returns the forward without attends in which nothing is visible, as under a window, and without copies only for
    them."""
    attend, amount = work(plan, plan.forward)
    if (amount.area > 0).all():
        return plan
    ops = plan.forward.take(np.delete(np.arange(len(plan.forward)), attend[amount.area == 0]))
    return plan.with_(forward=without_unused(ops, plan.lists, plan.num_ranks, len(plan.blocks)))


def without_unused(ops: Ops, lists: Lists, num_ranks: int, num_blocks: int) -> Ops:
    """Drops forward operations whose copies no later attend reads, on the rank they reach or one they go on to."""
    columns = _OpColumns(ops.kind, ops.tensor, ops.src, ops.dst, ops.blocks, ops.kv_blocks)
    return ops.take(_used(columns, lists.offsets, lists.items, num_ranks, num_blocks))


class _OpColumns(NamedTuple):
    """Columns of Ops: what operations are, between which ranks, and of which lists of blocks."""

    kind: Column
    tensor: Column
    src: Column
    dst: Column
    blocks: Column
    kv_blocks: Column


@nb.njit(**ENTERED)
def _used(ops, offsets, items, num_ranks, num_blocks):  # type: ignore[no-untyped-def]
    kind, tensor, src, dst, blocks, kv_blocks = ops
    wanted = np.zeros((2, num_ranks, num_blocks), np.bool_)  # q and kv, by rank and block
    used = np.ones(len(kind), np.bool_)
    for i in range(len(kind) - 1, -1, -1):
        moved = items[offsets[blocks[i]] : offsets[blocks[i] + 1]]
        if kind[i] == ATTEND:
            for block in moved:
                wanted[0, src[i], block] = True
            for block in items[offsets[kv_blocks[i]] : offsets[kv_blocks[i] + 1]]:
                wanted[1, src[i], block] = True
        elif tensor[i] <= KV:
            used[i] = False
            for block in moved:
                used[i] |= wanted[tensor[i], dst[i], block]
            if used[i]:
                for block in moved:
                    wanted[tensor[i], src[i], block] = True
    return used
