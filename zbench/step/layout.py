"""A layout: the indices, tensors and formulas that operations refer to, as a batch cuts them."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.contributions import MapTables, contributions_of, offsets_of
from zbench.step.form import FormulaRows, LayoutForm, TensorForm
from zbench.step.formula import Formula
from zbench.step.index import Index, PartMap, Relation
from zbench.step.lists import PartLists
from zbench.step.tensor import Tensor


@dataclass(frozen=True)
class StepLayout:
    """A layout has what operations of a micro-batch refer to.

    aliases: slots that have another index's name, as s, which is of t.

    A tensor that is cut along an index of the batch is of the micro-batch, others are of the step, and the same in
    all its layouts.
    """

    indices: tuple[Index, ...]
    aliases: tuple[tuple[str, str], ...]
    maps: tuple[PartMap, ...]
    relations: tuple[Relation, ...]
    tensors: tuple[Tensor, ...]
    formulas: tuple[Formula, ...]
    lists: PartLists

    def with_lists(self, lists: PartLists, tensors: tuple[Tensor, ...]) -> "StepLayout":
        """Returns the layout with other lists, and with tensors that are other in their lossy hops alone. What was
        found of its names, indices and cells so far stays."""
        found = replace(self, lists=lists, tensors=tensors)
        for name in ("form", "index", "makers", "shapes", "first_cells", "homes", "parts_of_slots", "map_tables"):
            if name in vars(self):
                vars(found)[name] = vars(self)[name]
        return found

    @cached_property
    def form(self) -> LayoutForm:
        """The names and formulas, one object of all layouts that have the same."""
        return LayoutForm(
            tuple((one.name, one.of_batch) for one in self.indices),
            self.aliases,
            tuple((one.coarse, one.fine) for one in self.maps),
            tuple((one.name, one.first, one.second) for one in self.relations),
            tuple(
                TensorForm(
                    one.name, one.axes, one.nature, one.merge, one.layers, one.counted_by, one.amounts is not None
                )
                for one in self.tensors
            ),
            self.formulas,
        ).kept

    @cached_property
    def index(self) -> dict[str, Index]:
        """The indices by name."""
        return {one.name: one for one in self.indices}

    @cached_property
    def size_of(self) -> dict[str, int]:
        """The tokens, heads or columns of all parts of every index, by its name."""
        return {one.name: int(one.sizes.sum()) for one in self.indices}

    @property
    def number(self) -> dict[str, int]:
        """The numbers of tensors by name."""
        return self.form.number

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of formulas: the first result, and a number from the second formula with it on: dn, dn.2."""
        return self.form.labels

    @cached_property
    def makers(self) -> dict[str, list[int]]:
        """The numbers of the formulas that have a tensor among their results, by its name."""
        found: dict[str, list[int]] = {one.name: [] for one in self.tensors}
        for at, formula in enumerate(self.formulas):
            for name in {one.tensor for one in formula.results}:
                found[name].append(at)
        return found

    def index_of(self, slot: str) -> str:
        """Returns the name of the index that a slot is of."""
        return self.form.index_of(slot)

    def of_batch(self, tensor: int) -> bool:
        """Returns whether a tensor is of a micro-batch."""
        return self.form.of_batch[tensor]

    def shape(self, tensor: int) -> tuple[int, int]:
        """Returns the parts along both axes of a tensor, 1 where it has none."""
        first, second = self.shapes[tensor].tolist()
        return first, second

    @cached_property
    def shapes(self) -> Ints:
        """The parts along both axes of every tensor, 1 where it has none, int64 [tensors, 2]."""
        size = np.array([*(len(one) for one in self.indices), 1], np.int64)
        return np.asarray(size[self.form.axes])

    @cached_property
    def first_cells(self) -> Ints:
        """The number of the first cell of each tensor among all cells, and of all cells, int64 [tensors + 1]."""
        return np.concatenate([[0], np.cumsum(self.shapes[:, 0] * self.shapes[:, 1])])

    @cached_property
    def homes(self) -> Ints:
        """The homes of all tensors' cells, int64 [cells]."""
        return offsets_of([one.home for one in self.tensors])[1]

    @cached_property
    def sizes_of_lists(self) -> Ints:
        """The tokens, heads or columns of every list, int64 [lists]; 0 of lists of places and lanes."""
        lists = self.lists
        rows = [self.index[name].sizes if name in self.index else np.zeros(0, np.int64) for name in lists.indices]
        begin = np.cumsum([0, *map(len, rows)])[:-1]
        named = np.array([name in self.index for name in lists.indices], bool)
        owner = np.repeat(lists.of, np.diff(lists.offsets))
        each = np.concatenate([*rows, np.zeros(1, np.int64)])[np.where(named[owner], begin[owner] + lists.parts, -1)]
        total = np.concatenate([[0], np.cumsum(each)])
        return np.asarray(total[lists.offsets[1:]] - total[lists.offsets[:-1]], np.int64)

    @property
    def layered(self) -> Ints:
        """Whether each layer or border has one of a tensor (1) or the step as a whole (0), int64 [tensors]."""
        return self.form.layered

    @property
    def counts(self) -> Ints:
        """The tensor, cut alike, that has how many rows there are of every tensor, int64 [tensors], -1 where none has:
        whoever is sent rows has to know."""
        return self.form.counts

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of layers that a formula is of: LEADING or FOLLOWING where it has a tensor of these alone, "" of
        others."""
        return self.form.kinds

    @property
    def bound(self) -> FormulaRows:
        """The formulas as rows.

        Raises:
            ValueError: a formula names what is not there, or does to a tensor what its nature has not.
        """
        return self.form.bound

    @cached_property
    def parts_of_slots(self) -> Ints:
        """The parts of every formula's slots, int64 [formulas, 3], 0 where there is none."""
        sizes = np.array([*(len(one) for one in self.indices), 0], np.int64)
        return np.asarray(sizes[self.bound.slots])

    @cached_property
    def map_tables(self) -> MapTables:
        """The maps and relations as tables."""
        return MapTables.of(self.maps, self.relations)

    @cached_property
    def contributions(self) -> Ints:
        """The contributions that formulas make to each cell of each tensor, int64 [cells]; 0 of others than sums. Of
        formulas that differ in what was made again alone, a layer has one, and they count once. What all layers have
        one of has as many in layers of either kind: those of the layers that follow are counted."""
        rows, sizes = self.form.counted_rows, (self.shapes, self.first_cells)
        found = contributions_of(rows, self.parts_of_slots, self.bound.relation, *sizes, self.map_tables)
        return np.asarray(found, np.int64)
