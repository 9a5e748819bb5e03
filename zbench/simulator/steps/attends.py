"""Seconds of a step's attends, counted as a plan's are: by what queries see of the keys that they are given."""

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.plans.area import Work, work
from zbench.plans.columns import ATTEND, Blocks, Column, Lists, Ops
from zbench.plans.cut_blocks import cut_blocks
from zbench.plans.plan import Plan
from zbench.simulator.steps.sizes import Sizes


def attends_seconds(sizes: Sizes, plan: Plan, mine: Ints, backward: bool, cost: Cost) -> Floats:
    """Returns the seconds of operations `mine`, computes of attention's formula, float64 [len(mine)].

    plan: the micro-batch's, for its blocks; groups of the relation that attention has are its blocks. What is attended
    is read off the operations' own lists.
    """
    layout, ops = sizes.layout, sizes.template.operations
    formula = layout.formulas[int(ops.what[mine[0]])]
    number, first, second = layout.bound.relation[int(ops.what[mine[0]])].tolist()
    relation = layout.relations[number]
    block = relation.second_group  # of every part of t: keys are named by whole blocks
    columns = (ops.list0, ops.list1, ops.list2)
    heads = next(column for slot, column in zip(formula.slots, columns, strict=True) if slot == "h")
    lists, numbers = list[int](), []
    for column in (columns[first][mine], columns[second][mine]):
        distinct, at = np.unique(column, return_inverse=True)
        numbers.append(len(lists) + at.reshape(-1))
        lists += distinct.tolist()
    items = [layout.lists[which] for which in lists]
    low, high = _heads(sizes, heads[mine], plan.num_heads)
    rank = ops.src[mine]
    listed = Ops.attends(rank, (low, high), numbers[0], numbers[1])
    # A plan of as many ranks as there are places: a GPU of a tensor-parallel group is one of its own here.
    own = plan.with_(forward=listed, backward=listed, num_ranks=int(rank.max()) + 1)
    if relation.first_group.max() == block.max():
        own = own.with_(lists=Lists.of([_ascending(block[row]) for row in items]))
        amount = _counted(plan, own.lists, (numbers[0], numbers[1])) or work(own, listed)[1]
    else:
        parts = cut_blocks(plan.blocks, block, layout.index["t"].sizes)
        amount = work(own.with_(blocks=parts, lists=Lists.of(items)), listed)[1]
        own = _named(own, items, block, parts.tokens)
    return cost.attend_seconds(own, listed, np.arange(len(listed)), amount, backward)


def _ascending(row: Ints) -> Ints:
    return row if (row[1:] > row[:-1]).all() else np.unique(row)


def _named(plan: Plan, items: list[Ints], block: Ints, tokens: Ints) -> Plan:
    """Returns a plan in which lists are of blocks, as far as the cost of attends looks at one: lists of queries, which
    may be some of a block's, of one that has their tokens. block, tokens: of every part."""
    queries, count = int(plan.forward.kv_blocks.min()), len(plan.blocks)
    lists = [np.array([count + at]) for at in range(queries)] + [_ascending(block[row]) for row in items[queries:]]
    sizes = np.concatenate([plan.blocks.tokens, [tokens[row].sum() for row in items[:queries]]]).astype(np.int64)
    blocks = Blocks(0 * sizes, 0 * sizes, sizes, np.arange(len(sizes)), 0 * sizes)
    return plan.with_(blocks=blocks, lists=Lists.of(lists))


def _counted(plan: Plan, lists: Lists, pairs: tuple[Ints, Ints]) -> Work | None:
    """Returns the work of attends, pairs of lists of blocks, where the plan's attends have such pairs, whose work is
    counted once for all; else None."""
    used: list[Ints] = []
    for ops in (plan.forward, plan.backward):
        used += [column[ops.kind == ATTEND].astype(np.int64) for column in (ops.blocks, ops.kv_blocks)]
    known: dict[bytes, int] = {}
    for which in np.unique(np.concatenate(used)).tolist():
        known.setdefault(np.sort(plan.lists[which]).tobytes(), which)
    number = np.array([known.get(lists[which].tobytes(), -1) for which in range(len(lists))], np.int64)
    q, kv = number[pairs[0]], number[pairs[1]]
    if len(q) == 0 or min(q.min(), kv.min()) < 0:
        return None
    at = plan.pairs.find(q, kv)
    return None if (at < 0).any() else plan.pairs.work.take(at)


def _heads(sizes: Sizes, lists: Column, num_heads: int) -> tuple[Ints, Ints]:
    """Returns the first and the last query head of lists of parts, counted in the slice of a tensor-parallel group."""
    layout = sizes.layout
    ends = np.concatenate([[0], np.cumsum(layout.index["h"].sizes)])
    first = {which: int(ends[layout.lists[which][0]]) % num_heads for which in np.unique(lists).tolist()}
    low = np.array([first[which] for which in lists.tolist()], np.int64)
    return low, low + sizes.of_lists[lists]
