"""Pipelines side by side have in common a layout of parameters alone, and templates that are played across them.

Parameters are gathered from their homes, the loss is summed, gradients are reduced and parameters updated. A template
names places as they are for the first layer, so one serves all layers, whatever stages have them.
"""

from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.degrees import WORLD
from zbench.describe.model import Model
from zbench.step.index import Index, PartMap
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import REDUCE, Operations, operation_row
from zbench.step.passes.contributions import Rows
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.parameters.optimizer import optimizer_template
from zbench.step.passes.parameters.pipeline_parameters import CommonParameters, PipelineShapes
from zbench.step.passes.parameters.pipeline_tables import PipelineTables, tables_updates
from zbench.step.passes.parameters.weights import TABLES
from zbench.step.passes.sections import sections
from zbench.step.passes.tensors import tensors_of
from zbench.step.template import ACROSS, AT_HOME, Instance, Items, StageStart, Template


@dataclass
class BuiltPipelines:
    """The parts of a step of pipelines that are built so far.

    parameters: of all pipelines. gradients: by pipeline, contributions of the GPUs of a stage to each parameter's, -1:
    none at all. losses: by pipeline, contributions to the loss. firsts: by pipeline, the number of each micro-batch's
    first template. recompute: its level.
    """

    model: Model
    shapes: PipelineShapes
    recompute: str
    num_gpus: int
    parameters: CommonParameters
    gradients: list[dict[str, Ints]]
    losses: list[int]
    firsts: list[list[int]]
    batches: list[BatchTemplates] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)

    def model_of(self, pipeline: int) -> Model:
        """Returns the model as a pipeline has it: with tied embeddings, one of one stage has one table."""
        return self.model.with_stages(self.shapes.pp[pipeline]) if self.model.tied_embeddings else self.model


