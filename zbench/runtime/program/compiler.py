"""Makes one rank's program of a plan. No torch: numpy only.

Walks the operations that touch the rank in plan order and keeps track of where everything is: which slot has the
copy of a block, which slots hold partial sums of it that nobody took yet. The plan is trusted: zbench.proof.verify has
proven it. Two things are saved that the plan does not ask for: a slot that several messages fill is received into
directly, and partial sums join only when they leave or are home.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags
from zbench.describe.model import DKV, DO, DQ, KV, O, Q
from zbench.plans.area import work
from zbench.plans.plan import ATTEND, Ints, Ops, Plan
from zbench.plans.segments import Segments, segments
from zbench.plans.touches import IS_COPY
from zbench.runtime.program.holders import Heads, Holder, HolderState, HomeRows, Place, find_holders, lookup
from zbench.runtime.program.kept import Kept, kept_of
from zbench.runtime.program.numbering import Numbering, is_all
from zbench.runtime.program.program import HOME, Add, Collect, Fill, KernelCall, Part, Program, Read, Send, Slot, is_run
from zbench.runtime.program.slots import received_in_place, uses_of
from zbench.runtime.program.touched import Touched
from zbench.runtime.program.ways import Ways
from zbench.simulator.hops import hops

Index = Callable[[Ints], Any]  # what an array of rows becomes for the runtime
Cut = Callable[[Ints, Ints, Flags, Ints], Any]  # what a kernel makes of segments' queries, before, diagonal and left


class Compiler:
    """A compiler of one plan for one rank: `compile()` gives (forward, backward). One object a plan and rank.

    is_paced: attends and linear modules are told their modelled seconds.
    """

    def __init__(self, plan: Plan, rank: int, cost: Cost, index: Index, cut: Cut, is_paced: bool = False) -> None:
        self.is_paced = is_paced
        self.plan, self.rank, self.cost, self.cut = plan, rank, cost, cut
        self.layout = HomeRows.of(plan, rank)
        self.rows = Numbering(plan.blocks.tokens, index)

    def compile(self) -> tuple[Program, Program]:
        """Returns the rank's programs, (forward, backward)."""
        nothing = Kept((), (), (), {})
        forward, state = self._list(self.plan.forward, False, nothing)
        return forward, self._list(self.plan.backward, True, kept_of(self.plan, self.rank, forward, state))[0]

    # -- one list of operations -----------------------------------------------------------------------
    def _list(self, ops: Ops, backward: bool, kept: Kept) -> tuple[Program, HolderState]:
        size = self.cost.message_bytes(self.plan, ops)
        ways = Ways.of(hops(self.plan, ops, size, self.cost.cluster), self.rank)
        mine = np.flatnonzero((ops.src == self.rank) | (ops.dst == self.rank))
        pairs = self._segments(ops.take(mine))
        self._seconds = self._modelled(ops, backward) if self.is_paced else {}
        state = HolderState(slots=list(kept.slots), made=dict(kept.made))
        for tensor, holder in kept.copies:
            self._hold(state.copies, tensor, holder)
        model = self.cost.model
        self.touched = Touched(self.layout.num_tokens, model.num_heads // model.num_kv_heads)
        attends: list[KernelCall] = []
        sends: dict[int, Send] = {}
        arrivals: dict[int, int] = {}
        names = ("kind", "tensor", "src", "head_lo", "head_hi", "blocks", "kv_blocks")
        columns = zip(*(getattr(ops, name)[mine].tolist() for name in names), strict=True)
        for op, (kind, tensor, src, lo, hi, row, kv_row) in zip(mine.tolist(), columns, strict=True):
            if kind == ATTEND:
                if len(pairs[row, kv_row].queries):
                    step = self._attend(state, op, (lo, hi), (row, kv_row), pairs[row, kv_row], backward)
                    attends.append(step)
                    state.added |= {add.slot: len(attends) for add in step.adds}
            elif src == self.rank:
                send = self._send(state, op, tensor, (lo, hi), row)
                sends[op] = replace(send, hops=ways.out(op))
            else:
                arrivals[op] = self._arrive(state, tensor, (lo, hi), row)
        sums = (DQ, DKV) if backward else (O,)
        collects = tuple(self._collect(state, tensor) for tensor in sums)
        everything = self.layout.num_tokens * self.cost.model.num_heads
        covered = tuple(tensor for tensor in sums if self.touched.afresh.get(tensor, 0) == everything)
        attends = received_in_place(state, attends, set(arrivals.values()))
        receives, arrives = ways.receives(arrivals, state.slots)
        leaving = ways.sends(sends, receives)
        uses = uses_of(state.slots, attends, leaving, collects)
        deltas = DO in {one.tensor for one in sends.values()} | {one.tensor for one in state.slots}
        return Program(
            tuple(state.slots),
            uses,
            kept.number,
            tuple(attends),
            receives,
            arrives,
            leaving,
            collects,
            covered,
            deltas,
            self._linear(backward),
        ), state

    def _linear(self, backward: bool) -> float:
        if not self.is_paced:
            return 0.0
        seconds = self.cost.backward_linear_seconds if backward else self.cost.linear_seconds
        return float(seconds(np.array([self.layout.num_tokens]))[0])

    def _modelled(self, ops: Ops, backward: bool) -> dict[int, tuple[float, float]]:
        """Returns the seconds of attends on the cluster's device, (in all, of these repacking), by operation."""
        attend, amount = work(self.plan, ops)
        seconds = self.cost.attend_seconds(self.plan, ops, attend, amount, backward)
        repacking = self.cost.repacking_seconds(self.plan, ops, attend)
        return dict(zip(attend.tolist(), zip(seconds.tolist(), repacking.tolist(), strict=True), strict=True))

    def _segments(self, ops: Ops) -> dict[tuple[int, int], Segments]:
        attend = ops.kind == ATTEND
        pairs = np.unique(np.stack([ops.blocks[attend], ops.kv_blocks[attend]]), axis=1)
        found = segments(self.plan, pairs[0], pairs[1])
        return {(q, kv): one for (q, kv), one in zip(pairs.T.tolist(), found, strict=True)}

    # -- copies ---------------------------------------------------------------------------------------
    def _arrive(self, state: HolderState, tensor: int, heads: Heads, row: int) -> int:
        """Makes a new slot for a message; it holds copies, or sums that nobody took yet."""
        blocks = self.plan.lists[row]
        first, rows = self.rows.firsts(blocks)
        state.slots.append(Slot(tensor, *heads, rows))
        holder = Holder(len(state.slots) - 1, *heads, blocks, first, np.ones(len(blocks), bool))
        if IS_COPY[tensor]:
            self._hold(state.copies, tensor, holder)
        else:
            self._hold(state.sums, tensor, holder)
            state.order.setdefault(tensor, []).append(holder)
        return holder.slot

    def _hold(self, table: dict[tuple[int, int], list[Place]], tensor: int, holder: Holder) -> None:
        for at, block in enumerate(holder.blocks.tolist()):
            table.setdefault((tensor, block), []).append((holder, at))

    def _read(self, state: HolderState, tensor: int, heads: Heads, row: int, rows: Ints) -> tuple[Read, list[Fill]]:
        """Returns the rows (of the list) as one place that has them all; fills a slot where they are in several."""
        blocks = self.plan.lists[row]
        at_home = self.layout.row[blocks] >= 0
        if at_home.all():
            return Read(tensor, HOME, self.rows.index(self.rows.of(blocks, self.layout.row[blocks])[rows]), *heads), []
        lo, hi = heads
        if not at_home.any():
            for holder, _ in state.copies.get((tensor, int(blocks[0])), ()):
                if holder.lo <= lo and hi <= holder.hi and np.isin(blocks, holder.blocks).all():
                    there = self.rows.of(blocks, lookup(holder, blocks))
                    return Read(tensor, holder.slot, self.rows.index(there[rows]), *heads), []
        key = (tensor, row, lo, hi)
        fills = []
        if key not in state.made:
            parts = self._copy_parts(state, tensor, heads, blocks)
            state.slots.append(Slot(tensor, lo, hi, self.rows.firsts(blocks)[1]))
            state.made[key] = len(state.slots) - 1
            fills = [Fill(state.made[key], tuple(parts))]
        return Read(tensor, state.made[key], self.rows.index(rows), *heads), fills

    def _copy_parts(self, state: HolderState, tensor: int, heads: Heads, blocks: Ints) -> list[Part]:
        """Returns all places that together have `blocks` for these heads."""
        first, _ = self.rows.firsts(blocks)
        home = np.flatnonzero(self.layout.row[blocks] >= 0)
        parts = []
        if len(home):
            there, here = self.rows.both(blocks[home], self.layout.row[blocks[home]], first[home])
            parts.append(Part(HOME, there, *heads, here, fresh=True))
        away = np.flatnonzero(self.layout.row[blocks] < 0)
        for holder, mine, theirs in find_holders(state.copies, tensor, blocks, away, heads):
            there, here = self.rows.both(blocks[mine], holder.row[theirs], first[mine])
            lo, hi = max(heads[0], holder.lo), min(heads[1], holder.hi)
            parts.append(Part(holder.slot, there, lo, hi, here, fresh=True))
        return parts

    # -- attends --------------------------------------------------------------------------------------
    def _attend(
        self, state: HolderState, op: int, heads: Heads, rows: tuple[int, int], found: Segments, backward: bool
    ) -> KernelCall:
        row, kv_row = rows
        q, fills = self._read(state, Q, heads, row, found.q_rows)
        kv, more = self._read(state, KV, heads, kv_row, found.kv_rows)
        fills += more
        do = None
        if backward:
            do, more = self._read(state, DO, heads, row, found.q_rows)
            fills += more
            adds = (self._add(state, DQ, heads, row, found.q_rows), self._add(state, DKV, heads, kv_row, found.kv_rows))
        else:
            adds = (self._add(state, O, heads, row, found.q_rows),)  # type: ignore[assignment]
        cuts = self.cut(found.queries, found.before, found.diagonal, found.left)
        return KernelCall(op, *heads, q, kv, do, cuts, tuple(fills), adds, *self._seconds.get(op, (0.0, 0.0)))

    def _add(self, state: HolderState, tensor: int, heads: Heads, row: int, rows: Ints) -> Add:
        """Returns the rank's own rows where all blocks are at home; else a slot of partial sums for the whole list."""
        blocks = self.plan.lists[row]
        once = tensor != DKV or int(np.bincount(rows).max()) == 1  # keys that several segments see come several times
        if (self.layout.row[blocks] >= 0).all():
            rows = self.rows.of(blocks, self.layout.row[blocks])[rows]
            fresh = self.touched.is_fresh(tensor, heads, rows, once)
            count = self.layout.num_tokens if heads == (0, self.cost.model.num_heads) else -1
            return Add(tensor, HOME, self.rows.index(rows), *heads, fresh, is_all(rows, count))
        key = (tensor, row, *heads)
        holder = state.adding.get(key)
        first, count = self.rows.firsts(blocks)
        whole = is_all(rows, count)
        if holder is None or not holder.live.all():
            state.slots.append(Slot(tensor, *heads, count))
            holder = Holder(len(state.slots) - 1, *heads, blocks, first, np.ones(len(blocks), bool))
            state.adding[key] = holder
            self._hold(state.sums, tensor, holder)
            state.order.setdefault(tensor, []).append(holder)
            return Add(tensor, holder.slot, self.rows.index(rows), *heads, once, whole)
        return Add(tensor, holder.slot, self.rows.index(rows), *heads, False, whole)

    # -- messages -------------------------------------------------------------------------------------
    def _send(self, state: HolderState, op: int, tensor: int, heads: Heads, row: int) -> Send:
        blocks = self.plan.lists[row]
        _, count = self.rows.firsts(blocks)
        if IS_COPY[tensor]:
            parts, start = self._copy_parts(state, tensor, heads, blocks), False
        else:
            parts, start = self._take(state, tensor, heads, blocks)
        after = max((state.added.get(part.slot, 0) for part in parts if part.slot != HOME), default=0)
        whole = HOME
        for part in parts:
            slot = state.slots[part.slot] if part.slot != HOME else None
            everything = slice(0, count)
            if (
                slot
                and (slot.lo, slot.hi, slot.rows) == (*heads, count)
                and is_run(part.rows, everything)
                and is_run(part.to, everything)
            ):
                whole, parts = part.slot, [other for other in parts if other is not part]
                break
        return Send(op, tensor, *heads, count, whole, tuple(parts), (), after, start)

    def _take(self, state: HolderState, tensor: int, heads: Heads, blocks: Ints) -> tuple[list[Part], bool]:
        """Takes every partial sum of `blocks` within these heads; none of them is there any more afterwards.

        Also whether they need zeros to begin with: what nobody has added to is a sum of nothing.
        """
        first, count = self.rows.firsts(blocks)
        parts = []
        done = np.zeros(count, bool)
        afresh = 0
        for holder, mine, theirs in find_holders(state.sums, tensor, blocks, np.arange(len(blocks)), heads):
            holder.live[theirs] = False
            there = self.rows.of(blocks[mine], holder.row[theirs])
            here = self.rows.of(blocks[mine], first[mine])
            fresh = not done[here].any()
            done[here] = True
            afresh += len(here) * (holder.hi - holder.lo) if fresh else 0
            parts.append(Part(holder.slot, self.rows.index(there), holder.lo, holder.hi, self.rows.index(here), fresh))
        return parts, afresh != count * (heads[1] - heads[0])

    def _collect(self, state: HolderState, tensor: int) -> Collect:
        """Collects partial sums of the rank's own blocks that lie in slots."""
        parts = []
        for holder in state.order.get(tensor, ()):
            mine = np.flatnonzero((self.layout.row[holder.blocks] >= 0) & holder.live)
            if len(mine):
                blocks = holder.blocks[mine]
                there = self.rows.of(blocks, holder.row[mine])
                here = self.rows.of(blocks, self.layout.row[blocks])
                fresh = self.touched.is_fresh(tensor, (holder.lo, holder.hi), here)
                parts.append(
                    Part(holder.slot, self.rows.index(there), holder.lo, holder.hi, self.rows.index(here), fresh)
                )
        return Collect(tensor, tuple(parts))
