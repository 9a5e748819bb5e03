"""Executes the columns of a dense step on simulated places, in float64.

It does what operations say, one combination of parts after another, and shares no code with the proof. It does not
count contributions nor look at versions: a step that is wrong comes to wrong numbers here, or to something missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from zbench.correctness.steps.functions import CUT, FUNCTIONS, Where, dims, merged
from zbench.describe.arrays import Floats, Ints
from zbench.describe.model import Model
from zbench.step.formula import Formula, Reference, Term
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, SEND
from zbench.step.template import AT_HOME, Items, Step, Template

Cell = tuple[int, int]  # parts along both axes, 0 where there is none
Store = dict[tuple[str, int, int], dict[tuple[int, Cell], Any]]  # by (tensor, layer, micro-batch): by (place, cell)


class Missing(Exception):
    """An operation uses something that is not there, or writes what is there already."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch by part of t: sequence, position, token and target, int64 [parts][tokens]."""

    sequence: list[Ints]
    position: list[Ints]
    token: list[Ints]
    target: list[Ints]


@dataclass
class StepInterpreter:
    """Executes a step. weights: by name, [layers, ...] or [...] of those of no layer, whole. degree: of tensor
    parallelism."""

    step: Step
    model: Model
    tokens: Sequence[Tokens]
    weights: Mapping[str, Floats]
    degree: int
    there: Store = field(default_factory=dict)

    def run(self) -> Store:
        """Executes all instances and returns what is there at the end.

        Raises:
            Missing: something was not there, or was there twice.
        """
        self._begin()
        for one in self.step.order:
            template = self.step.templates[one.template]
            for layer in one.layers:
                layout = self.step.layouts[template.layout]
                touched = set()
                for op in template.operations.rows().tolist():
                    touched |= self._do(layout, template, op, layer)
                self._forget(layout, template, layer, touched)
        return self.there

    def _begin(self) -> None:
        """Puts parameters where the step has them, and optimizer state of zeros."""
        layout = self.step.layouts[0]
        for name, _, place, cell in self._named(layout, self.step.begins):
            tensor = layout.tensors[layout.number[name]]
            for layer in range(self.step.num_layers) if tensor.layers == "layer" else (0,):
                whole = self.weights[name.removeprefix("s")]
                shards = self._shards(layout, name, whole[layer] if tensor.layers == "layer" else whole, cell[0])
                value = shards[cell[1]] if tensor.axes else shards[0]
                self.there.setdefault((name, layer, -1), {})[place, cell] = 0 * value if name[0] == "s" else value

    def _named(self, layout: StepLayout, items: Items) -> Iterator[tuple[str, int, int, Cell]]:
        """Yields (tensor, layer offset, place, cell) of the items of a contract."""
        for tensor, layer, places, list0, list1, *_ in items.rows():
            one = layout.tensors[tensor]
            sides = [layout.lists[which].tolist() if which >= 0 else [0] for which in (list0, list1)]
            width = len(layout.index[one.axes[1]]) if len(one.axes) > 1 else 1
            for a, b in product(*sides):
                at_home = [int(one.home[a * width + b])] if places == AT_HOME else layout.lists[places].tolist()
                for place in at_home:
                    yield one.name, layer, place, (a, b)

    def _shards(self, layout: StepLayout, name: str, whole: Floats, share: int) -> list[Floats]:
        """Returns the flat shards of a slice of a parameter."""
        name = name.removeprefix("s") if name not in self.weights else name
        if name not in CUT:
            return [whole]
        size = whole.shape[CUT[name][1]] // self.degree
        part = np.take(whole, np.arange(share * size, (share + 1) * size), axis=CUT[name][1]).reshape(-1)
        return list(np.split(part, np.cumsum(layout.index[f"z{name}"].sizes)[:-1]))

    def _key(self, layout: StepLayout, micro_batch: int, tensor: int, layer: int) -> tuple[str, int, int]:
        one = layout.tensors[tensor]
        of_batch = any(layout.index[axis].of_batch for axis in one.axes)
        return one.name, 0 if one.layers == "none" else layer, micro_batch if of_batch else -1

    def _forget(self, layout: StepLayout, template: Template, layer: int, touched: set[tuple[str, int, int]]) -> None:
        """Drops what a template used and does not leave."""
        left: dict[tuple[str, int, int], set[tuple[int, Cell]]] = {}
        for name, offset, place, cell in self._named(layout, template.leaves):
            key = self._key(layout, template.layout, layout.number[name], layer + offset)
            left.setdefault(key, set()).add((place, cell))
        needed = {
            self._key(layout, template.layout, layout.number[name], layer + offset)
            for name, offset, _, _ in self._named(layout, template.needs)
        }
        for key in touched | needed:
            held = self.there.get(key, {})
            for at in [at for at in held if at not in left.get(key, ())]:
                del held[at]

    def _do(self, layout: StepLayout, template: Template, op: list[int], layer: int) -> set[tuple[str, int, int]]:
        """Does an operation; returns the keys of what it used."""
        kind, what, src, dst, *lists = op[:7]
        if kind == COMPUTE:
            return self._compute(layout, template, layout.formulas[what], src, (lists, layer))
        key = self._key(layout, template.layout, what, layer + op[7])
        if not layout.tensors[what].exists(key[1], self.step.num_layers):
            return set()
        held = self.there.setdefault(key, {})
        members = layout.lists[dst].tolist() if kind not in (SEND, MOVE, DROP) else []
        width = len(layout.index[layout.tensors[what].axes[1]]) if len(layout.tensors[what].axes) > 1 else 1
        for cell in product(*(layout.lists[which].tolist() if which >= 0 else [0] for which in lists[:2])):
            home = int(layout.tensors[what].home[cell[0] * width + cell[1]])
            if kind == DROP:
                self._take(held, key, src, cell)
            for a, b in [(src, dst)] if kind in (SEND, MOVE) else [(home, member) for member in members]:
                if a == b:
                    continue
                if kind in (SEND, GATHER):
                    self._copy(held, key, (a, b, cell), layout.tensors[what].nature == "state")
                elif kind == MOVE:
                    self._add(held, key[0], (b, cell), self._take(held, key, a, cell))
                elif (b, cell) in held:  # a reduction: from a member to the home
                    self._add(held, key[0], (a, cell), held.pop((b, cell)))
        return {key}

    def _take(self, held: dict[tuple[int, Cell], Any], key: tuple[str, int, int], place: int, cell: Cell) -> Any:
        if (place, cell) not in held:
            raise Missing(f"{key} {cell} is not on {place}")
        return held.pop((place, cell))

    def _copy(
        self, held: dict[tuple[int, Cell], Any], key: tuple[str, int, int], ends: tuple[int, int, Cell], state: bool
    ) -> None:
        src, dst, cell = ends
        if (src, cell) not in held:
            raise Missing(f"{key} {cell} is not on {src}")
        if (dst, cell) in held and not state:
            raise Missing(f"{key} {cell} is on {dst} already")
        held[dst, cell] = held[src, cell]

    def _add(self, held: dict[tuple[int, Cell], Any], name: str, at: tuple[int, Cell], value: Any) -> None:
        held[at] = merged(name, held[at], value) if at in held else value

    def _compute(
        self, layout: StepLayout, template: Template, formula: Formula, place: int, where: tuple[list[int], int]
    ) -> set[tuple[str, int, int]]:
        """Computes a formula for each combination of its lists' parts."""
        lists, layer = where
        run = _Run(self, layout, template.layout, place, layer)
        parts = [layout.lists[which].tolist() for which in lists if which >= 0]
        results: list[tuple[Reference, dict[str, int], Any]] = []
        for combination in product(*parts):
            at = dict(zip(formula.slots, combination, strict=True))
            if formula.relation is not None and formula.action != "+=" and not _meet(layout, formula, at):
                continue  # a sum is given zeros
            values = run.value(formula, at)
            results += [(one, at, value) for one, value in zip(formula.results, values, strict=True)]
        for one, at, value in results:  # after all is read: an update is of what was there before
            run.put(one, at, value, formula.action)
        return run.keys | {run.key(one) for one in (*formula.operands, *formula.results)}


