"""Computes one operation of a step: reads and writes values of a place, a combination of parts after another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from zbench.correctness.steps.axes import CUT, dims, from_memory, in_memory, slice_in_whole
from zbench.correctness.steps.counted_functions import COUNTED_FUNCTIONS
from zbench.correctness.steps.expert_functions import EXPERT_FUNCTIONS, Chosen
from zbench.correctness.steps.functions import FUNCTIONS, Where, merged
from zbench.correctness.steps.seat_functions import Seated
from zbench.describe.arrays import Floats, Ints
from zbench.describe.model import Model
from zbench.step.expert_cut import ExpertCut
from zbench.step.formula import Formula, Reference, Term
from zbench.step.layout import StepLayout

Cell = tuple[int, int]  # parts along both axes, 0 where there is none
Store = dict[tuple[str, int, int], dict[tuple[int, Cell], Any]]  # by (tensor, layer, micro-batch): by (place, cell)
_ROUTED = {**EXPERT_FUNCTIONS, **COUNTED_FUNCTIONS}
_SLOTS = ("t", "s", "h", "g", "v")
Wheres = dict[tuple[int, tuple[int | None, ...]], Where]  # by micro-batch and parts of these, the same on all places
Choices = dict[tuple[int, int, int], tuple[Floats, dict[int, Ints]]]  # by (micro-batch, layer, part of a)


@lru_cache(maxsize=1024)
def _contraction(operands: tuple[str, ...], result: str) -> str:
    """Returns the axes of a product of tensors, as numpy's einsum has them."""
    return f"{','.join(map(dims, operands))}->{dims(result)}"


class Missing(Exception):
    """An operation uses something that is not there, or writes what is there already."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch by part of t: sequence, position, token and target, int64 [parts][tokens]; chosen:
    the experts of each, int64 [parts][tokens, chosen], of a model that has some; padding: int64 [parts, experts], as of
    zbench.step.passes.routing.Routing."""

    sequence: list[Ints]
    position: list[Ints]
    token: list[Ints]
    target: list[Ints]
    chosen: list[Ints] = field(default_factory=list)
    padding: Ints | None = None


def store_key(layout: StepLayout, micro_batch: int, tensor: int, layer: int) -> tuple[str, int, int]:
    """Returns the key of a tensor's store."""
    one = layout.tensors[tensor]
    return one.name, 0 if one.layers == "none" else layer, micro_batch if layout.of_batch(tensor) else -1


def add_value(held: dict[tuple[int, Cell], Any], name: str, at: tuple[int, Cell], value: Any) -> None:
    """Adds a contribution to what is there of a sum."""
    held[at] = merged(name, held[at], value) if at in held else value


def parts_that_meet(layout: StepLayout, formula: Formula) -> Callable[[dict[str, int]], bool]:
    """Returns what says whether the parts of a relation's slots meet; of a formula without one, all do."""
    if formula.relation is None:
        return lambda at: True
    name, first, second = formula.relation
    one = next(one for one in layout.relations if one.name == name)
    rows, columns = one.first_group.tolist(), one.second_group.tolist()
    partners, offsets = one.partners.tolist(), one.offsets.tolist()
    every = [set(partners[begin:end]) for begin, end in pairwise(offsets)]
    return lambda at: columns[at[second]] in every[rows[at[first]]]


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A reference to a parameter that is cut, or to its gradient: a slice lies in shards. base: the parameter; index:
    of the parts that its slices are cut in, along an axis; shape: of a slice; ends: of its shards."""

    base: str
    index: str
    axis: int
    shape: tuple[int, ...]
    ends: list[int]


@dataclass(frozen=True, slots=True)
class Known:
    """A reference of a compute, as it is for every combination of parts and on every place.

    key: of its tensor's store; axes: the slot of each axis of its cells, and the part that each of the slot's parts is
    in where the tensor is cut more coarsely. read, added: where a cut parameter is read, or its gradient added to.
    """

    key: tuple[str, int, int]
    axes: list[tuple[str, list[int] | None]]
    read: _Sliced | None
    added: _Sliced | None

    def cell(self, at: Mapping[str, int]) -> Cell:
        """Returns the cell that it is; of a parameter, that of its slice's first shard."""
        found = [at[slot] if coarse is None else coarse[at[slot]] for slot, coarse in self.axes]
        return (found[0], found[1]) if len(found) == 2 else (found[0], 0) if found else (0, 0)


