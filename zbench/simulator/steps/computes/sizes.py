"""Sizes of what operations of a template read, make and move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from zbench.describe.arrays import Flags, Floats, Ints
from zbench.simulator.steps.computes.works import CountedAmounts, Named
from zbench.simulator.steps.dataflow.atoms import row_positions
from zbench.simulator.steps.dataflow.layout_arrays import LayoutArrays
from zbench.step.form import LayoutForm
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE
from zbench.step.template import Encoding, Template

_ATTENDS = ("attend", "attend_d")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the operations of templates of one layout, those of one template after another. read: the layout as
    arrays, where it was read."""

    layout: StepLayout
    templates: Sequence[Template]
    read: LayoutArrays | None = None

    @cached_property
    def ops(self) -> Ints:
        """The operations, int64 [operations, columns]."""
        tables = [one.operations.table for one in self.templates]
        return np.concatenate(tables) if len(tables) > 1 else tables[0]

    @cached_property
    def begin(self) -> Ints:
        """The beginning of each template's operations, and the end of the last one's, int64 [templates + 1]."""
        return np.cumsum([0, *(len(one.operations) for one in self.templates)])

    @cached_property
    def arrays(self) -> LayoutArrays:
        """The layout as arrays."""
        return LayoutArrays.of(self.layout) if self.read is None else self.read

    def is_of(self, number: int) -> Flags:
        """Returns whether each operation computes a formula."""
        return np.asarray((self.ops[:, 0] == COMPUTE) & (self.ops[:, 1] == number))

    def of(self, formula: Formula, mine: Ints) -> "ComputeSizes":
        """Returns the sizes of operations `mine`, which compute a formula."""
        return ComputeSizes(self, formula, mine)

    @property
    def of_lists(self) -> Ints:
        """Tokens, heads or columns of every list, int64 [lists]; 0 of lists of places and lanes."""
        return self.layout.sizes_of_lists

    @cached_property
    def named(self) -> Named:
        """The tensors, lists and indices that operations may name, as compiled loops read them."""
        layout, arrays = self.layout, self.arrays
        bound = layout.bound
        index_sizes = arrays.index_sizes.astype(np.float64)
        of_batch = np.array([*(one.of_batch for one in layout.indices), False], np.bool_)
        return Named(
            bound.offsets,
            bound.rows,
            bound.slots,
            layout.lists.offsets,
            self.of_lists,
            index_sizes,
            of_batch[:-1],
            arrays.unit * np.append(index_sizes, 1.0)[arrays.axes].prod(axis=1),
            _gradients_of(layout.form),
            np.asarray(of_batch[arrays.axes].any(axis=1), np.bool_),
        )

    @cached_property
    def attends(self) -> list[tuple[Template, Ints, bool]]:
        """The computes of attention, those of each template and formula together: whose they are, which, and whether
        they are of a backward."""
        found = []
        backward = _attends_of(self.layout.form)
        for template, (begin, end) in zip(self.templates, pairwise(self.begin.tolist()), strict=True):
            for number in template.formulas:
                if number in backward:
                    ops = self.ops[begin:end]
                    mine = begin + np.flatnonzero((ops[:, 0] == COMPUTE) & (ops[:, 1] == number))
                    found.append((template, mine, backward[number]))
        return found

    @cached_property
    def counted(self) -> CountedAmounts:
        """The amounts that are counted formula by formula: of cells of which some tokens go somewhere, and of pairs of
        which some meet."""
        layout = self.layout
        bytes_at, meeting_at = (
            np.full(len(layout.bound.rows), -1, np.int64),
            np.full(len(layout.formulas), -1, np.int64),
        )
        routed, sizes, shares = np.zeros(len(layout.formulas), np.bool_), [np.zeros(0)], [np.zeros(0)]
        for number, given in _counted_of(layout.form).items():
            if not any(number in one.formulas for one in self.templates):
                continue
            formula, begin = layout.formulas[number], int(layout.bound.offsets[number])
            refs = [*formula.operands, *formula.results]
            one = self.of(formula, np.flatnonzero(self.is_of(number)))
            for at in given:
                bytes_at[begin + at] = sum(map(len, sizes))
                sizes.append(one.bytes_of(refs[at]))
            routed[number] = one.routed is not None
            if formula.relation and not routed[number]:
                meeting_at[number] = sum(map(len, shares))
                shares.append(one.meeting)
        return CountedAmounts(bytes_at, np.concatenate(sizes), meeting_at, np.concatenate(shares), routed)

    def moved(self, encodings: tuple[Encoding, ...]) -> Ints:
        """Returns the bytes of the cells that every operation names, int64 [operations]; 0 of computes."""
        ops, layout = self.ops, self.layout
        compute, what, lists = ops[:, 0] == COMPUTE, ops[:, 1], ops[:, 4:6]
        sizes = np.where(lists >= 0, self.of_lists[lists], 1) if len(self.of_lists) else np.ones_like(lists)
        found = np.where(compute, 0, self.arrays.unit[np.where(compute, 0, what)] * sizes[:, 0] * sizes[:, 1])
        routed = [tensor for tensor, one in enumerate(layout.tensors) if one.amounts is not None]
        for tensor in routed:
            mine = np.flatnonzero(~compute & (what == tensor))
            if len(mine):
                found[mine] = layout.tensors[tensor].unit * self.amounts(tensor, *ops[mine, 4:6].T).sum(axis=1)
        known: dict[tuple[int, ...], int] = {}
        for op in np.flatnonzero(ops[:, 10] >= 0).tolist():
            key = tuple(ops[op, [1, 4, 5, 10]].tolist())
            if key not in known:
                known[key] = self._encoded(key, encodings)
            found[op] = known[key]
        return np.asarray(found, np.int64)

    def _encoded(self, what: tuple[int, ...], encodings: tuple[Encoding, ...]) -> int:
        """Returns the bytes of encoded cells, each of which has scales of its own. what: tensor, lists, encoding."""
        tensor, first, second, encoding = what
        layout = self.layout
        size = encodings[encoding].cell_bytes(layout.tensors[tensor].cell_bytes(layout.index))
        sides = [layout.lists[which] if which >= 0 else np.zeros(1, np.int64) for which in (first, second)]
        return int(size.reshape(layout.shape(tensor))[np.ix_(*sides)].sum())

    def whole(self, tensor: int) -> float:
        """Returns the bytes of all of a tensor."""
        one = self.layout.tensors[tensor]
        return one.unit * prod([float(self.layout.size_of[axis]) for axis in one.axes])

    def amounts(self, tensor: int, first: Ints, second: Ints, ref: Reference | None = None) -> Ints:
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


