"""Makes one rank's program of a plan. No torch: numpy only.

Walks the operations that touch the rank in plan order and keeps track of where everything is: which slot has the
copy of a block, which slots hold partial sums of it that nobody took yet. The plan is trusted: zbench.verify has
proven it. Two things are saved that the plan does not ask for: a slot that several messages fill is received into
directly, and partial sums join only when they leave or are home.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.cost import Cost
from zbench.dataflow import IS_COPY
from zbench.legs import legs
from zbench.model import DKV, DO, DQ, KV, O, Q
from zbench.plan import ATTEND, Ints, Ops, Plan
from zbench.runtime.holders import Flags, Heads, Holder, Layout, Place, State, held, lookup
from zbench.runtime.program import (
    HOME,
    Add,
    Attend,
    Collect,
    Fill,
    Part,
    Program,
    Read,
    Relay,
    Rows,
    Send,
    Slot,
)
from zbench.runtime.ways import Ways
from zbench.segments import Segments, segments

Index = Callable[[Ints], Any]  # what an array of rows becomes for the runtime
Cut = Callable[[Ints, Ints, Flags], Any]  # what (queries, keys before, diagonal) of segments become for the kernel


@dataclass(frozen=True)
class Kept:
    """What the forward leaves for the backward: its slots, and where they have which copies."""

    slots: tuple[Slot, ...]
    number: tuple[int, ...]
    copies: tuple[tuple[int, Holder], ...]  # (tensor, holder), slots by their new numbers
    made: dict[tuple[int, int, int, int], int]


class Compiler:
    """For one plan and rank: `compile()` gives (forward, backward). One object a plan and rank."""

    def __init__(self, plan: Plan, rank: int, cost: Cost, index: Index, cut: Cut) -> None:
        self.plan, self.rank, self.cost, self.index, self.cut = plan, rank, cost, index, cut
        self.layout = Layout.of(plan, rank)
        self.tokens = plan.blocks.tokens

    def compile(self) -> tuple[Program, Program]:
        nothing = Kept((), (), (), {})
        forward, state = self._list(self.plan.forward, False, nothing)
        return forward, self._list(self.plan.backward, True, self._kept(forward, state))[0]

    # -- one list of operations -----------------------------------------------------------------------
    def _list(self, ops: Ops, backward: bool, kept: Kept) -> tuple[Program, State]:
        size = self.cost.message_bytes(self.plan, ops)
        ways = Ways.of(legs(self.plan, ops, size, self.cost.cluster), self.rank)
        mine = np.flatnonzero((ops.src == self.rank) | (ops.dst == self.rank))
        pairs = self._segments(ops.take(mine))
        state = State(slots=list(kept.slots), made=dict(kept.made))
        for tensor, holder in kept.copies:
            self._hold(state.copies, tensor, holder)
        self._touched: dict[int, list[tuple[Heads, np.ndarray]]] = {}
        self._afresh: dict[int, int] = {}
        attends: list[Attend] = []
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
                sends[op] = replace(send, legs=ways.out(op))
            else:
                arrivals[op] = self._arrive(state, tensor, (lo, hi), row)
        sums = (DQ, DKV) if backward else (O,)
        collects = tuple(self._collect(state, tensor) for tensor in sums)
        everything = self.layout.num_tokens * self.cost.model.num_heads
        covered = tuple(tensor for tensor in sums if self._afresh.get(tensor, 0) == everything)
        attends = _received_in_place(state, attends, set(arrivals.values()))
        receives, arrives = ways.receives(arrivals, state.slots)
        leaving = ways.sends(sends, receives)
        uses = _uses(state.slots, attends, leaving, collects)
        deltas = DO in {one.tensor for one in sends.values()} | {one.tensor for one in state.slots}
        return Program(
            tuple(state.slots), uses, kept.number, tuple(attends), receives, arrives, leaving, collects, covered, deltas
        ), state

    def _segments(self, ops: Ops) -> dict[tuple[int, int], Segments]:
        attend = ops.kind == ATTEND
        pairs = np.unique(np.stack([ops.blocks[attend], ops.kv_blocks[attend]]), axis=1)
        found = segments(self.plan, pairs[0], pairs[1])
        return {(q, kv): one for (q, kv), one in zip(pairs.T.tolist(), found, strict=True)}

    def _kept(self, forward: Program, state: State) -> Kept:
        """Received copies marked `keep`, and filled slots made of nothing else."""
        ops = self.plan.forward
        kept = np.flatnonzero((ops.keep == 1) & (ops.dst == self.rank))
        wanted = {(int(ops.tensor[op]), int(ops.blocks[op]), int(ops.head_lo[op]), int(ops.head_hi[op])) for op in kept}
        arrived = [
            (tensor, holder)
            for (tensor, _), places in state.copies.items()
            for holder, at in places
            if at == 0 and self._is_arrival(holder, tensor, wanted)
        ]
        stays = {holder.slot for _, holder in arrived}
        made = {}
        for key, slot in state.made.items():
            sources = {part.slot for step in forward.attends for fill in step.fills if fill.slot == slot
                       for part in fill.parts} - {HOME}  # fmt: skip
            inner = {at for at, one in enumerate(state.slots) if one.inside and one.inside[0] == slot}
            if sources | inner and sources | inner <= stays:
                made[key] = slot
        parents = {one.inside[0] for one in (state.slots[slot] for slot in stays) if one.inside}
        numbers = sorted(stays | set(made.values()) | parents)
        new = {number: at for at, number in enumerate(numbers)}
        slots = [state.slots[number] for number in numbers]
        slots = [replace(one, inside=(new[one.inside[0]], one.inside[1])) if one.inside else one for one in slots]
        copies = tuple((tensor, replace(holder, slot=new[holder.slot])) for tensor, holder in arrived)
        return Kept(tuple(slots), tuple(numbers), copies, {key: new[slot] for key, slot in made.items()})

    def _is_arrival(self, holder: Holder, tensor: int, wanted: set[tuple[int, int, int, int]]) -> bool:
        rows = self.plan.lists
        return any(
            (tensor, holder.lo, holder.hi) == (t, lo, hi) and np.array_equal(rows[row], holder.blocks)
            for t, row, lo, hi in wanted
        )

    # -- copies ---------------------------------------------------------------------------------------
    def _arrive(self, state: State, tensor: int, heads: Heads, row: int) -> int:
        """A new slot for a message; it holds copies, or sums that nobody took yet."""
        blocks = self.plan.lists[row]
        first, rows = self._rows(blocks)
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

    def _rows(self, blocks: Ints) -> tuple[Ints, int]:
        """(first row of every block in list order, rows in all)."""
        ends = np.cumsum(self.tokens[blocks])
        return ends - self.tokens[blocks], int(ends[-1])

    def _read(self, state: State, tensor: int, heads: Heads, row: int, rows: Ints) -> tuple[Read, list[Fill]]:
        """Rows (of the list) as one place that has them all; fills a slot where they are in several."""
        blocks = self.plan.lists[row]
        at_home = self.layout.row[blocks] >= 0
        if at_home.all():
            return Read(tensor, HOME, self._index(self._list_rows(blocks, self.layout.row[blocks])[rows]), *heads), []
        lo, hi = heads
        if not at_home.any():
            for holder, _ in state.copies.get((tensor, int(blocks[0])), ()):
                if holder.lo <= lo and hi <= holder.hi and np.isin(blocks, holder.blocks).all():
                    there = self._list_rows(blocks, lookup(holder, blocks))
                    return Read(tensor, holder.slot, self._index(there[rows]), *heads), []
        key = (tensor, row, lo, hi)
        fills = []
        if key not in state.made:
            parts = self._copy_parts(state, tensor, heads, blocks)
            state.slots.append(Slot(tensor, lo, hi, self._rows(blocks)[1]))
            state.made[key] = len(state.slots) - 1
            fills = [Fill(state.made[key], tuple(parts))]
        return Read(tensor, state.made[key], self._index(rows), *heads), fills

    def _copy_parts(self, state: State, tensor: int, heads: Heads, blocks: Ints) -> list[Part]:
        """All places that together have `blocks` for these heads."""
        first, _ = self._rows(blocks)
        home = np.flatnonzero(self.layout.row[blocks] >= 0)
        parts = []
        if len(home):
            there, here = self._both(blocks[home], self.layout.row[blocks[home]], first[home])
            parts.append(Part(HOME, there, *heads, here, fresh=True))
        away = np.flatnonzero(self.layout.row[blocks] < 0)
        for holder, mine, theirs in held(state.copies, tensor, blocks, away, heads):
            there, here = self._both(blocks[mine], holder.row[theirs], first[mine])
            lo, hi = max(heads[0], holder.lo), min(heads[1], holder.hi)
            parts.append(Part(holder.slot, there, lo, hi, here, fresh=True))
        return parts

    # -- attends --------------------------------------------------------------------------------------
    def _attend(
        self, state: State, op: int, heads: Heads, rows: tuple[int, int], found: Segments, backward: bool
    ) -> Attend:
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
        cuts = self.cut(found.queries, found.before, found.diagonal)
        return Attend(op, *heads, q, kv, do, cuts, tuple(fills), adds)

    def _add(self, state: State, tensor: int, heads: Heads, row: int, rows: Ints) -> Add:
        """The rank's own rows where all blocks are at home; else a slot of partial sums for the whole list."""
        blocks = self.plan.lists[row]
        once = tensor != DKV or int(np.bincount(rows).max()) == 1  # keys that several segments see come several times
        if (self.layout.row[blocks] >= 0).all():
            rows = self._list_rows(blocks, self.layout.row[blocks])[rows]
            fresh = self._is_fresh(tensor, heads, rows, once)
            count = self.layout.num_tokens if heads == (0, self.cost.model.num_heads) else -1
            return Add(tensor, HOME, self._index(rows), *heads, fresh, _is_all(rows, count))
        key = (tensor, row, *heads)
        holder = state.adding.get(key)
        first, count = self._rows(blocks)
        whole = _is_all(rows, count)
        if holder is None or not holder.live.all():
            state.slots.append(Slot(tensor, *heads, count))
            holder = Holder(len(state.slots) - 1, *heads, blocks, first, np.ones(len(blocks), bool))
            state.adding[key] = holder
            self._hold(state.sums, tensor, holder)
            state.order.setdefault(tensor, []).append(holder)
            return Add(tensor, holder.slot, self._index(rows), *heads, once, whole)
        return Add(tensor, holder.slot, self._index(rows), *heads, False, whole)

    def _is_fresh(self, tensor: int, heads: Heads, rows: Ints, once: bool = True) -> bool:
        """Whether nothing was added to these rows of the rank's own yet; they count as touched from now on.

        once: no row is there twice; else they are not fresh. Query heads that share a kv head share its gradient.
        """
        if tensor == DKV:
            group = self.cost.model.num_heads // self.cost.model.num_kv_heads
            heads = (heads[0] // group * group, -(-heads[1] // group) * group)
        seen = self._touched.setdefault(tensor, [])
        fresh = once and not any(touched[rows].any() for (lo, hi), touched in seen if lo < heads[1] and heads[0] < hi)
        if fresh:
            self._afresh[tensor] = self._afresh.get(tensor, 0) + len(rows) * (heads[1] - heads[0])
        for known, touched in seen:
            if known == heads:
                touched[rows] = True
                return fresh
        touched = np.zeros(self.layout.num_tokens, bool)
        touched[rows] = True
        seen.append((heads, touched))
        return fresh

    # -- messages -------------------------------------------------------------------------------------
    def _send(self, state: State, op: int, tensor: int, heads: Heads, row: int) -> Send:
        blocks = self.plan.lists[row]
        _, count = self._rows(blocks)
        if IS_COPY[tensor]:
            parts, start = self._copy_parts(state, tensor, heads, blocks), False
        else:
            parts, start = self._take(state, tensor, heads, blocks)
        after = max((state.added.get(part.slot, 0) for part in parts if part.slot != HOME), default=0)
        whole = HOME
        for part in parts:
            slot = state.slots[part.slot] if part.slot != HOME else None
            everything = slice(0, count)
            if slot and (slot.lo, slot.hi, slot.rows) == (*heads, count) and part.rows == part.to == everything:
                whole, parts = part.slot, [other for other in parts if other is not part]
                break
        return Send(op, tensor, *heads, count, whole, tuple(parts), (), after, start)

    def _take(self, state: State, tensor: int, heads: Heads, blocks: Ints) -> tuple[list[Part], bool]:
        """Every partial sum of `blocks` within these heads; none of them is there any more afterwards.

        Also whether they need zeros to begin with: what nobody has added to is a sum of nothing.
        """
        first, count = self._rows(blocks)
        parts = []
        done = np.zeros(count, bool)
        afresh = 0
        for holder, mine, theirs in held(state.sums, tensor, blocks, np.arange(len(blocks)), heads):
            holder.live[theirs] = False
            there = self._list_rows(blocks[mine], holder.row[theirs])
            here = self._list_rows(blocks[mine], first[mine])
            fresh = not done[here].any()
            done[here] = True
            afresh += len(here) * (holder.hi - holder.lo) if fresh else 0
            parts.append(Part(holder.slot, self._index(there), holder.lo, holder.hi, self._index(here), fresh))
        return parts, afresh != count * (heads[1] - heads[0])

    def _collect(self, state: State, tensor: int) -> Collect:
        """Partial sums of the rank's own blocks that lie in slots."""
        parts = []
        for holder in state.order.get(tensor, ()):
            mine = np.flatnonzero((self.layout.row[holder.blocks] >= 0) & holder.live)
            if len(mine):
                blocks = holder.blocks[mine]
                there = self._list_rows(blocks, holder.row[mine])
                here = self._list_rows(blocks, self.layout.row[blocks])
                fresh = self._is_fresh(tensor, (holder.lo, holder.hi), here)
                parts.append(Part(holder.slot, self._index(there), holder.lo, holder.hi, self._index(here), fresh))
        return Collect(tensor, tuple(parts))

    # -- rows -----------------------------------------------------------------------------------------
    def _list_rows(self, blocks: Ints, first: Ints) -> Ints:
        """The rows of `blocks`, which begin at `first`, one block after another."""
        counts = self.tokens[blocks]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        return np.asarray(np.arange(total) + np.repeat(first - (ends - counts), counts), np.int64)

    def _both(self, blocks: Ints, there: Ints, here: Ints) -> tuple[Rows, Rows]:
        return self._index(self._list_rows(blocks, there)), self._index(self._list_rows(blocks, here))

    def _index(self, rows: Ints) -> Rows:
        """A slice where rows follow one another, which needs no copy."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return self.index(rows)


def _is_all(rows: Ints, count: int) -> bool:
    """Whether these are all of `count` rows, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _received_in_place(state: State, attends: list[Attend], arrivals: set[int]) -> list[Attend]:
    """Messages that fill a run of rows of a filled slot, all heads of it, arrive there; no part copies them."""
    out = []
    for step in attends:
        fills = []
        for fill in step.fills:
            target, parts = state.slots[fill.slot], []
            for part in fill.parts:
                slot = state.slots[part.slot] if part.slot != HOME else None
                if (
                    slot and slot.inside is None and part.slot in arrivals and slot.tensor in (Q, KV)
                    and (slot.lo, slot.hi) == (target.lo, target.hi)
                    and part.rows == slice(0, slot.rows) and isinstance(part.to, slice)
                ):  # fmt: skip
                    state.slots[part.slot] = replace(slot, inside=(fill.slot, part.to.start))
                else:
                    parts.append(part)
            fills.append(Fill(fill.slot, tuple(parts)))
        out.append(replace(step, fills=tuple(fills)))
    return out


def _uses(
    slots: list[Slot], attends: list[Attend], sends: tuple[Send | Relay, ...], collects: tuple[Collect, ...]
) -> tuple[int, ...]:
    """How often each slot is read, so that its memory can go after the last time."""
    uses = [0] * len(slots)
    parts = [part for step in attends for fill in step.fills for part in fill.parts]
    parts += [part for send in sends if isinstance(send, Send) for part in send.parts]
    parts += [part for collect in collects for part in collect.parts]
    places = [part.slot for part in parts] + [send.whole for send in sends if isinstance(send, Send)]
    places += [read.slot for step in attends for read in (step.q, step.kv, step.do) if read]
    for slot in places:
        if slot != HOME:
            uses[slot] += 1
    return tuple(uses)
