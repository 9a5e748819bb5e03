"""Seconds of a step's attends, counted as a plan's are: by what queries see of the keys that they are given."""

from dataclasses import dataclass
from itertools import pairwise

import numba as nb
import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.compiled import ENTERED
from zbench.plans.area import Work, work
from zbench.plans.columns import ATTEND, Blocks, Lists, Ops
from zbench.plans.cut_blocks import cut_blocks
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.sizes import Sizes


@dataclass(frozen=True)
class AttendSeconds:
    """The seconds of computes of attention's formulas. plan: the micro-batch's, for its blocks; groups of the relation
    that attention has are its blocks."""

    sizes: Sizes
    plan: Plan
    cost: Cost

    def put(self, seconds: Floats) -> None:
        """Writes the seconds of all of them, float64 [operations]: what is attended is read off the operations' own
        lists, of forwards and backwards together, and the kernels of each template and formula are apart."""
        relation = self.sizes.layout.bound.relation
        alike: dict[int, list[tuple[Ints, bool]]] = {}
        for _, mine, backward in self.sizes.attends:
            alike.setdefault(int(relation[self.sizes.ops[mine[0], 1], 0]), []).append((mine, backward))
        for number, parts in alike.items():
            given = np.concatenate([self._given(mine) for mine, _ in parts])
            own, listed, amount = self._attended(number, given)
            begin = 0
            for mine, backward in parts:
                which = np.arange(begin, begin + len(mine))
                seconds[mine] = self.cost.attend_seconds(own, listed, which, amount.take(which), backward)
                begin += len(mine)

    def _given(self, mine: Ints) -> Ints:
        """Returns what operations `mine`, of one formula, are given: places, and lists of queries, keys and heads."""
        ops, layout = self.sizes.ops[mine], self.sizes.layout
        _, first, second = layout.bound.relation[ops[0, 1]].tolist()
        heads = layout.formulas[int(ops[0, 1])].slots.index("h")
        return np.asarray(ops[:, [2, 4 + first, 4 + second, 4 + heads]], np.int64)

    def _attended(self, relation: int, given: Ints) -> tuple[Plan, Ops, Work]:
        """Returns attends as operations of a plan, with it and their work. relation: that they are for. given: by
        operation, its place and its lists of queries, keys and heads."""
        layout, plan, of = self.sizes.layout, self.plan, self.sizes.layout.relations[relation]
        block = of.second_group  # of every part of t: keys are named by whole blocks
        lists, numbers = list[int](), []
        for column in (given[:, 1], given[:, 2]):
            distinct, at = np.unique(column, return_inverse=True)
            numbers.append(len(lists) + at.reshape(-1))
            lists += distinct.tolist()
        heads = self._first_heads(given[:, 3])
        listed = Ops.attends(given[:, 0], (heads, heads + self.sizes.of_lists[given[:, 3]]), numbers[0], numbers[1])
        # A plan of as many ranks as there are places: a GPU of a tensor-parallel group is one of its own here.
        own = plan.with_(forward=listed, backward=listed, num_ranks=int(given[:, 0].max()) + 1)
        rows = Lists(*_lists_of_blocks(layout.lists.offsets, layout.lists.parts, np.array(lists, np.int64), block))
        if of.first_group.max() == block.max():
            own = own.with_(lists=rows)
            return own, listed, _counted(plan, own.lists, (numbers[0], numbers[1])) or work(own, listed)[1]
        parts, items = cut_blocks(plan.blocks, block, layout.index["t"].sizes), [layout.lists[which] for which in lists]
        amount = work(own.with_(blocks=parts, lists=Lists.of(items)), listed)[1]
        return _named(own, items, rows, parts.tokens), listed, amount

    def _first_heads(self, lists: Ints) -> Ints:
        """Returns the first query head of lists of parts, counted in the slice of a tensor-parallel group."""
        layout = self.sizes.layout
        ends = np.append(0, np.cumsum(layout.index["h"].sizes))
        return np.asarray(ends[layout.lists.parts[layout.lists.offsets[lists]]] % self.plan.num_heads, np.int64)