References = dict[tuple[int, int, int], Known]  # by (id, which lives as the layout does, micro-batch, layer)


@dataclass(slots=True)
class ComputeOnPlace:
    """A compute on a place, being interpreted: it reads and writes values there.

    there: all that is there; weights: of the model, whole; model: that they are of. choices: gets those of routers, by
    micro-batch, layer and part of a: logits, and the tokens in the seats of each slice. wheres, known: what was looked
    up for operations before.
    """

    there: Store
    weights: Mapping[str, Floats]
    tokens: Tokens
    model: Model
    choices: Choices
    layout: StepLayout
    micro_batch: int
    place: int
    layer: int
    wheres: Wheres = field(default_factory=dict)
    known: References = field(default_factory=dict)

    def looked_at(self, one: Reference) -> Known:
        """Returns what is the same of a reference for every combination of parts."""
        of = id(one), self.micro_batch, self.layer
        return self.known.get(of) or self.known.setdefault(of, self._known(one))

    def _known(self, one: Reference) -> Known:
        number, layout = self.layout.number[one.tensor], self.layout
        axes = list[tuple[str, list[int] | None]]()
        for axis, wanted in zip(one.axes, layout.tensors[number].axes, strict=False):
            index, coarse = layout.index_of(axis.slot), None
            if index != wanted:
                part = next(m.part for m in layout.maps if (m.coarse, m.fine) == (wanted, index))
                coarse = part.tolist()
            axes.append((axis.slot, coarse))
        base = one.tensor.removeprefix("d")
        key = store_key(layout, self.micro_batch, number, self.layer + one.after)
        cut = one.tensor in CUT and len(one.axes) == 1 and one.axes[0].slot != "j"
        read = self._sliced(base, one) if cut else None
        added = base in CUT and one.tensor[0] == "d" and len(one.axes) == 1
        return Known(key, axes, read, self._sliced(base, one) if added else None)

    def _sliced(self, base: str, one: Reference) -> _Sliced:
        ends = np.cumsum(self.layout.index[f"z{base}"].sizes).tolist()
        index = self.layout.index_of(one.axes[0].slot)
        return _Sliced(base, index, CUT[base][1], self._whole(base), ends)

    def _range(self, index: str, part: int) -> tuple[int, int]:
        """Returns [first, last) of a part, in heads, columns or words."""
        bounds = self.layout.index[index].bounds
        return bounds[part], bounds[part + 1]

    def _inside(self, name: str, index: str, part: int) -> slice:
        """Returns where a part lies in its slice of a parameter."""
        first, last = self._range(index, part)
        size = self.layout.size_of[index] // self._slices(name)
        return slice(first % size, first % size + last - first)

    def _slices(self, name: str) -> int:
        """Returns how many slices a parameter is cut in."""
        return len(self.layout.index[self.layout.tensors[self.layout.number[name]].axes[0]])

    def _whole(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a slice of a parameter."""
        whole = self.weights[name].shape
        if self.layout.tensors[self.layout.number[name]].layers != "none":
            whole = whole[1:]
        where = slice_in_whole(self.layout, name, whole, 0)
        return tuple(len(range(*one.indices(size))) for one, size in zip(where, whole, strict=True))

    def read(self, one: Reference, at: dict[str, int]) -> Any:
        """Returns the value of a reference."""
        known = self.looked_at(one)
        held, cell, of = self.there.get(known.key, {}), known.cell(at), known.read
        if of is None:
            return self._get(held, one, cell)
        shards = [self._get(held, one, (cell[0], shard)) for shard in range(len(of.ends))]
        where = [slice(None)] * len(of.shape)
        where[of.axis] = self._inside(of.base, of.index, at[one.axes[0].slot])
        return from_memory(of.base, np.concatenate(shards), of.shape)[tuple(where)]

    def _get(self, held: dict[tuple[int, Cell], Any], one: Reference, cell: Cell) -> Any:
        found = held.get((self.place, cell))
        if found is None:
            raise Missing(f"{one} {cell} of layer {self.layer} is not on {self.place}")
        return found

    def put(self, one: Reference, at: dict[str, int], value: Any, action: str) -> None:
        """Writes or adds a value."""
        known = self.looked_at(one)
        held, cell, of = self.there.setdefault(known.key, {}), known.cell(at), known.added
        if action == "+=" and of is not None:
            whole = np.zeros(of.shape)
            where = [slice(None)] * whole.ndim
            where[of.axis] = self._inside(of.base, of.index, at[one.axes[0].slot])
            whole[tuple(where)] = value
            flat = in_memory(of.base, whole)
            for shard, (begin, end) in enumerate(pairwise([0, *of.ends])):
                add_value(held, one.tensor, (self.place, (cell[0], shard)), flat[begin:end])
        elif action == "+=":
            add_value(held, one.tensor, (self.place, cell), value)
        elif action == "=" and (self.place, cell) in held:
            raise Missing(f"{one} {cell} of layer {self.layer} is on {self.place} already")
        else:
            held[self.place, cell] = value

    def value(self, formula: Formula, at: dict[str, int]) -> tuple[Any, ...]:
        """Returns what a combination of parts contributes to each result."""
        if formula.terms[0].function == "adam":
            weight, _, gradient = (self.read(one, at) for one in formula.operands)
            return weight - 0.5 * gradient, gradient
        found = [self._term(term, formula.results[0], at) for term in formula.terms]
        if len(formula.results) > 1:
            return tuple(found[0])
        return (sum(found[1:], start=found[0]),)

    def _term(self, term: Term, result: Reference, at: dict[str, int]) -> Any:
        values = [self.read(one, at) for one in term.operands]
        if term.function in _ROUTED:
            context = self._seated(at) if self._routers_choose else self._chosen(at)
            found = _ROUTED[term.function](context, *values)
            if result.tensor == "to":
                choices = self.choices.setdefault((self.micro_batch, self.layer, at["a"]), (values[0], {}))
                choices[1][at[result.axes[1].slot]] = found
            return found
        if term.function:
            return FUNCTIONS[term.function](self._where(at), *values)
        plain = [value[0] if isinstance(value, tuple) else value for value in values]
        if len(plain) == 1:
            return plain[0]
        return np.einsum(_contraction(tuple(one.tensor for one in term.operands), result.tensor), *plain)

    def _chosen(self, at: dict[str, int]) -> Chosen:
        """Returns the experts of a combination's tokens, and the slice and the expert that it is about."""
        slices = next(one.part for one in self.layout.maps if one.coarse == "k")
        expert = ExpertCut.of(self.layout.index, self.model.num_experts).experts  # of each part of e
        nodes = next((one.part for one in self.layout.maps if one.coarse == "n"), np.zeros(0, np.int64))
        node = at["n"] if "n" in at else nodes[at["k"]] if "k" in at and len(nodes) else 0
        padding = None if self.tokens.padding is None else self.tokens.padding[at["t"]]
        only = int(expert[at.get("e", 0)])

        def span(mine: Ints) -> tuple[int, int]:
            return int(expert[mine[0]]), int(expert[mine[-1]]) + 1

        of_node = [np.flatnonzero(slices == one) for one in np.flatnonzero(nodes == node).tolist()]
        if of_node and not self._aligned:
            of_node = [np.concatenate(of_node)]
        mine = None if "n" in at else span(np.flatnonzero(slices == (at["k"] if "k" in at else slices[at["e"]])))
        return Chosen(self.tokens.chosen[at["t"]], mine, (only, only + 1), padding, tuple(map(span, of_node)))

    @property
    def _aligned(self) -> bool:
        """Whether rows are brought into order between the two steps in which they go to experts (2DH)."""
        return any(term.function == "align" for one in self.layout.formulas for term in one.terms)

    @property
    def _routers_choose(self) -> bool:
        """Whether routers choose while the step runs."""
        return "a" in self.layout.index

    def _seated(self, at: dict[str, int]) -> Seated:
        """Returns the seats of a combination, and where the tokens of its part are among their GPU's."""
        part = {(one.coarse, one.fine): one.part for one in self.layout.maps}
        group, slices, sizes = part["a", "t"], part["k", "e"], self.layout.index["t"].sizes
        experts = ExpertCut.of(self.layout.index, self.model.num_experts).experts  # of each part of e
        own = int(group[at["t"]]) if "t" in at else at["a"]
        share = at["k"] if "k" in at else int(slices[at.get("e", 0)])
        if "n" in at:
            share = int(np.flatnonzero(part["n", "k"] == at["n"])[0])  # all of a group have the same experts
        mine, number = experts[np.flatnonzero(slices == share)], self.layout.number["i"]
        rows = self.layout.tensors[number].amounts
        assert rows is not None, "seats are counted"
        room = int(rows.reshape(self.layout.shape(number))[own, share]) // len(mine)
        begin = sum(int(sizes[one]) for one in np.flatnonzero(group == own) if one < at.get("t", 0))
        tokens = begin, begin + int(sizes[at.get("t", 0)])
        only = int(experts[at.get("e", 0)])
        span, expert = (int(mine[0]), int(mine[-1]) + 1), (only, only + 1)
        return Seated(room, span, expert, tokens, int(sizes[group == own].sum()), self.model.experts_per_token)

    def zeros(self, formula: Formula, at: dict[str, int]) -> Any:
        """Returns what parts that do not meet add to a gradient of parameters, or to tokens at home."""
        base = formula.results[0].tensor.removeprefix("d")
        if formula.results[0].slots == ("t",):
            width = self.model.num_experts if base.rstrip("~") == "r" else self.model.hidden
            return np.zeros((len(self.tokens.chosen[at["t"]]), width))
        shape = list(self._whole(base))
        index = self.layout.index_of(formula.results[0].axes[0].slot)
        shape[CUT[base][1]] = int(self.layout.index[index].sizes[at[formula.results[0].axes[0].slot]])
        return np.zeros(shape)

    def _where(self, at: dict[str, int]) -> Where:
        key = self.micro_batch, tuple(map(at.get, _SLOTS))
        return self.wheres.get(key) or self.wheres.setdefault(key, self._looked_up(at))

    def _looked_up(self, at: dict[str, int]) -> Where:
        none = np.zeros(0, np.int64)
        t, s, h = at.get("t"), at.get("s"), at.get("h")
        part = next((one.part for one in self.layout.maps if (one.coarse, one.fine) == ("g", "h")), none)
        kv = int(part[h]) if h is not None else at.get("g", 0)
        sequence, position, token, target = self._of_tokens(t)
        key_sequence, key_position, *_ = self._of_tokens(s)
        words, heads, kv_heads = self._range("v", at.get("v", 0)), self._range("h", h or 0), self._range("g", kv)
        per_kv = self.model.num_heads // self.model.num_kv_heads
        every = sequence, position, token, target, key_sequence, key_position, words, heads, kv_heads, per_kv
        return Where(*every, self.model.router_temperature, self.model.mask)

    def _of_tokens(self, part: int | None) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns sequences, positions, tokens and targets of a part, empty where there is none."""
        tokens, none = self.tokens, np.zeros(0, np.int64)
        if part is None:
            return none, none, none, none
        return tokens.sequence[part], tokens.position[part], tokens.token[part], tokens.target[part]
