"""A micro-batch's templates: what is computed and moved from the embedding to its gradient, and the contracts of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layers import is_attention, of_experts, of_relay
from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, MOST_LANES, PLACE, ListTable
from zbench.step.operations import REDUCE, Operations, operation_row
from zbench.step.passes.attention import PlanAttention, with_drops
from zbench.step.passes.contributions import TABLE, Contributions, Rows
from zbench.step.passes.experts import ExpertModules
from zbench.step.passes.memory.chunks import TokenChunks, by_chunks
from zbench.step.passes.parameters.gathered import GatheredParameters
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.held import HeldParameters
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.recompute import BEFORE
from zbench.step.passes.sections import DENSE_BACKWARD, DENSE_FORWARD, KEPT, Sections
from zbench.step.passes.tensor_parallel import LinearModules
from zbench.step.passes.tensors import tensors_of
from zbench.step.template import AT_HOME, COMPLETE, ITEM_COLUMNS, Items, Template, entry_table
from zbench.step.tensor import LEADING

Tables = Sequence[Ints | Rows]  # of operations or of entries, columns as of either


@dataclass(frozen=True)
class BatchTemplates:
    """A micro-batch's part of a step while it is built. number, count: which of how many it is. staged: whether it goes
    through a job's pipeline stages, of which others are under way meanwhile. computed: operations of sections that were
    made so far, which do not depend on the number."""

    number: int
    count: int
    parts: PlanParts
    layout: StepLayout
    lists: ListTable
    parameters: GradientRows
    formulas: Sections
    linear: LinearModules
    experts: ExpertModules
    attention: PlanAttention
    staged: bool = False
    computed: dict[tuple[str, str], list[Ints]] = field(default_factory=dict, repr=False, compare=False)
    _entries: dict[str, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(
        parts: PlanParts,
        batch: tuple[int, int],
        parameters: ShardedParameters,
        formulas: Sections,
        places: int,
        staged: bool = False,
    ) -> "BatchTemplates":
        """Lays out a micro-batch. batch: which of how many it is; places: how many there are; staged: as of the
        class."""
        indices = (*parts.indices(), *parameters.indices())
        sizes = {**{one.name: len(one) for one in indices}, PLACE: places, LANE: MOST_LANES}
        layout = StepLayout(
            indices,
            (("s", "t"),),
            parts.maps,
            parts.relations(),
            tensors_of(parts.model, formulas.all, parts, parameters, formulas.kinds),
            formulas.all,
            ListTable(sizes).lists(),
        )
        tables = parameters.tables(layout.form, places)
        lists = tables.begin(sizes)
        return BatchTemplates(
            *batch,
            parts,
            layout,
            lists,
            GradientRows(parameters, layout, lists, tables),
            formulas,
            LinearModules(parts, layout, lists),
            ExpertModules(parts, layout, lists),
            PlanAttention(parts, layout, lists),
            staged,
        )

    def templates(self, gradients: dict[str, Ints], loss: int) -> tuple[list[Template], int]:
        """Returns the templates of a micro-batch, in the order in which they are played, and the contributions to the
        loss so far. gradients: contributions of every GPU to every parameter's so far; they are counted on."""
        begun = dict(gradients)
        return [
            self._embedding(),
            self._forward(),
            self._head(gradients, loss),
            self._backward(gradients),
            self._embedding_backward(gradients, begun),
        ], loss + len(self.parts.home)

    def forward_templates(self, loss: int) -> tuple[list[Template], int]:
        """Returns the templates of a micro-batch of forwards alone, and the contributions to the loss, as
        `templates`."""
        gathers, had, has = self._gathered.outside_layers(self.parameters.of.of_head, self._head_there)
        ops: Tables = [gathers, *self._computed("head"), self._loss_summed]
        before, after = self._losses(loss)
        head = self.template("head", ops, [had, self.tokens("x"), before], [has, after], "head")
        return [self._embedding(), self._forward(), head], loss + len(self.parts.home)

    def kept_templates(self, begun: Mapping[str, Ints]) -> list[Template]:
        """Returns the templates of a layer that is not recomputed where others are, forward and backward. begun:
        contributions before the micro-batch."""
        return [self._forward(KEPT), self._backward(dict(begun), KEPT)]

    def dense_templates(self, begun: Mapping[str, Ints], gradients: dict[str, Ints]) -> list[Template]:
        """Returns the templates of a dense layer before layers with experts, forward and backward. begun: contributions
        before the micro-batch; gradients: as of `templates`, of which those are counted on that such layers alone
        have."""
        own, kinds = dict(begun), self.parameters.of.kinds
        found = [self._forward(DENSE_BACKWARD), self._backward(own, DENSE_BACKWARD)]
        gradients |= {name: own[name] for name, kind in kinds.items() if kind == LEADING}
        return found

    def template(self, name: str, ops: Tables, needs: Tables, leaves: Tables, section: str = "") -> Template:
        """Returns a template of this micro-batch. section: whose formulas it computes, "" if it computes none."""
        numbers = tuple(self.formulas.numbers[section]) if section else ()
        name = f"{name}.{self.number}" if self.count > 1 else name
        rows, *sides = ([np.asarray(table, np.int64) for table in each if len(table)] for each in (ops, needs, leaves))
        return Template(name, self.number, Operations.of_tables(rows), numbers, *map(Items.of_tables, sides))

    def _computed(self, section: str, again: str = "") -> list[Ints]:
        """Returns the operations of a section's formulas, after the exchanges of what they read. again: "~" where a
        backward's attention reads what was made again."""
        if (section, again) not in self.computed:
            self.computed[section, again] = self._made_computed(section, again)
        return self.computed[section, again]

    def _made_computed(self, section: str, again: str) -> list[Ints]:
        numbers, formulas = self.formulas.numbers[section], self.layout.formulas
        if self.parts.routing is None and section not in self._chunks:
            attends = [number for number in numbers if is_attention(formulas[number])]
            first, *others = self.linear.runs(numbers, attends, self.parameters.tables)
            made = (self._attention(formulas[number].results[0].tensor, again) for number in attends)
            return [first, *(table for pair in zip(made, others, strict=True) for table in (*pair[0], pair[1]))]
        linear, experts, found = self.linear.fresh(), self.experts.fresh(self.formulas.numbers[section]), []
        for number in numbers:
            one = formulas[number]
            if self.parts.routing is not None:
                found += experts.exchange(number)
            if of_experts(one) or of_relay(one):
                found += experts.rows(number)
            elif not is_attention(one):
                found += linear.rows(number)
            else:
                found += self._attention(one.results[0].tensor, again)
        chunks = self._chunks.get(section)
        return found if chunks is None else by_chunks(found, section, self.formulas.level in BEFORE, chunks)

    @cached_property
    def _chunks(self) -> Mapping[str, TokenChunks]:
        """The chunks of tokens by which a section's formulas are computed, of those that have some."""
        mlp, loss = (
            None if one is None else TokenChunks(self.layout, self.lists, self.parts.chunk_numbers(one))
            for one in (self.parts.mlp_chunk, self.parts.loss_chunk)
        )
        every = {"head": loss} | dict.fromkeys(("forward", "backward", KEPT, DENSE_FORWARD, DENSE_BACKWARD), mlp)
        return {section: one for section, one in every.items() if one is not None}

    def _attention(self, made: str, again: str) -> list[Ints]:
        """Returns the operations of attention that make o, make it again (o~), or make dq and dkv."""
        plan, rows = self.parts.plan, self.attention
        if made == "dq":
            return [rows.operations(plan.backward, True, again)]
        if made == "o":
            return [rows.operations(plan.forward)]
        repeated, drops = rows.operations(plan.forward, again=again), rows.dropped(again)
        return [with_drops(repeated, drops, self.lists, self.layout.number[f"kv{again}"])]

    def tokens(self, name: str, layer: int = 0) -> Rows:
        """Returns the entry of a tensor of tokens at home."""
        return [[self.layout.number[name], layer, AT_HOME, self.lists.whole("t"), -1, 0, 0, 0]]

    @cached_property
    def contributions(self) -> Contributions:
        """The contributions to gradients."""
        modules = (self.linear, self.experts)
        return Contributions(self.number + 1 == self.count, self.parameters, self.formulas, modules)

    @property
    def _gathered(self) -> GatheredParameters:
        """How the micro-batch's templates find parameters, gather them and leave them."""
        held = HeldParameters(self.parameters.of.degrees, self.number, self.count, self.staged)
        return GatheredParameters(self.parameters, held)

    def _embedding(self) -> Template:
        rows = self.parameters
        ahead = self._gathered.ahead(range(rows.of.forward_window), True)
        gathers, before, after = self._gathered.outside_layers(TABLE)
        ops: Tables = [gathers, *(self._gathered.layer_gathers(layer) for layer in ahead)]
        needs = [before, self._gathered.entries((), ahead, self._gathered.held.of_layers_before)]
        found = self._gathered.entries(ahead, (), back=self._gathered.held.finds_copies)
        leaves: Tables = [after, found, self.tokens("x")]
        return self.template("embedding", [*ops, *self._computed("embedding")], needs, leaves, "embedding")

    def fetch(self, name: str, forward: bool) -> Template:
        """Returns the template in which a stage gathers the parameters of its first layers ahead, of those that a
        forward or a backward begins with."""
        of = self.parameters.of
        ahead = self._gathered.ahead(range(of.forward_window) if forward else range(1 - of.window, 1), forward)
        degree = self._gathered.held.of_layers_before if forward else of.degrees.secondary
        ops: Tables = [
            self._gathered.layer_gathers(layer) if forward else self._gathered.gathers_again(layer) for layer in ahead
        ]
        found = self._gathered.entries(ahead, (), back=not forward or self._gathered.held.finds_copies)
        return self.template(name, ops, [self._gathered.entries((), ahead, degree)], [found])

    def _forward(self, section: str = "backward") -> Template:
        """Returns the template of a layer's forward. section: of its backward, for which it keeps something."""
        rows = self.parameters
        gathers = [self._gathered.layer_gathers(rows.of.forward_window)] if self._gathered.gathers_layers else []
        needs, leaves = self._gathered.around_layer(True)
        name, own = {KEPT: ("kept_forward", "forward"), DENSE_BACKWARD: (DENSE_FORWARD, DENSE_FORWARD)}.get(
            section, ("forward", "forward")
        )
        ops: Tables = [*gathers, *self._computed(own)]
        left: Tables = [leaves, self.tokens("x", 1), self._saved(section)]
        return self.template(name, ops, [needs, self.tokens("x")], left, own)

    def _saved(self, section: str) -> Ints:
        """Returns the entries of what a forward keeps for its backward, of a section."""
        if section not in self._entries:
            self._entries[section] = np.concatenate(self._made_saved(self.formulas.saved(section)))
        return self._entries[section]

    def _made_saved(self, saved: Sequence[str]) -> list[Ints]:
        found = list[Ints]()
        for name in saved:
            number = self.layout.number[name]
            tensor = self.layout.tensors[number]
            if tensor.axes == ("t",):
                found.append(np.array(self.tokens(name), np.int64))
            elif tensor.axes[1:] in (("e",), ("k",), ("n",)):
                found.append(np.array(self.experts.saved(name), np.int64).reshape(-1, len(ITEM_COLUMNS)))
            else:
                complete = COMPLETE if tensor.nature == "sum" else 0
                own: tuple[Ints, ...]
                if name in ("q", "kv"):
                    own = self.attention.own(name)
                else:
                    gpus = self.linear.gpus(True)
                    own = gpus, *(self.linear.lists_of(axis, True)[gpus] for axis in tensor.axes)
                found.append(entry_table(number, self.lists.places[own[0]], own[1:], complete))
        return [*found, self.attention.kept_copies(saved)]

    @property
    def _head_there(self) -> Sequence[str]:
        """The parameters used after the layers that a micro-batch has used before."""
        return self.parameters.of.of_head if self.parameters.of.gathered_first else TABLE

    def _head(self, gradients: dict[str, Ints], loss: int) -> Template:
        rows = self.parameters
        ahead = self._gathered.ahead(range(-rows.of.window, 0), False)
        gathers, had, has = self._gathered.outside_layers(rows.of.of_head, self._head_there)
        kept = rows.of.degrees.secondary
        ops: Tables = [gathers, *(self._gathered.gathers_again(layer) for layer in ahead)]
        computed: Tables = [*self._computed("head"), self._loss_summed]
        before, after, reductions = self.contributions.entries("head", gradients)
        lost, losses = self._losses(loss)
        needs: Tables = [had, self._gathered.entries((), ahead, kept), self.tokens("x"), before, lost]
        leaves: Tables = [has, self._gathered.entries(ahead, (), back=True), self.tokens("dx"), after, losses]
        return self.template("head", [*ops, *computed, reductions], needs, leaves, "head")

    @property
    def _loss_summed(self) -> Rows:
        """The reduction of the loss over all GPUs to the first one."""
        if self.parts.num_gpus == 1:
            return []
        every = self.lists.number(PLACE, np.arange(self.parts.num_gpus))
        return [operation_row(REDUCE, self.layout.number["loss"], (-1, every), [], "gradients")]

    def _losses(self, loss: int) -> tuple[Rows, Rows]:
        """Returns the entries of the loss before and after the micro-batch. loss: contributions to it so far."""
        entry = [self.layout.number["loss"], 0, self.lists.number(PLACE, [0]), -1, -1]
        return [[*entry, loss, 0, 0]] if loss else [], [[*entry, loss + len(self.parts.home), 0, 0]]

    def _backward(self, gradients: dict[str, Ints], section: str = "backward") -> Template:
        rows = self.parameters
        again = "~" if section != KEPT and "o~" in self.layout.number else ""
        gathers = [self._gathered.gathers_again(-rows.of.window)] if rows.of.gathered else []
        ops: Tables = [*gathers, *self._computed(section, again)]
        before, after, reductions = self.contributions.entries(section, gradients)
        needs, leaves = self._gathered.around_layer(False)
        found: Tables = [needs, self.tokens("dx", 1), self._saved(section), before]
        return self.template(section, [*ops, reductions], found, [leaves, self.tokens("dx"), after], section)

    def _embedding_backward(self, gradients: dict[str, Ints], begun: Mapping[str, Ints]) -> Template:
        """Returns the template of the table's gradient. begun: contributions before the micro-batch."""
        ops = self._computed("embedding_backward")
        before, after, reductions = self.contributions.entries("embedding_backward", gradients, begun)
        needs = [self.tokens("dx"), before]
        return self.template("embedding_backward", [*ops, reductions], needs, [after], "embedding_backward")