@lru_cache(maxsize=64)
def _counted_of(form: LayoutForm) -> Mapping[int, list[int]]:
    """Returns the formulas that have tensors with amounts, or a relation, but for attention's, each with the places of
    these tensors among its references."""
    found = {}
    for number, formula in enumerate(form.formulas):
        refs = (*formula.operands, *formula.results)
        given = [at for at, one in enumerate(refs) if form.tensors[form.number[one.tensor]].has_amounts]
        if formula.terms[0].function not in _ATTENDS and (given or formula.relation):
            found[number] = given
    return found


@lru_cache(maxsize=64)
def _attends_of(form: LayoutForm) -> Mapping[int, bool]:
    """Returns the formulas of attention, and whether each is of a backward."""
    functions = enumerate(one.terms[0].function for one in form.formulas)
    return {number: function == "attend_d" for number, function in functions if function in _ATTENDS}


@lru_cache(maxsize=64)
def _gradients_of(form: LayoutForm) -> Ints:
    """Returns the tensor that each is the gradient of, itself where it is none, int64 [tensors]."""
    names = [one.name for one in form.tensors]
    return np.array([form.number.get(name.removeprefix("d"), at) for at, name in enumerate(names)], np.int64)


@dataclass(frozen=True)
class ComputeSizes:
    """The sizes of operations `mine`, which compute a formula."""

    of: Sizes
    formula: Formula
    mine: Ints
    _lists: dict[str, tuple[Ints, Ints]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def share(self, ref: Reference) -> Floats:
        """Returns the share of a tensor that each operation names by a reference, [len(mine)]."""
        found = None
        for slot in ref.slots:
            sizes, whole = self._slot(slot), self.of.layout.size_of[self.of.layout.index_of(slot)]
            found = sizes / whole if found is None else found * sizes / whole
        return np.ones(len(self.mine)) if found is None else found

    @cached_property
    def tokens(self) -> Floats:
        """The product of the sizes of the lists along indices of the batch, [len(mine)]; slots that a formula has
        them under in its relation alone count together, as pairs that meet, weighted with the others' share."""
        layout, found = self.of.layout, None
        for slot in self.formula.slots:
            if layout.index[layout.index_of(slot)].of_batch:
                sizes = self._slot(slot).astype(np.float64)
                found = sizes if found is None else found * sizes
        return np.ones(len(self.mine)) if found is None else found

    @cached_property
    def meeting(self) -> Floats:
        """The share of the pairs of the formula's relation, each with its sizes, that meets; 1 where it has none, or
        tensors say how many tokens of each pair do."""
        layout = self.of.layout
        if self.formula.relation is None or self.routed is not None:
            return np.ones(1)
        number, first, second = layout.bound.relation[layout.formulas.index(self.formula)].tolist()
        one, lists = layout.relations[number], layout.lists
        meets = np.zeros((int(one.first_group.max()) + 1, int(one.second_group.max()) + 1))
        meets[np.repeat(np.arange(len(meets)), np.diff(one.offsets)), one.partners] = 1
        left, right = layout.index[one.first].sizes, layout.index[one.second].sizes
        found, slots = [], self.formula.slots
        for a, b in zip(self._named(slots[first]).tolist(), self._named(slots[second]).tolist(), strict=True):
            rows, columns = lists[a], lists[b]
            pairs = left[rows] @ meets[np.ix_(one.first_group[rows], one.second_group[columns])] @ right[columns]
            found.append(pairs / (left[rows].sum() * right[columns].sum()))
        return np.array(found, np.float64)

    def bytes_of(self, ref: Reference) -> Floats:
        """Returns the bytes that each operation names by a reference, [len(mine)]."""
        layout = self.of.layout
        number = layout.number[ref.tensor]
        tensor = layout.tensors[number]
        if tensor.amounts is not None:
            first, second = (self._named(axis.slot) for axis in ref.axes)
            return np.asarray(tensor.unit * self.of.amounts(number, first, second, ref).sum(axis=1), np.float64)
        return self.of.whole(number) * self.share(ref)

    @cached_property
    def routed(self) -> Reference | None:
        """The reference of the formula to tokens that have gone to what its relation's second slot is of, None if no
        tensor of it says how many have."""
        slots, layout = self.formula.relation[1:] if self.formula.relation else (), self.of.layout
        for one in (*self.formula.results, *self.formula.operands):
            tensor = layout.tensors[layout.number[one.tensor]]
            if tensor.amounts is not None and tuple(map(str, one.axes)) == slots:
                return one
        return None

    @cached_property
    def rows(self) -> Floats:
        """The tokens that each operation has of every part of the relation's second index (of every expert), float64
        [len(mine), parts], where a tensor says how many; of others all in one column."""
        one = self.routed
        if one is None:
            return (self.tokens * self.meeting)[:, None]
        first, second = (self._named(axis.slot) for axis in one.axes)
        return self.of.amounts(self.of.layout.number[one.tensor], first, second, one).astype(np.float64)

    def _named(self, slot: str) -> Ints:
        """Returns the list that each operation has of a slot."""
        return self._looked_at(slot)[0]

    def _slot(self, slot: str) -> Ints:
        """Returns the size of the list that each operation has of a slot."""
        return self._looked_at(slot)[1]

    def _looked_at(self, slot: str) -> tuple[Ints, Ints]:
        if slot not in self._lists:
            named = self.of.ops[self.mine, 4 + self.formula.slots.index(slot)]
            self._lists[slot] = named, self.of.of_lists[named]
        return self._lists[slot]