@nb.njit(**ENTERED)
def _lists_of_blocks(offsets, parts, which, block):  # type: ignore[no-untyped-def]
    """Returns (offsets, items) of lists of blocks, each once and in ascending order, of some lists of parts."""
    begin, room = np.zeros(len(which) + 1, np.int64), 0
    for one in which:
        room += offsets[one + 1] - offsets[one]
    items, count = np.empty(room, np.int64), 0
    for at in range(len(which)):
        first, ascends = count, True
        for part in range(offsets[which[at]], offsets[which[at] + 1]):
            items[count] = block[parts[part]]
            ascends &= count == first or items[count] > items[count - 1]
            count += 1
        if not ascends:
            row = np.unique(items[first:count])
            items[first : first + len(row)] = row
            count = first + len(row)
        begin[at + 1] = count
    return begin, items[:count].copy()


def _named(plan: Plan, items: list[Ints], rows: Lists, tokens: Ints) -> Plan:
    """Returns a plan in which lists are of blocks, as far as the cost of attends looks at one: lists of queries, which
    may be some of a block's, of one that has their tokens. items: of parts; rows: of blocks; tokens: of every part."""
    queries, count = int(plan.forward.kv_blocks.min()), len(plan.blocks)
    lists = [np.array([count + at]) for at in range(queries)] + [rows[at] for at in range(queries, len(rows))]
    sizes = np.concatenate([plan.blocks.tokens, [tokens[row].sum() for row in items[:queries]]]).astype(np.int64)
    blocks = Blocks(0 * sizes, 0 * sizes, sizes, np.arange(len(sizes)), 0 * sizes)
    return plan.with_(blocks=blocks, lists=Lists.of(lists))


def _counted(plan: Plan, lists: Lists, pairs: tuple[Ints, Ints]) -> Work | None:
    """Returns the work of attends, pairs of lists of blocks, where the plan's attends have such pairs, whose work is
    counted once for all; else None."""
    used, known = np.zeros(len(plan.lists), bool), dict[bytes, int]()
    for ops in (plan.forward, plan.backward):
        attends = ops.kind == ATTEND
        used[ops.blocks[attends]] = used[ops.kv_blocks[attends]] = True
    named = np.flatnonzero(used)
    for which, row in zip(
        named.tolist(), _rows_as_bytes(Lists(*_in_order(plan.lists.offsets, plan.lists.items, named))), strict=True
    ):
        known.setdefault(row, which)
    number = np.array([known.get(row, -1) for row in _rows_as_bytes(lists)], np.int64)
    q, kv = number[pairs[0]], number[pairs[1]]
    if len(q) == 0 or min(q.min(), kv.min()) < 0:
        return None
    at = plan.pairs.find(q, kv)
    return None if (at < 0).any() else plan.pairs.work.take(at)


def _rows_as_bytes(lists: Lists) -> list[bytes]:
    """Returns the items of every list as bytes."""
    whole, ends = lists.items.tobytes(), (lists.items.itemsize * lists.offsets).tolist()
    return [whole[begin:end] for begin, end in pairwise(ends)]


@nb.njit(**ENTERED)
def _in_order(offsets, items, which):  # type: ignore[no-untyped-def]
    """Returns (offsets, items) of some lists, of each its items in ascending order."""
    begin, room = np.zeros(len(which) + 1, np.int64), 0
    for at in range(len(which)):
        room += offsets[which[at] + 1] - offsets[which[at]]
        begin[at + 1] = room
    found = np.empty(room, np.int64)
    for at in range(len(which)):
        row = items[offsets[which[at]] : offsets[which[at] + 1]]
        found[begin[at] : begin[at + 1]] = row if (row[1:] >= row[:-1]).all() else np.sort(row)
    return begin, found
