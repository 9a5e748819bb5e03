"""A micro-batch's templates: what is computed and moved from the embedding to its gradient, and the contracts of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.step.formula import Formula
from zbench.step.layers import MERGE
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE, ListTable
from zbench.step.operations import REDUCE, Operations, operation_row
from zbench.step.passes.attention import attention_rows, dropped_rows, kept_copies
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.tensor_parallel import LinearModules, is_sliced
from zbench.step.passes.tensors import tensors_of
from zbench.step.passes.zero import LAYER_WEIGHTS, ParameterRows, ShardedParameters
from zbench.step.template import AT_HOME, COMPLETE, Items, Template

_HEAD_WEIGHTS, _EMBEDDING_WEIGHTS = ("gl", "wh"), ("we",)
Rows = list[list[int]]


@dataclass(frozen=True)
class Sections:
    """The formulas of a step: of a layer's forward and backward, and of what is before and after the layers."""

    forward: tuple[Formula, ...]
    backward: tuple[Formula, ...]
    embedding: tuple[Formula, ...]
    head: tuple[Formula, ...]
    embedding_backward: tuple[Formula, ...]
    updates: tuple[Formula, ...]

    @property
    def all(self) -> tuple[Formula, ...]:
        """All formulas."""
        return self.embedding + self.forward + self.head + self.backward + self.embedding_backward + self.updates

    @property
    def saved(self) -> tuple[str, ...]:
        """The tensors that a layer's backward reads of its forward, its input among them."""
        made = {ref.tensor for one in self.backward for ref in one.results}
        reads = dict.fromkeys(ref.tensor for one in self.backward for ref in one.operands)
        weights = (*LAYER_WEIGHTS, "dx")
        return tuple(name for name in reads if name not in made and name not in weights)