class AcrossPipelines:
    """Makes the layout and the templates of what pipelines have in common."""

    def __init__(self, built: BuiltPipelines, starts: list[tuple[StageStart, ...]]) -> None:
        self.built, self.parameters = built, built.parameters
        self.last = [stages[-1].place - stages[0].place for stages in starts]
        first = built.batches[0]
        indices = (Index("j", np.ones(built.shapes.slices, np.int64)), *built.parameters.indices())
        sizes = {**{one.name: len(one) for one in indices}, PLACE: built.num_gpus}
        self.lists = ListTable(sizes)
        updates = sections(built.recompute, False, built.model.kind_of_head).updates
        maps: tuple[PartMap, ...] = ()
        self.totals = {
            weight: self._counts(weight) for weight in (*self.parameters.of_layers, *self.parameters.outside)
        }
        has_two_tables = built.model.has_two_tables
        if has_two_tables:
            more, maps = tables_updates(built.parameters, self.totals)
            updates = (*updates, *more)
        tensors = tensors_of(built.model, updates, first.parts, built.parameters)
        loss = first.layout.tensors[first.layout.number["loss"]]
        self.layout = StepLayout(indices, (), maps, (), (*tensors, loss), updates, self.lists.lists())
        self.rows = GradientRows(built.parameters, self.layout, self.lists)
        of_tables = self.rows, len(built.batches), built.parameters, self.totals, self.last
        self.tables = PipelineTables(*of_tables) if has_two_tables else None
        head = tuple(name for name in built.parameters.of_head if name != "we")
        layers = built.model.num_layers
        # What is gathered, reduced and updated together: its name, parameters, the first of its layers, and how many.
        self.groups = (
            ("_head", head, layers, 1),
            ("", built.parameters.of_layers, 0, layers),
            ("_embedding", ("we",), 0, 1),
        )

    def _play(self, template: Template, layer: int, repeats: int = 1, backward: bool = False) -> Instance:
        """Adds a template and returns its instance."""
        self.built.templates.append(template)
        number = len(self.built.templates) - 1
        if backward:
            return Instance(number, layer + repeats - 1, repeats, -1, place=ACROSS)
        return Instance(number, layer, repeats, place=ACROSS)

    def _template(self, name: str, ops: Rows, needs: Rows, leaves: Rows) -> Template:
        return Template(name, len(self.built.batches), Operations.of(ops), (), Items.of(needs), Items.of(leaves))

    def gathers(self) -> list[Instance]:
        """Adds the gathers of all parameters from their homes, in the order in which a forward needs them."""
        rows, found = self.rows, []
        for name, weights, layer, repeats in self.groups[::-1] if self.parameters.stage != "none" else ():
            home, there = (
                [line for weight in weights for line in entries(weight, weight)]
                for entries in (rows.at_home, rows.everywhere)
            )
            template = self._template(f"gather{name}", rows.gathers(weights, WORLD), home, there)
            found.append(self._play(template, layer, repeats))
        return found

    def _counts(self, weight: str) -> Ints:
        """Returns the contributions of all GPUs of first stages to a gradient, int64 [GPUs], -1: none at all."""
        found = np.full(self.built.num_gpus, -1, np.int64)
        for lead, gradients in zip(self.built.shapes.lead, self.built.gradients, strict=True):
            found[lead : lead + len(gradients[weight])] = gradients[weight]
        return found

    def updates(self) -> list[Instance]:
        """Adds the sum of the loss, the reductions of all gradients, in the order in which a backward makes them, and
        the updates."""
        rows, totals, found = self.rows, self.totals, [self._summed_loss()]
        for name, every, layer, repeats in self.groups:
            weights = tuple(one for one in every if totals[one].max() >= 0)  # but a table that no pipeline has used
            before, after = (
                [line for weight in weights for line in rows.gradients(weight, totals[weight], last)]
                for last in (False, True)
            )
            template = self._template(f"reduce{name}", rows.reductions(weights, True), before, after)
            found.append(self._play(template, layer, repeats, True))
        layout = len(self.built.batches), self.layout
        of_tables = () if self.tables is None else self.tables.templates()
        found += [self._play(template, 0) for template in of_tables[:1]]
        for name, every, layer, repeats in self.groups:
            weights = every if self.tables is None else tuple(one for one in every if one not in TABLES)
            if weights:
                template = optimizer_template(f"optimizer{name}", weights, totals, rows, layout)
                found.append(self._play(template, layer, repeats))
        return found + [self._play(template, 0) for template in of_tables[1:]]

    def _summed_loss(self) -> Instance:
        """Adds the template that sums the losses of all pipelines."""
        number, leads = self.layout.number["loss"], self.built.shapes.lead
        ops = [operation_row(REDUCE, number, (-1, self.lists.number(PLACE, leads)), [], "gradients")]
        needs = [
            [number, 0, self.lists.number(PLACE, [lead]), -1, -1, count, 0, 0]
            for lead, count in zip(leads, self.built.losses, strict=True)
            if count
        ]
        leaves = [[number, 0, AT_HOME, -1, -1, sum(self.built.losses), 0, 0]]
        return self._play(
            self._template("loss", ops if len(leads) > 1 else [], needs, leaves), self.built.model.num_layers
        )

    def loss(self) -> list[int]:
        """Returns the entry of the loss at the end of the step."""
        first = self.built.batches[0]
        place = first.lists.number(PLACE, [self.last[0]])
        return [first.layout.number["loss"], 0, place, -1, -1, sum(self.built.losses), 0, 0]

    def resting(self, version: int) -> Rows:
        """Returns the entries of all parameters and their optimizer state before or after a step, in the first
        layout, whose cells have no homes."""
        first, found = self.built.batches[0], list[list[int]]()
        rows = GradientRows(self.parameters, first.layout, first.lists)
        for name, weights, _, _ in self.groups:
            shift = np.array(self.last, np.int64) * (name == "_head")
            for weight in weights:
                for tensor in (weight, f"s{weight}"):
                    if self.parameters.stage == "none":
                        entries = rows.everywhere(tensor, weight, version=version)
                    else:
                        entries = self._homes(tensor, weight, version)
                    found += self._moved(entries, shift)
        return found

    def _homes(self, tensor: str, weight: str, version: int) -> Rows:
        """Returns the entries of a parameter of which every cell is at its home alone, by their places."""
        first = self.built.batches[0]
        number, home = first.layout.number[tensor], self.parameters.home(weight)
        if weight not in self.parameters.shards:
            return [[number, 0, first.lists.number(PLACE, home), -1, -1, 0, version, 0]]
        table, found = home.reshape(self.parameters.slices(weight)[1], -1), list[list[int]]()
        for share, row in enumerate(table):
            for place in np.unique(row).tolist():
                cells = first.lists.number("j", [share]), first.lists.number(f"z{weight}", np.flatnonzero(row == place))
                found.append([number, 0, first.lists.number(PLACE, [place]), *cells, 0, version, 0])
        return found

    def _moved(self, entries: Rows, shift: Ints) -> Rows:
        """Returns entries with their places counted from other stages on. shift: by pipeline."""
        lists, leads = self.built.batches[0].lists, np.array(self.built.shapes.lead)
        found = []
        for tensor, layer, places, *rest in entries:
            row = lists.rows[places]
            moved = row + shift[np.searchsorted(leads, row, side="right") - 1]
            found.append([tensor, layer, lists.number(PLACE, moved), *rest])
        return found
