"""The form of a layout: its names and formulas, without how a batch cuts its indices; formulas as rows that loops read.

Batches of a model have layouts of one form, which is kept: equal forms are one object, with all that was found of it.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.formula import Axis, Formula, Reference
from zbench.step.tensor import BORDER, FOLLOWING, LAYER, LAYERS, LEADING, NATURES, NONE

READ, WRITE, ADD, UPDATE = range(4)  # in the order in which an operation does them
WHOLE = -1
_DOES = {"=": WRITE, "+=": ADD, ":=": UPDATE}
_NATURE = {"=": "copy", "+=": "sum", ":=": "state"}


class TensorForm(NamedTuple):
    """A tensor (zbench.step.tensor.Tensor) before indices are cut. has_amounts: whether its cells have sizes of their
    own."""

    name: str
    axes: tuple[str, ...]
    nature: str
    merge: str
    layers: str
    counted_by: str
    has_amounts: bool


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
class LayoutForm:
    """The names of a layout, and its formulas. indices: (name, whether each batch cuts it anew); aliases: slots that
    have another index's name; maps: (coarse, fine); relations: (name, first, second)."""

    indices: tuple[tuple[str, bool], ...]
    aliases: tuple[tuple[str, str], ...]
    maps: tuple[tuple[str, str], ...]
    relations: tuple[tuple[str, str, str], ...]
    tensors: tuple[TensorForm, ...]
    formulas: tuple[Formula, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Formulas are not looked into: they are many words, and mostly the very ones of another form."""
        return hash((self.tensors, len(self.formulas)))

    @property
    def kept(self) -> "LayoutForm":
        """The form that is equal and was met first, as long as it is kept."""
        return _kept(self)

    @cached_property
    def number(self) -> dict[str, int]:
        """The numbers of tensors by name."""
        return {one.name: at for at, one in enumerate(self.tensors)}

    @cached_property
    def of_batch(self) -> tuple[bool, ...]:
        """Whether each tensor is of a micro-batch: whether it is cut along an index of the batch."""
        cut = {name for name, of_batch in self.indices if of_batch}
        return tuple(not cut.isdisjoint(one.axes) for one in self.tensors)

    @cached_property
    def axes(self) -> Ints:
        """The index along both axes of every tensor, -1 where it has none, int64 [tensors, 2]."""
        at = {name: number for number, (name, _) in enumerate(self.indices)}
        rows = [[*(at[axis] for axis in one.axes), -1, -1][:2] for one in self.tensors]
        return np.array(rows, np.int64).reshape(-1, 2)

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

    @cached_property
    def layered(self) -> Ints:
        """Whether each layer or border has one of a tensor (1) or the step as a whole (0), int64 [tensors]."""
        return np.array([int(one.layers != NONE) for one in self.tensors], np.int64)

    @cached_property
    def natures(self) -> Ints:
        """The nature of every tensor as a number (zbench.step.tensor.NATURES), int64 [tensors]."""
        return np.array([NATURES.index(one.nature) for one in self.tensors], np.int64)

    @cached_property
    def layers(self) -> Ints:
        """The number of what each tensor is one of (zbench.step.tensor.LAYERS), int64 [tensors]."""
        return np.array([LAYERS.index(one.layers) for one in self.tensors], np.int64)

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

    @cached_property
    def counted_rows(self) -> Ints:
        """The rows of formulas that count among the contributions to a sum, after their formulas, int64 [rows, 8]. Of
        formulas that differ in what was made again alone, a layer has one, and they count once. What all layers have
        one of has as many in layers of either kind: those of the layers that follow are counted."""
        found, bound = [], self.bound
        for at, (begin, end) in enumerate(pairwise(bound.offsets.tolist())):
            for row in bound.rows[begin:end].tolist() if self.alternatives[at] == at else ():
                if row[0] == ADD and (self.kinds[at] != LEADING or self.tensors[row[1]].layers == LEADING):
                    found.append([at, *row])
        return np.array(found, np.int64).reshape(-1, 8)

    @cached_property
    def bound(self) -> FormulaRows:
        """The formulas as rows.

        Raises:
            ValueError: a formula names what is not there, or does to a tensor what its nature has not.
        """
        rows: list[list[int]] = []
        offsets, slots, relation = [0], [], []
        names = [name for name, _ in self.indices]
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

    def index_of(self, slot: str) -> str:
        """Returns the name of the index that a slot is of."""
        return self._aliases.get(slot, slot)

    @cached_property
    def _aliases(self) -> dict[str, str]:
        return dict(self.aliases)

    def _index_named(self, slot: str, formula: Formula) -> str:
        name, names = self.index_of(slot), [one for one, _ in self.indices]
        if name not in names:
            raise ValueError(f"formula {formula}: slot {slot} is no index; there are {', '.join(names)}")
        return name

    def _tensor(self, one: Reference, formula: Formula) -> TensorForm:
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
        for number, pair in enumerate(self.maps):
            if pair == (wanted, index) and axis.map in ("", wanted):
                return number
        word = f"{axis} is of index {index}, and the tensor is cut along {wanted}"
        raise ValueError(f"formula {formula}: {word}, with no map {wanted}({axis.slot})")

    def _relation(self, formula: Formula) -> list[int]:
        if formula.relation is None:
            return [-1, -1, -1]
        name, first, second = formula.relation
        pair = (self.index_of(first), self.index_of(second))
        for number, one in enumerate(self.relations):
            if one == (name, *pair):
                return [number, formula.slots.index(first), formula.slots.index(second)]
        raise ValueError(f"formula {formula}: there is no relation {name}({', '.join(pair)})")

    @cached_property
    def names_fault(self) -> str:
        """A sentence about the names of indices and tensors, "" if nothing is wrong with them."""
        for what, names in (
            ("index", [name for name, _ in self.indices]),
            ("tensor", [one.name for one in self.tensors]),
        ):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                return f"there are two of {what} {twice[0]}"
        return ""

    @cached_property
    def tensors_fault(self) -> str:
        """A sentence about the axes, natures and counts of tensors, "" if nothing is wrong with them."""
        indices = {name for name, _ in self.indices}
        for one in self.tensors:
            if len(one.axes) > 2 or not indices.issuperset(one.axes):
                return f"tensor {one.name} is cut along {', '.join(one.axes)}; it takes two indices at most"
            if one.nature not in NATURES or one.layers not in LAYERS or bool(one.merge) != (one.nature == "sum"):
                return f"tensor {one.name} is a {one.nature} with merge {one.merge!r}; sums alone have one"
            if one.counted_by and (not one.has_amounts or one.counted_by not in self.number):
                return f"tensor {one.name} is counted by {one.counted_by}; it takes amounts, and a tensor there is"
        return ""

    @cached_property
    def formulas_fault(self) -> str:
        """A sentence about formulas, which have to fit the tensors, "" if nothing is wrong with them."""
        try:
            self.bound  # noqa: B018 - formulas are read here
        except ValueError as error:
            return str(error)
        for formula in self.formulas:
            of: dict[str, Reference] = {}
            for one in (*formula.results, *formula.operands):
                of[kind := self.tensors[self.number[one.tensor]].layers] = one
                if one.after and kind != BORDER:
                    return f"formula {formula} names {one}, and {one.tensor} is not of the borders between layers"
            if LEADING in of and FOLLOWING in of:
                return f"formula {formula} names {of[LEADING]} of the first layers and {of[FOLLOWING]} of the others"
        return ""


@lru_cache(maxsize=64)
def _kept(form: LayoutForm) -> LayoutForm:
    return form
