"""Executes the columns of a dense step on simulated places, in float64.

It does what operations say, one combination of parts after another, and shares no code with the proof. It does not
count contributions nor look at versions: a step that is wrong comes to wrong numbers here, or to something missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from zbench.correctness.steps.axes import CUT, from_memory, in_memory, slice_in_whole
from zbench.correctness.steps.computing import (
    Cell,
    Choices,
    ComputeOnPlace,
    Missing,
    References,
    Store,
    Tokens,
    Wheres,
    add_value,
    parts_that_meet,
    store_key,
)
from zbench.correctness.steps.quantised import after_transfer
from zbench.describe.arrays import Floats
from zbench.describe.model import Model
from zbench.step.formula import Formula, Reference
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, MOVE, SEND
from zbench.step.template import ACROSS, AT_HOME, GONE, Encoding, Instance, Items, Step, Template

# Place and cell of the items of a contract, by tensor and layer offset.
ItemsByTensor = dict[tuple[int, int], list[tuple[int, Cell]]]


@dataclass
class StepInterpreter:
    """Executes a step. tokens: of its micro-batches' layouts, which are the first ones. weights: by name, [layers, ...]
    or [...] of those of no layer, whole. choices: of routers, as of ComputeOnPlace. gradients: as weights, what it
    begins with of them."""

    step: Step
    model: Model
    tokens: Sequence[Tokens]
    weights: Mapping[str, Floats]
    there: Store = field(default_factory=dict)
    choices: Choices = field(default_factory=dict)
    gradients: Mapping[str, Floats] = field(default_factory=dict)
    _wheres: Wheres = field(default_factory=dict)
    _known: References = field(default_factory=dict)
    _kept: dict[tuple[int, int], ItemsByTensor] = field(default_factory=dict)  # by micro-batch and id

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
                for op in template.operations.table.tolist():
                    touched |= self._do(template, op, one, layer)
                self._forget(layout, one, layer, touched)
        return self.there

    def _begin(self) -> None:
        """Puts parameters where the step has them, and optimizer state of zeros."""
        layout = self.step.layouts[0]
        for name, layers, first, cell in self.resting(layout, self.step.begins):
            tensor = layout.tensors[layout.number[name]]
            for layer in layers:
                of_step = tensor.layers == "none"
                place = first if of_step else int(self.step.where(ACROSS, layer)[first])
                whole = self.gradients[name[1:]] if name[0] == "d" else self.weights[name.removeprefix("s")]
                shards = self.shards(layout, name, whole if of_step else whole[layer], cell[0])
                value = shards[cell[1]] if tensor.axes else shards[0]
                self.there.setdefault((name, layer, -1), {})[place, cell] = 0 * value if name[0] == "s" else value

    def resting(self, layout: StepLayout, items: Items) -> Iterator[tuple[str, range, int, Cell]]:
        """Yields (tensor, layers, place, cell) of what the step begins or ends with."""
        since: dict[str, set[int]] = {}  # by tensor: the layers from which on there are entries of it
        for tensor, begin in items.table[:, :2].tolist():
            since.setdefault(layout.tensors[tensor].name, set()).add(begin)
        for name, begin, place, cell in self.named(layout, items):
            low, high = self._layers(layout, name, 0, self.step.num_layers - 1)
            high = min([high, *(one - 1 for one in since[name] if one > begin)])
            yield name, range(max(low, begin), high + 1), place, cell

    def named(self, layout: StepLayout, items: Items) -> Iterator[tuple[str, int, int, Cell]]:
        """Yields (tensor, layer offset, place, cell) of the items of a contract."""
        for tensor, layer, places, list0, list1, *_ in items.rows():
            if places == GONE:
                continue
            one = layout.tensors[tensor]
            sides = [layout.lists[which].tolist() if which >= 0 else [0] for which in (list0, list1)]
            width = len(layout.index[one.axes[1]]) if len(one.axes) > 1 else 1
            for a, b in product(*sides):
                at_home = [int(one.home[a * width + b])] if places == AT_HOME else layout.lists[places].tolist()
                for place in at_home:
                    yield one.name, layer, place, (a, b)

    def shards(self, layout: StepLayout, name: str, whole: Floats, share: int) -> list[Floats]:
        """Returns the flat shards of a slice of a parameter, its gradient or its state."""
        name = name if name in self.weights else name[1:]
        if name not in CUT:
            return [whole]
        part = whole[slice_in_whole(layout, name, whole.shape, share)]
        return list(np.split(in_memory(name, part), np.cumsum(layout.index[f"z{name}"].sizes)[:-1]))

    def _exists(self, layout: StepLayout, tensor: int, one: tuple[int, int, int]) -> bool:
        """Returns whether there is a tensor of a layer for an instance. one: the instance's layer, the tensor's, the
        instance's place."""
        kind, (mine, layer, place) = layout.tensors[tensor].layers, one
        if kind == "none":
            return True
        first, last = 0, self.step.num_layers - 1
        if place != ACROSS:
            pipeline = self.step.pipeline_of[place]
            first, last = self.step.layers_of_stages[pipeline, min(mine, self.step.num_layers)].tolist()
        low, high = self._layers(layout, layout.tensors[tensor].name, first, last)
        return bool(low <= layer <= high)

    def _layers(self, layout: StepLayout, name: str, first: int, last: int) -> tuple[int, int]:
        """Returns the first and the last of some layers that there is a tensor of."""
        match layout.tensors[layout.number[name]].layers:
            case "none":
                return 0, 0
            case "border":
                return first, last + 1
            case "leading":
                return first, min(last, self.step.leading - 1)
            case "following":
                return max(first, self.step.leading), last
        return first, last

    def _forget(self, layout: StepLayout, one: Instance, layer: int, touched: set[tuple[str, int, int]]) -> None:
        """Drops what a template used and does not leave."""
        template = self.step.templates[one.template]
        left: dict[tuple[str, int, int], set[tuple[int, Cell]]] = {}
        used, where = set(touched), self.step.where(one.place, layer).tolist()
        for items, leaves in ((template.needs, False), (template.leaves, True)):
            for (tensor, offset), cells in self._by_tensor(template.layout, items).items():
                if self._exists(layout, tensor, (layer, layer + offset, one.place)):
                    key = store_key(layout, template.layout, tensor, layer + offset)
                    used.add(key)
                    if leaves:
                        left.setdefault(key, set()).update((where[place], cell) for place, cell in cells)
        for key in used:
            held, of = self.there.get(key, {}), self.step.pipeline_of
            # What is of the step is there in each pipeline: an instance in one of them says nothing of the others.
            here = [at for at in held if one.place == ACROSS or key[2] >= 0 or of[at[0]] == of[one.place]]
            for at in [at for at in here if at not in left.get(key, ())]:
                del held[at]

    def _by_tensor(self, micro_batch: int, items: Items) -> ItemsByTensor:
        """Returns the items of a template's contract, which its instances have in common; templates of other
        micro-batches may have the same ones, of other cells and homes."""
        of, layout = (micro_batch, id(items)), self.step.layouts[micro_batch]
        if of not in self._kept:
            found: ItemsByTensor = {}
            for name, offset, place, cell in self.named(layout, items):
                found.setdefault((layout.number[name], offset), []).append((place, cell))
            self._kept[of] = found
        return self._kept[of]

    def _do(self, template: Template, op: list[int], one: Instance, layer: int) -> set[tuple[str, int, int]]:
        """Does an operation; returns the keys of what it used."""
        layout = self.step.layouts[template.layout]
        kind, what, src, dst, *lists = op[:7]
        where = self.step.where(one.place, layer).tolist()
        if kind == COMPUTE:
            return self._compute(template, layout.formulas[what], where[src], (lists, layer))
        key = store_key(layout, template.layout, what, layer + op[7])
        if not self._exists(layout, what, (layer, layer + op[7], one.place)):
            return set()
        held = self.there.setdefault(key, {})
        members = layout.lists[dst].tolist() if kind not in (SEND, MOVE, DROP) else []
        width = layout.shape(what)[1]
        for cell in product(*(layout.lists[which].tolist() if which >= 0 else [0] for which in lists[:2])):
            home = int(layout.tensors[what].home[cell[0] * width + cell[1]])
            if members and src > 0:  # each run of so many places has homes of its own
                home = members[0] // src * src + home % src
            if kind == DROP:
                self._take(held, key, where[src], cell)
            for a, b in [(src, dst)] if kind in (SEND, MOVE) else [(home, member) for member in members]:
                first, second = where[a], where[b]
                if a == b:
                    continue
                coded = self.step.encodings[op[10]] if op[10] >= 0 else None
                if kind in (SEND, GATHER):
                    self._copy(held, key, (first, second, cell), layout.tensors[what].nature == "state")
                    held[second, cell] = self._carried(key[0], held[second, cell], coded)
                elif kind == MOVE:
                    carried = self._carried(key[0], self._take(held, key, first, cell), coded)
                    add_value(held, key[0], (second, cell), carried)
                elif (second, cell) in held:  # a reduction: from a member to the home
                    carried = self._carried(key[0], held.pop((second, cell)), coded)
                    add_value(held, key[0], (first, cell), carried)
        return {key}

    def _carried(self, name: str, value: Any, encoding: Encoding | None) -> Any:
        """Returns a cell as it arrives; encoded in the order in which it lies in memory."""
        if encoding is None:
            return value
        base = name.removeprefix("d")
        if base in CUT:  # a shard, flat
            return after_transfer(value, encoding)
        return from_memory(base, after_transfer(in_memory(base, value), encoding), value.shape)

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

    def _compute(
        self, template: Template, formula: Formula, place: int, where: tuple[list[int], int]
    ) -> set[tuple[str, int, int]]:
        """Computes a formula for each combination of its lists' parts."""
        (lists, layer), layout = where, self.step.layouts[template.layout]
        tokens = self.tokens[template.layout] if template.layout < len(self.tokens) else Tokens([], [], [], [])
        of = self.there, self.weights, tokens, self.model, self.choices
        run = ComputeOnPlace(*of, layout, template.layout, place, layer, self._wheres, self._known)
        parts = [layout.lists[which].tolist() for which in lists if which >= 0]
        results: list[tuple[Reference, dict[str, int], Any]] = []
        meet = parts_that_meet(layout, formula)
        for combination in product(*parts):
            at = dict(zip(formula.slots, combination, strict=True))
            if formula.relation is not None and not meet(at):
                if formula.relation[0] != "visible":
                    # The gradient of an expert without tokens is zeros; so is what tokens get that went to none.
                    if formula.results[0].slots in (("e",), ("t",)):
                        results.append((formula.results[0], at, run.zeros(formula, at)))
                    continue
                if formula.action != "+=":
                    continue  # a sum is given zeros
            values = run.value(formula, at)
            results += [(one, at, value) for one, value in zip(formula.results, values, strict=True)]
        for one, at, value in results:  # after all is read: an update is of what was there before
            run.put(one, at, value, formula.action)
        return {run.looked_at(one).key for one in (*formula.operands, *formula.results)}
