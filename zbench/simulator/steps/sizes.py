"""Sizes of what operations of a template read, make and move."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.simulator.steps.atoms import row_positions
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE
from zbench.step.template import Encoding, Template


@dataclass(frozen=True)
class Sizes:
    """The sizes of a template's operations in a layout."""

    layout: StepLayout
    template: Template

    @cached_property
    def of_lists(self) -> Ints:
        """Tokens, heads or columns of every list, int64 [lists]; 0 of lists of places and lanes."""
        lists, layout = self.layout.lists, self.layout
        sizes = [layout.index[name].sizes if name in layout.index else np.zeros(0, np.int64) for name in lists.indices]
        begin = np.cumsum([0, *(len(one) for one in sizes)])[:-1]
        named = np.array([name in layout.index for name in lists.indices])[lists.of]
        which = np.flatnonzero(named)
        at, count = row_positions(lists.offsets, which)
        every = np.concatenate([*sizes, np.zeros(0, np.int64)])
        total = np.concatenate([[0], np.cumsum(every[np.repeat(begin[lists.of[which]], count) + lists.parts[at]])])
        ends = np.cumsum(count)
        found = np.zeros(len(lists), np.int64)
        found[which] = total[ends] - total[ends - count]
        return found

    def moved(self, encodings: tuple[Encoding, ...]) -> Ints:
        """Returns the bytes of the cells that every operation names, int64 [operations]; 0 of computes."""
        ops, layout = self.template.operations, self.layout
        unit = np.array([one.unit for one in layout.tensors], np.int64)
        found = unit[np.where(ops.kind == COMPUTE, 0, ops.what)]
        for column in (ops.list0, ops.list1):
            found = found * np.where(column >= 0, self.of_lists[column], 1)
        bits = np.array([one.bits for one in encodings] + [16], np.int64)[ops.encoding]
        narrow = -(-found * bits // 16)  # of elements of two bytes
        return np.asarray(np.where(ops.kind == COMPUTE, 0, np.where(ops.encoding >= 0, narrow, found)), np.int64)

    def share(self, formula: Formula, ref: Reference, mine: Ints) -> Floats:
        """Returns the share of a tensor that operations `mine` of a formula name by a reference, [len(mine)]."""
        found = np.ones(len(mine))
        for slot in ref.slots:
            found = found * self._slot(formula, slot, mine) / self._whole(slot)
        return found

    def tokens(self, formula: Formula, mine: Ints) -> Floats:
        """Returns the product of the sizes of the lists along indices of the batch, [len(mine)]; slots that a formula
        has them under in its relation alone count together, as pairs that meet, weighted with the others' share."""
        slots = [slot for slot in formula.slots if self.layout.index[self.layout.index_of(slot)].of_batch]
        found = np.ones(len(mine))
        for slot in slots:
            found = found * self._slot(formula, slot, mine)
        return found

    def meeting(self, formula: Formula, mine: Ints) -> Floats:
        """Returns which share of the pairs of a formula's relation, each with its sizes, meets; 1 where it has none."""
        if formula.relation is None:
            return np.ones(len(mine))
        number, first, second = self.layout.bound.relation[self.layout.formulas.index(formula)].tolist()
        one, lists = self.layout.relations[number], self.layout.lists
        meets = np.zeros((int(one.first_group.max()) + 1, int(one.second_group.max()) + 1))
        meets[np.repeat(np.arange(len(meets)), np.diff(one.offsets)), one.partners] = 1
        left, right = self.layout.index[one.first].sizes, self.layout.index[one.second].sizes
        found = []
        for op in mine.tolist():
            a, b = lists[self._list(op, first)], lists[self._list(op, second)]
            pairs = left[a] @ meets[np.ix_(one.first_group[a], one.second_group[b])] @ right[b]
            found.append(pairs / (left[a].sum() * right[b].sum()))
        return np.array(found, np.float64)

    def bytes_of(self, formula: Formula, ref: Reference, mine: Ints) -> Floats:
        """Returns the bytes that a reference of a formula names, [len(mine)]."""
        tensor = self.layout.tensors[self.layout.number[ref.tensor]]
        whole = tensor.unit * np.prod([float(self.layout.index[axis].sizes.sum()) for axis in tensor.axes])
        return np.asarray(whole * self.share(formula, ref, mine), np.float64)

    def _list(self, op: int, slot: int) -> int:
        ops = self.template.operations
        return int((ops.list0, ops.list1, ops.list2)[slot][op])

    def _slot(self, formula: Formula, slot: str, mine: Ints) -> Ints:
        ops = self.template.operations
        column = (ops.list0, ops.list1, ops.list2)[formula.slots.index(slot)]
        return self.of_lists[column[mine]]

    def _whole(self, slot: str) -> int:
        return int(self.layout.index[self.layout.index_of(slot)].sizes.sum())
