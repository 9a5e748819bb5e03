"""A layout: the indices, tensors and formulas that operations refer to, and formulas as rows that loops read."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.formula import Axis, Formula, Reference
from zbench.step.index import Index, PartMap, Relation
from zbench.step.lists import PartLists
from zbench.step.tensor import FOLLOWING, LAYER, LEADING, Tensor

READ, WRITE, ADD, UPDATE = range(4)  # in the order in which an operation does them
WHOLE = -1
_DOES = {"=": WRITE, "+=": ADD, ":=": UPDATE}
_NATURE = {"=": "copy", "+=": "sum", ":=": "state"}


@dataclass(frozen=True)
class FormulaRows:
    """Formulas as rows: for each reference of formula f, rows offsets[f] to offsets[f + 1] have what is done to which
    tensor, 1 if it is the next layer's, and for each of two axes the slot (WHOLE: all parts) and the map (-1: none).

    slots: [formulas, 3], the number of the index of each slot, -1 where there is none. relation: [formulas, 3], the
    number of the relation and the slots that it is told of, -1 where there is none.
    """

    offsets: Ints
    rows: Ints
    slots: Ints
    relation: Ints


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

    @cached_property
    def index(self) -> dict[str, Index]:
        """The indices by name."""
        return {one.name: one for one in self.indices}

    @cached_property
    def size_of(self) -> dict[str, int]:
        """The tokens, heads or columns of all parts of every index, by its name."""
        return {one.name: int(one.sizes.sum()) for one in self.indices}

    @cached_property
    def number(self) -> dict[str, int]:
        """The numbers of tensors by name."""
        return {one.name: at for at, one in enumerate(self.tensors)}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of formulas: the first result, and a number from the second formula with it on: dn, dn.2."""
        seen: Counter[str] = Counter()
        found = []
        for formula in self.formulas:
            name = formula.results[0].tensor
            seen[name] += 1
            found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
        return tuple(found)

    def index_of(self, slot: str) -> str:
        """Returns the name of the index that a slot is of."""
        return self._aliases.get(slot, slot)

    @cached_property
    def _aliases(self) -> dict[str, str]:
        return dict(self.aliases)

    def of_batch(self, tensor: int) -> bool:
        """Returns whether a tensor is of a micro-batch."""
        return self._of_batch[tensor]

    @cached_property
    def _of_batch(self) -> tuple[bool, ...]:
        return tuple(any(self.index[axis].of_batch for axis in one.axes) for one in self.tensors)

    def shape(self, tensor: int) -> tuple[int, int]:
        """Returns the parts along both axes of a tensor, 1 where it has none."""
        first, second = self.shapes[tensor].tolist()
        return first, second

    @cached_property
    def shapes(self) -> Ints:
        """The parts along both axes of every tensor, 1 where it has none, int64 [tensors, 2]."""
        size = {name: len(one) for name, one in self.index.items()}
        rows = [[*(size[axis] for axis in one.axes), 1, 1][:2] for one in self.tensors]
        return np.array(rows, np.int64).reshape(-1, 2)

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

    @cached_property
    def layered(self) -> Ints:
        """Whether each layer or border has one of a tensor (1) or the step as a whole (0), int64 [tensors]."""
        return np.array([int(one.layers != "none") for one in self.tensors], np.int64)

    @cached_property
    def counts(self) -> Ints:
        """The tensor, cut alike, that has how many rows there are of every tensor, int64 [tensors], -1 where none has:
        whoever is sent rows has to know."""
        found = [self.number.get(one.counted_by, -1) for one in self.tensors]
        same = [at >= 0 and self.tensors[at].axes == one.axes for at, one in zip(found, self.tensors, strict=True)]
        return np.where(same, found, -1).astype(np.int64)

    @cached_property
    def updates(self) -> Flags:
        """Whether a formula updates state."""
        return np.array([one.action == ":=" for one in self.formulas], bool)

    @cached_property
    def each_layer(self) -> Flags:
        """Whether a formula is of every layer, or of those of its kind: whether it has a tensor that they have one
        of."""
        own = {at for at, one in enumerate(self.tensors) if one.layers in (LAYER, LEADING, FOLLOWING)}
        rows, offsets = self.bound.rows[:, 1].tolist(), self.bound.offsets.tolist()
        return np.array([not own.isdisjoint(rows[a:b]) for a, b in pairwise(offsets)], bool)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of layers that a formula is of: LEADING or FOLLOWING where it has a tensor of these alone, "" of
        others. The first such tensor says it; that there is none of the other kind is a rule of layouts."""
        own = {one.name: one.layers for one in self.tensors if one.layers in (LEADING, FOLLOWING)}
        if not own:
            return ("",) * len(self.formulas)
        refs = ((*one.results, *one.operands) for one in self.formulas)
        return tuple(next((own[one.tensor] for one in each if one.tensor in own), "") for each in refs)

    @cached_property
    def parts_of_slots(self) -> Ints:
        """The parts of every formula's slots, int64 [formulas, 3], 0 where there is none."""
        sizes = np.array([*(len(one) for one in self.indices), 0], np.int64)
        return np.asarray(sizes[self.bound.slots])

    @cached_property
    def bound(self) -> FormulaRows:
        """The formulas as rows.

        Raises:
            ValueError: a formula names what is not there, or does to a tensor what its nature has not.
        """
        rows: list[list[int]] = []
        offsets, slots, relation = [0], [], []
        names = [one.name for one in self.indices]
        for formula in self.formulas:
            for one in formula.operands:
                rows.append(self._row(READ, one, formula))
            for one in formula.results:
                nature = self._tensor(one, formula).nature
                if nature != _NATURE[formula.action]:
                    word = f"tensor {one.tensor} is a {nature}; {formula.action} makes a {_NATURE[formula.action]}"
                    raise ValueError(f"formula {formula}: {word}")
                rows.append(self._row(_DOES[formula.action], one, formula))
            offsets.append(len(rows))
            mine = [names.index(self._index_named(slot, formula)) for slot in formula.slots]
            slots.append([*mine, -1, -1, -1][:3])
            relation.append(self._relation(formula))
        return FormulaRows(
            np.array(offsets, np.int64),
            np.array(rows, np.int64).reshape(-1, 7),
            np.array(slots, np.int64).reshape(-1, 3),
            np.array(relation, np.int64).reshape(-1, 3),
        )

    def _index_named(self, slot: str, formula: Formula) -> str:
        name = self.index_of(slot)
        if name not in self.index:
            raise ValueError(f"formula {formula}: slot {slot} is no index; there are {', '.join(self.index)}")
        return name

    def _tensor(self, one: Reference, formula: Formula) -> Tensor:
        if one.tensor not in self.number:
            raise ValueError(f"formula {formula}: there is no tensor {one.tensor}")
        return self.tensors[self.number[one.tensor]]

    def _row(self, does: int, one: Reference, formula: Formula) -> list[int]:
        tensor = self._tensor(one, formula)
        if len(one.axes) > len(tensor.axes):
            raise ValueError(f"formula {formula}: {one} has {len(one.axes)} axes, the tensor {len(tensor.axes)}")
        found = [self.number[one.tensor], int(one.after)]
        for at in range(2):
            if at >= len(one.axes) or one.axes[at].slot == "*":
                found += [WHOLE, -1]
            else:
                slot = formula.slots.index(one.axes[at].slot)
                found += [slot, self._map(one.axes[at], tensor.axes[at], formula)]
        return [does, *found]

    def _map(self, axis: Axis, wanted: str, formula: Formula) -> int:
        """Returns the number of the map from a slot to a tensor's axis, -1 if they are of one index.

        A tensor may be cut coarser than the formula's slot: then the map between them is meant, named or not.
        """
        index = self._index_named(axis.slot, formula)
        if index == wanted and not axis.map:
            return -1
        for number, one in enumerate(self.maps):
            if (one.coarse, one.fine) == (wanted, index) and axis.map in ("", wanted):
                return number
        word = f"{axis} is of index {index}, and the tensor is cut along {wanted}"
        raise ValueError(f"formula {formula}: {word}, with no map {wanted}({axis.slot})")

    def _relation(self, formula: Formula) -> list[int]:
        if formula.relation is None:
            return [-1, -1, -1]
        name, first, second = formula.relation
        pair = (self.index_of(first), self.index_of(second))
        for number, one in enumerate(self.relations):
            if one.name == name and (one.first, one.second) == pair:
                return [number, formula.slots.index(first), formula.slots.index(second)]
        raise ValueError(f"formula {formula}: there is no relation {name}({', '.join(pair)})")

    @cached_property
    def contributions(self) -> tuple[Ints, ...]:
        """The contributions that formulas make to each cell of each tensor, int64 [cells]; 0 of others than sums. Of
        formulas that differ in what was made again alone, a layer has one, and they count once. What all layers have
        one of has as many in layers of either kind: those of the layers that follow are counted."""
        found = [np.zeros(int(np.prod(self.shape(at))), np.int64) for at in range(len(self.tensors))]
        for at, formula in enumerate(self.formulas):
            if self.alternatives[at] != at:
                continue
            for row in self.bound.rows[self.bound.offsets[at] : self.bound.offsets[at + 1]]:
                if row[0] == ADD and (self.kinds[at] != LEADING or self.tensors[row[1]].layers == LEADING):
                    found[row[1]] += self._counted(at, formula, row)
        return tuple(found)

    @cached_property
    def alternatives(self) -> Ints:
        """The first formula, for each, that differs from it in what was made again (names with ~) alone, results apart:
        itself, but where some layers are recomputed and others are not. A layer has one of them."""
        found, first = np.arange(len(self.formulas)), dict[str, int]()
        made = Counter(one.results[0].tensor for one in self.formulas)
        if not any(name.endswith("~") for name in made):
            return found
        for at, one in enumerate(self.formulas):
            name = one.results[0].tensor
            if made[name] > 1 and not name.endswith("~"):
                found[at] = first.setdefault(str(one).replace("~", ""), at)
        return found

    @cached_property
    def is_optional(self) -> Flags:
        """Whether a formula makes something again, and is left out for layers that are not recomputed."""
        mixed = bool((self.alternatives < np.arange(len(self.formulas))).any())
        return np.array([mixed and one.results[0].tensor.endswith("~") for one in self.formulas], np.bool_)

    def _counted(self, at: int, formula: Formula, row: Ints) -> Ints:
        """Returns the contributions that a formula makes to each cell of one of its results."""
        shape = self.shape(int(row[1]))
        number, first, second = self.bound.relation[at].tolist()
        factors = [np.ones(size, np.int64) for size in shape]
        seen = [int(row[3]), int(row[5])]
        times = 1
        for slot in range(len(formula.slots)):
            parts = len(self.indices[int(self.bound.slots[at, slot])])
            counts = np.ones(parts, np.int64)
            if number >= 0 and slot in (first, second):
                if slot not in seen:
                    continue
                counts = self._partners(number, slot == first)
            elif slot not in seen:
                times *= parts
                continue
            axis = seen.index(slot)
            which = int(row[4 + 2 * axis])
            part = np.arange(parts) if which < 0 else self.maps[which].part
            factors[axis] = np.bincount(part, weights=counts, minlength=shape[axis]).astype(np.int64)
        if number >= 0 and first not in seen and second not in seen:
            times *= self.relations[number].num_pairs
        if number >= 0 and first in seen and second in seen:
            return times * self._pairs(number, seen.index(first), row)
        return times * np.multiply.outer(*factors).reshape(-1)

    def _pairs(self, number: int, turned: int, row: Ints) -> Ints:
        """Returns how many pairs of parts that meet fall on each cell of a tensor that has both slots of a relation.
        turned: 1 if its second axis has the relation's first slot."""
        one = self.relations[number]
        count = np.diff(one.offsets)[one.first_group]
        group = one.partners[_ranges(one.offsets[one.first_group], count)]
        order, sizes = np.argsort(one.second_group, kind="stable"), np.bincount(one.second_group)
        second = order[_ranges((np.cumsum(sizes) - sizes)[group], sizes[group])]
        first = np.repeat(np.repeat(np.arange(len(count)), count), sizes[group])
        cells = [
            part if which < 0 else self.maps[which].part[part]
            for part, which in zip(
                (second, first) if turned else (first, second), (int(row[4]), int(row[6])), strict=True
            )
        ]
        shape = self.shape(int(row[1]))
        return np.bincount(cells[0] * shape[1] + cells[1], minlength=shape[0] * shape[1]).astype(np.int64)

    def _partners(self, number: int, first: bool) -> Ints:
        """Returns how many groups each part meets in a relation."""
        one = self.relations[number]
        offsets, group = (one.offsets, one.first_group) if first else (one.turned()[0], one.second_group)
        return np.diff(offsets)[group]


def _ranges(begin: Ints, count: Ints) -> Ints:
    """Returns the numbers from `begin` on, `count` of each, one range after another."""
    return np.asarray(np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count - begin, count), np.int64)
