"""Sizes of what operations of a template read, make and move."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.simulator.steps.dataflow.atoms import row_positions
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE
from zbench.step.template import Encoding, Template


@dataclass(frozen=True)
class Sizes:
    """The sizes of a template's operations in a layout."""

    layout: StepLayout
    template: Template

    @property
    def of_lists(self) -> Ints:
        """Tokens, heads or columns of every list, int64 [lists]; 0 of lists of places and lanes."""
        return self.layout.sizes_of_lists

    def moved(self, encodings: tuple[Encoding, ...]) -> Ints:
        """Returns the bytes of the cells that every operation names, int64 [operations]; 0 of computes."""
        ops, layout = self.template.operations, self.layout
        unit = np.array([one.unit for one in layout.tensors], np.int64)
        found = unit[np.where(ops.kind == COMPUTE, 0, ops.what)]
        for column in (ops.list0, ops.list1):
            found = found * np.where(column >= 0, self.of_lists[column], 1)
        routed = [tensor for tensor, one in enumerate(layout.tensors) if one.amounts is not None]
        for tensor in routed:
            mine = np.flatnonzero((ops.kind != COMPUTE) & (ops.what == tensor))
            if len(mine):
                one = layout.tensors[tensor]
                first, second = ops.list0[mine].astype(np.int64), ops.list1[mine].astype(np.int64)
                found[mine] = one.unit * self._amounts(tensor, first, second).sum(axis=1)
        known: dict[tuple[int, ...], int] = {}
        for op in np.flatnonzero(ops.encoding >= 0).tolist():
            key = tuple(int(column[op]) for column in (ops.what, ops.list0, ops.list1, ops.encoding))
            if key not in known:
                known[key] = self._encoded(key, encodings)
            found[op] = known[key]
        return np.asarray(np.where(ops.kind == COMPUTE, 0, found), np.int64)

    def _encoded(self, what: tuple[int, ...], encodings: tuple[Encoding, ...]) -> int:
        """Returns the bytes of encoded cells, each of which has scales of its own. what: tensor, lists, encoding."""
        tensor, first, second, encoding = what
        layout = self.layout
        size = encodings[encoding].cell_bytes(layout.tensors[tensor].cell_bytes(layout.index))
        sides = [layout.lists[which] if which >= 0 else np.zeros(1, np.int64) for which in (first, second)]
        return int(size.reshape(layout.shape(tensor))[np.ix_(*sides)].sum())

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
        """Returns which share of the pairs of a formula's relation, each with its sizes, meets; 1 where it has none, or
        tensors say how many tokens of each pair do."""
        if formula.relation is None or self.routed(formula) is not None:
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
        number = self.layout.number[ref.tensor]
        tensor = self.layout.tensors[number]
        if tensor.amounts is not None:
            first, second = (self._column(formula, axis.slot)[mine] for axis in ref.axes)
            return np.asarray(tensor.unit * self._amounts(number, first, second, ref).sum(axis=1), np.float64)
        whole = tensor.unit * np.prod([float(self.layout.size_of[axis]) for axis in tensor.axes])
        return np.asarray(whole * self.share(formula, ref, mine), np.float64)

    def routed(self, formula: Formula) -> Reference | None:
        """Returns the reference of a formula to tokens that have gone to what its relation's second slot is of, None if
        no tensor of it says how many have."""
        slots = formula.relation[1:] if formula.relation else ()
        for one in (*formula.results, *formula.operands):
            tensor = self.layout.tensors[self.layout.number[one.tensor]]
            if tensor.amounts is not None and tuple(map(str, one.axes)) == slots:
                return one
        return None

    def rows(self, formula: Formula, mine: Ints) -> Floats:
        """Returns the tokens that each operation has of every part of its relation's second index (of every expert),
        float64 [len(mine), parts], where a tensor says how many; of others all in one column."""
        one = self.routed(formula)
        if one is None:
            return (self.tokens(formula, mine) * self.meeting(formula, mine))[:, None]
        first, second = (self._column(formula, axis.slot)[mine] for axis in one.axes)
        return self._amounts(self.layout.number[one.tensor], first, second, one).astype(np.float64)

    def parts(self, formula: Formula, ref: Reference, mine: Ints) -> Ints:
        """Returns the number of parts that operations `mine` name by the first axis of a reference, [len(mine)]."""
        return np.diff(self.layout.lists.offsets)[self._column(formula, ref.axes[0].slot)[mine]]

    def _amounts(self, tensor: int, first: Ints, second: Ints, ref: Reference | None = None) -> Ints:
        """Returns the tokens of the cells that pairs of lists name of a tensor with amounts, for every part of its
        second axis, int64 [pairs, parts]. ref: in which a formula names it, maybe by a finer index's lists."""
        layout, shape = self.layout, self.layout.shape(tensor)
        table = np.asarray(layout.tensors[tensor].amounts, np.int64).reshape(shape)
        table = self._of_finer(table, tensor, ref)
        rows, at = np.unique(first, return_inverse=True)
        where, count = row_positions(layout.lists.offsets, rows.astype(np.int64))
        total = np.zeros((len(where) + 1, shape[1]), np.int64)
        np.cumsum(table[layout.lists.parts[where]], axis=0, out=total[1:])
        ends = np.cumsum(count)
        columns, of = np.unique(second, return_inverse=True)
        named = np.zeros((len(columns), shape[1]), np.int64)
        for row, which in zip(named, columns.tolist(), strict=True):
            row[self._coarser(layout.lists[which], tensor, ref)] = 1
        found: Ints = (total[ends] - total[ends - count])[at.reshape(-1)] * named[of.reshape(-1)]
        return found

    def _of_finer(self, table: Ints, tensor: int, ref: Reference | None) -> Ints:
        """Returns the table of a tensor's cells by the parts of the index that a formula names its first axis by: of
        several that lie in one part each has its share, and together they have all."""
        wanted = self.layout.tensors[tensor].axes[0]
        index = wanted if ref is None else self.layout.index_of(ref.axes[0].slot)
        if index == wanted:
            return table
        part = next(one.part for one in self.layout.maps if (one.coarse, one.fine) == (wanted, index))
        sizes = self.layout.index[index].sizes
        ends = np.array([sizes[: at + 1][part[: at + 1] == one].sum() for at, one in enumerate(part)], np.int64)
        whole = np.bincount(part, weights=sizes).astype(np.int64)[part][:, None]
        begun, done = (table[part] * count[:, None] // whole for count in (ends - sizes, ends))
        return np.asarray(done - begun, np.int64)

    def _coarser(self, parts: Ints, tensor: int, ref: Reference | None) -> Ints:
        """Returns the parts of a tensor's second axis that those which a formula names lie in."""
        wanted = self.layout.tensors[tensor].axes[1]
        index = wanted if ref is None else self.layout.index_of(ref.axes[1].slot)
        if index == wanted:
            return parts
        return next(one.part for one in self.layout.maps if (one.coarse, one.fine) == (wanted, index))[parts]

    def _column(self, formula: Formula, slot: str) -> Ints:
        ops = self.template.operations
        return np.asarray((ops.list0, ops.list1, ops.list2)[formula.slots.index(slot)], np.int64)

    def _list(self, op: int, slot: int) -> int:
        ops = self.template.operations
        return int((ops.list0, ops.list1, ops.list2)[slot][op])

    def _slot(self, formula: Formula, slot: str, mine: Ints) -> Ints:
        ops = self.template.operations
        column = (ops.list0, ops.list1, ops.list2)[formula.slots.index(slot)]
        return self.of_lists[column[mine]]

    def _whole(self, slot: str) -> int:
        return self.layout.size_of[self.layout.index_of(slot)]