def _meet(layout: StepLayout, formula: Formula, at: dict[str, int]) -> bool:
    """Returns whether the parts of a relation's slots meet."""
    assert formula.relation is not None
    name, first, second = formula.relation
    one = next(one for one in layout.relations if one.name == name)
    row = int(one.first_group[at[first]])
    return int(one.second_group[at[second]]) in one.partners[one.offsets[row] : one.offsets[row + 1]]


@dataclass
class _Run:
    """One compute: reads and writes values on a place."""

    of: StepInterpreter
    layout: StepLayout
    micro_batch: int
    place: int
    layer: int
    keys: set[tuple[str, int, int]] = field(default_factory=set)

    def key(self, one: Reference) -> tuple[str, int, int]:
        """Returns the key of a tensor's store."""
        return self.of._key(self.layout, self.micro_batch, self.layout.number[one.tensor], self.layer + one.after)

    def _cell(self, one: Reference, at: dict[str, int]) -> Cell:
        """Returns the cell of a reference; of a parameter, that of its slice's first shard."""
        tensor = self.layout.tensors[self.layout.number[one.tensor]]
        found = [0, 0]
        for place, (axis, wanted) in enumerate(zip(one.axes, tensor.axes, strict=False)):
            index = self.layout.index_of(axis.slot)
            part = at[axis.slot]
            if index != wanted:
                part = int(next(m.part for m in self.layout.maps if (m.coarse, m.fine) == (wanted, index))[part])
            found[place] = part
        return found[0], found[1]

    def _range(self, index: str, part: int) -> tuple[int, int]:
        """Returns [first, last) of a part, in heads, columns or words."""
        ends = np.cumsum(self.layout.index[index].sizes)
        return int(ends[part] - self.layout.index[index].sizes[part]), int(ends[part])

    def _inside(self, name: str, index: str, part: int) -> slice:
        """Returns where a part lies in its slice of a parameter."""
        first, last = self._range(index, part)
        size = int(self.layout.index[index].sizes.sum()) // self.of.degree
        return slice(first % size, first % size + last - first)

    def _whole(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a slice of a parameter."""
        shape = list(self.of.weights[name].shape)
        if self.layout.tensors[self.layout.number[name]].layers == "layer":
            shape = shape[1:]
        shape[CUT[name][1]] //= self.of.degree
        return tuple(shape)

    def read(self, one: Reference, at: dict[str, int]) -> Any:
        """Returns the value of a reference."""
        held = self.of.there.get(self.key(one), {})
        base, cell = one.tensor.removeprefix("d"), self._cell(one, at)
        if one.tensor in CUT and len(one.axes) == 1 and one.axes[0].slot not in ("j",):
            shards = [
                self._get(held, one, (cell[0], shard)) for shard in range(len(self.layout.index[f"z{one.tensor}"]))
            ]
            index = self.layout.index_of(one.axes[0].slot)
            where = [slice(None)] * len(self._whole(base))
            where[CUT[one.tensor][1]] = self._inside(one.tensor, index, at[one.axes[0].slot])
            return np.concatenate(shards).reshape(self._whole(one.tensor))[tuple(where)]
        return self._get(held, one, cell)

    def _get(self, held: dict[tuple[int, Cell], Any], one: Reference, cell: Cell) -> Any:
        if (self.place, cell) not in held:
            raise Missing(f"{one} {cell} of layer {self.layer} is not on {self.place}")
        return held[self.place, cell]

    def put(self, one: Reference, at: dict[str, int], value: Any, action: str) -> None:
        """Writes or adds a value."""
        held = self.of.there.setdefault(self.key(one), {})
        cell, base = self._cell(one, at), one.tensor.removeprefix("d")
        if action == "+=" and base in CUT and one.tensor[0] == "d":
            index = self.layout.index_of(one.axes[0].slot)
            whole = np.zeros(self._whole(base))
            where = [slice(None)] * whole.ndim
            where[CUT[base][1]] = self._inside(base, index, at[one.axes[0].slot])
            whole[tuple(where)] = value
            flat = np.split(whole.reshape(-1), np.cumsum(self.layout.index[f"z{base}"].sizes)[:-1])
            for shard, part in enumerate(flat):
                self.of._add(held, one.tensor, (self.place, (cell[0], shard)), part)
        elif action == "+=":
            self.of._add(held, one.tensor, (self.place, cell), value)
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
        if term.function:
            return FUNCTIONS[term.function](self._where(at), *values)
        plain = [value[0] if isinstance(value, tuple) else value for value in values]
        if len(plain) == 1:
            return plain[0]
        sides = ",".join(dims(one.tensor) for one in term.operands)
        return np.einsum(f"{sides}->{dims(result.tensor)}", *plain)

    def _where(self, at: dict[str, int]) -> Where:
        none = np.zeros(0, np.int64)
        t, s, h = at.get("t"), at.get("s"), at.get("h")
        part = next((one.part for one in self.layout.maps if (one.coarse, one.fine) == ("g", "h")), none)
        kv = int(part[h]) if h is not None else at.get("g", 0)
        sequence, position, token, target = self._of_tokens(t)
        key_sequence, key_position, *_ = self._of_tokens(s)
        per_kv = self.of.model.num_heads // self.of.model.num_kv_heads
        words, heads, kv_heads = self._range("v", at.get("v", 0)), self._range("h", h or 0), self._range("g", kv)
        return Where(
            sequence, position, token, target, key_sequence, key_position, words, heads, kv_heads, per_kv
        )  # fmt: skip

    def _of_tokens(self, part: int | None) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns sequences, positions, tokens and targets of a part, empty where there is none."""
        tokens, none = self.of.tokens[self.micro_batch], np.zeros(0, np.int64)
        if part is None:
            return none, none, none, none
        return tokens.sequence[part], tokens.position[part], tokens.token[part], tokens.target[part]
