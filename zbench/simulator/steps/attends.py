"""Seconds of a step's attends, counted as a plan's are: by what queries see of the keys that they are given."""

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.plans.area import work
from zbench.plans.columns import Column, Lists, Ops
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
    columns = (ops.list0, ops.list1, ops.list2)
    heads = next(column for slot, column in zip(formula.slots, columns, strict=True) if slot == "h")
    sides = (columns[first][mine], relation.first_group), (columns[second][mine], relation.second_group)
    offsets, items, numbers = [0], [], []
    for column, group in sides:
        lists, at = np.unique(column, return_inverse=True)
        numbers.append(len(offsets) - 1 + at.reshape(-1))
        for which in lists.tolist():
            items.append(np.unique(group[layout.lists[which]]))
            offsets.append(offsets[-1] + len(items[-1]))
    low, high = _heads(sizes, heads[mine], plan.num_heads)
    rank = ops.src[mine]
    many = Lists(np.array(offsets, np.int64), np.concatenate(items).astype(np.int64))
    listed = Ops.attends(rank, (low, high), numbers[0], numbers[1])
    # A plan of as many ranks as there are places: a GPU of a tensor-parallel group is one of its own here.
    own = plan.with_(lists=many, forward=listed, backward=listed, num_ranks=int(rank.max()) + 1)
    attend, amount = work(own, listed)
    return cost.attend_seconds(own, listed, attend, amount, backward)


def _heads(sizes: Sizes, lists: Column, num_heads: int) -> tuple[Ints, Ints]:
    """Returns the first and the last query head of lists of parts, counted in the slice of a tensor-parallel group."""
    layout = sizes.layout
    ends = np.concatenate([[0], np.cumsum(layout.index["h"].sizes)])
    rows = {which: layout.lists[which] for which in np.unique(lists).tolist()}
    low = np.array([int(ends[rows[which][0]]) % num_heads for which in lists.tolist()], np.int64)
    return low, low + sizes.of_lists[lists]