@dataclass(frozen=True)
class BatchTemplates:
    """A micro-batch's part of a step while it is built. number, count: which of how many it is."""

    number: int
    count: int
    model: Model
    parts: PlanParts
    layout: StepLayout
    lists: ListTable
    parameters: ParameterRows
    formulas: Sections

    @staticmethod
    def of(
        model: Model, plan: Plan, number: int, count: int, parameters: ShardedParameters, formulas: Sections
    ) -> "BatchTemplates":
        """Lays out a micro-batch."""
        parts = PlanParts(plan, model, parameters.degree)
        indices = (*parts.indices(), *parameters.indices())
        sizes = {**{one.name: len(one) for one in indices}, PLACE: parts.num_gpus, LANE: 2**15}
        lists = ListTable(sizes)
        layout = StepLayout(
            indices, (("s", "t"),), parts.maps(), (parts.visible(),),
            tensors_of(model, formulas.all, parts, parameters, MERGE), formulas.all, lists.lists(),
        )  # fmt: skip
        rows = ParameterRows(parameters, layout, lists)
        return BatchTemplates(number, count, model, parts, layout, lists, rows, formulas)

    def templates(self, gradients: dict[str, Ints], loss: int) -> tuple[list[Template], int]:
        """Returns the templates of a micro-batch, in the order in which they are played, and the contributions to the
        loss so far. gradients: contributions of every GPU to every parameter's so far; they are counted on."""
        tokens = len(self.parts.home)
        return [
            self._embedding(), self._forward(), self._head(gradients, loss),
            self._backward(gradients), self._embedding_backward(gradients),
        ], loss + tokens  # fmt: skip

    def _template(self, name: str, ops: Rows, formulas: Sequence[Formula], needs: Rows, leaves: Rows) -> Template:
        numbers = tuple(self.layout.formulas.index(one) for one in formulas)
        name = f"{name}.{self.number}" if self.count > 1 else name
        return Template(name, self.number, Operations.of(ops), numbers, Items.of(needs), Items.of(leaves))

    def _linear(self) -> LinearModules:
        return LinearModules(self.parts, self.layout, self.lists)

    def _tokens(self, name: str, layer: int = 0) -> Rows:
        """Returns the entry of a tensor of tokens at home."""
        return [[self.layout.number[name], layer, AT_HOME, self.lists.whole("t"), -1, 0, 0, 0]]

    def _embedding(self) -> Template:
        rows, linear = self.parameters, self._linear()
        ahead = self._ahead(range(rows.of.window))
        ops = rows.gathers(_EMBEDDING_WEIGHTS)
        ops += [line for layer in ahead for line in rows.gathers(LAYER_WEIGHTS, layer)]
        ops += [line for one in self.formulas.embedding for line in linear.rows(one)]
        rest = [line for weight in _EMBEDDING_WEIGHTS for line in rows.resting(weight)]
        needs = rest + self._weights((), ahead)
        return self._template(
            "embedding", ops, self.formulas.embedding, needs, rest + self._weights(ahead, ()) + self._tokens("x")
        )

    def _ahead(self, layers: range) -> tuple[int, ...]:
        """Returns the offsets of layers that stage 3 gathers ahead, none of other stages."""
        return tuple(layers) if self.parameters.of.gathered else ()

    def _weights(self, gathered: Sequence[int], home: Sequence[int]) -> Rows:
        """Returns the entries of a layer's parameters, by the offsets of layers that are gathered or at home alone."""
        found = []
        for weight in LAYER_WEIGHTS:
            for layer in gathered:
                found += self.parameters.everywhere(weight, weight, layer)
            for layer in home:
                found += self.parameters.at_home(weight, weight, layer)
        return found

    def _around(self, sign: int) -> tuple[Rows, Rows]:
        """Returns what a layer's template needs and leaves of parameters. sign: 1 in a forward, -1 in a backward."""
        if not self.parameters.of.gathered:
            return self._weights((0,), ()), self._weights((0,), ())
        window = self.parameters.of.window
        offsets = [sign * layer for layer in range(window + 1)]
        return self._weights(offsets[:-1], offsets[-1:]), self._weights(offsets[1:], offsets[:1])

    def _forward(self) -> Template:
        rows, linear = self.parameters, self._linear()
        ops = rows.gathers(LAYER_WEIGHTS, rows.of.window)
        for one in self.formulas.forward:
            if one.relation is None:
                ops += linear.rows(one)
            else:
                ops += attention_rows(self.parts, self.parts.plan.forward, self.layout, self.lists).tolist()
        needs, leaves = self._around(1)
        return self._template(
            "forward", ops, self.formulas.forward, needs + self._tokens("x"),
            leaves + self._tokens("x", 1) + self._saved(),
        )  # fmt: skip

    def _saved(self) -> Rows:
        """Returns the entries of what a forward keeps for its backward."""
        found: Rows = []
        for name in self.formulas.saved:
            number = self.layout.number[name]
            tensor = self.layout.tensors[number]
            if tensor.axes == ("t",):
                found += self._tokens(name)
                continue
            complete = COMPLETE if tensor.nature == "sum" else 0
            for gpu in range(self.parts.num_gpus):
                tokens = self._linear().group(gpu)
                if len(tokens):
                    cut = self.lists.number(tensor.axes[1], self._linear().of_slice(tensor.axes[1], gpu))
                    found.append(self._entry(number, gpu, self.lists.number("t", tokens), cut, complete))
        return found + self._kept()

    def _entry(self, tensor: int, gpu: int, tokens: int, cut: int, count: int) -> list[int]:
        return [tensor, 0, self.lists.number(PLACE, [gpu]), tokens, cut, count, 0, 0]

    def _kept(self) -> Rows:
        """Returns the entries of the copies that a plan keeps where it brought them."""
        found = []
        for name, rank, blocks, (low, high) in kept_copies(self.parts):
            if name not in self.formulas.saved:
                continue
            tokens = self.lists.number("t", self.parts.of_blocks(np.sort(blocks)))
            heads = np.arange(*np.searchsorted(self.parts.head_cuts, (low, high)))
            index = "h" if name == "q" else "g"
            cut = heads if name == "q" else np.unique(self.parts.kv_of_head[heads])
            for share in range(self.parts.degree):
                gpu, mine = rank * self.parts.degree + share, self.parts.of_slice(index, share)[cut]
                found.append(self._entry(self.layout.number[name], gpu, tokens, self.lists.number(index, mine), 0))
        return found

    def _head(self, gradients: dict[str, Ints], loss: int) -> Template:
        rows, linear = self.parameters, self._linear()
        ahead = self._ahead(range(-rows.of.window, 0))
        ops = rows.gathers(_HEAD_WEIGHTS)
        ops += [line for layer in ahead for line in rows.gathers(LAYER_WEIGHTS, layer)]
        ops += [line for one in self.formulas.head for line in linear.rows(one)]
        number, home = self.layout.number["loss"], self.lists.number(PLACE, [0])
        if self.parts.num_gpus > 1:
            ops.append(operation_row(REDUCE, number, (-1, self.lists.whole(PLACE)), [], "gradients"))
        before, after, reductions = self._gradients(_HEAD_WEIGHTS, self.formulas.head, gradients)
        rest = [line for weight in _HEAD_WEIGHTS for line in rows.resting(weight)]
        needs = rest + self._weights((), ahead) + self._tokens("x") + before
        leaves = rest + self._weights(ahead, ()) + self._tokens("dx") + after
        entry = [number, 0, home, -1, -1]
        needs += [[*entry, loss, 0, 0]] if loss else []
        leaves.append([*entry, loss + len(self.parts.home), 0, 0])
        return self._template("head", ops + reductions, self.formulas.head, needs, leaves)

    def _backward(self, gradients: dict[str, Ints]) -> Template:
        rows, linear, plan = self.parameters, self._linear(), self.parts.plan
        ops = rows.gathers(LAYER_WEIGHTS, -rows.of.window)
        again = "~" if any(ref.tensor == "o~" for one in self.formulas.backward for ref in one.results) else ""
        for one in self.formulas.backward:
            if one.relation is None:
                ops += linear.rows(one)
            elif one.results[0].tensor == "dq":
                ops += attention_rows(self.parts, plan.backward, self.layout, self.lists, True, again).tolist()
            else:
                ops += attention_rows(self.parts, plan.forward, self.layout, self.lists, again=again).tolist()
                ops += dropped_rows(self.parts, self.layout, self.lists, again).tolist()
        before, after, reductions = self._gradients(LAYER_WEIGHTS, self.formulas.backward, gradients)
        needs, leaves = self._around(-1)
        needs += self._tokens("dx", 1) + self._saved() + before
        return self._template(
            "backward", ops + reductions, self.formulas.backward, needs, leaves + self._tokens("dx") + after
        )

    def _embedding_backward(self, gradients: dict[str, Ints]) -> Template:
        linear = self._linear()
        ops = [line for one in self.formulas.embedding_backward for line in linear.rows(one)]
        before, after, reductions = self._gradients(_EMBEDDING_WEIGHTS, self.formulas.embedding_backward, gradients)
        return self._template(
            "embedding_backward", ops + reductions, self.formulas.embedding_backward,
            self._tokens("dx") + before, after,
        )  # fmt: skip

    def _gradients(
        self, weights: Sequence[str], formulas: Sequence[Formula], gradients: dict[str, Ints]
    ) -> tuple[Rows, Rows, Rows]:
        """Returns the entries of gradients before and after a template, and their reductions; counts its
        contributions."""
        before: Rows = []
        after: Rows = []
        last = self.number + 1 == self.count
        for weight in weights:
            counts: Mapping[int, int] = dict(enumerate(gradients[weight].tolist()))
            before += self.parameters.gradients(weight, counts, self.total(gradients[weight], weight), False)
            for one in formulas:
                if any(ref.tensor == f"d{weight}" for ref in one.results):
                    gradients[weight] = gradients[weight] + self._contributions(one)
            counts = dict(enumerate(gradients[weight].tolist()))
            after += self.parameters.gradients(weight, counts, self.total(gradients[weight], weight), last)
        return before, after, self.parameters.reductions(tuple(weights), last)

    def total(self, counts: Ints, weight: str) -> int:
        """Returns the contributions of all GPUs that have a slice of a parameter."""
        return sum(int(counts[gpu]) for gpu in self.parameters.of.members(weight)[0][1])

    def _contributions(self, formula: Formula) -> Ints:
        """Returns how many contributions every GPU makes to each cell of its slice of a gradient."""
        linear, sliced = self._linear(), is_sliced(formula)
        found = []
        for gpu in range(self.parts.num_gpus):
            slots = [self.layout.index_of(slot) for slot in formula.slots]
            cut = [len(linear.of_slice(index, gpu)) for index in slots if index != "t"]
            found.append(len(linear.group(gpu) if sliced else linear.own(gpu)) * int(np.prod(cut)))
        return np.array(found, np.int64)
