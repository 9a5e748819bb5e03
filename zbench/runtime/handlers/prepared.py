"""A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.runtime.handlers.context import NO_WORDS, Context, TokenWords
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.steps.compiler import blocks, compile_step, start_of
from zbench.runtime.steps.instructions import Compute, Forget, Instruction, Parts, Programs, TemplateProgram, holders
from zbench.runtime.steps.presence import pairs_of
from zbench.runtime.steps.tokens import NO_TOKENS, TokenParts
from zbench.step.template import ACROSS, AT_HOME, Items, Step

Slots = tuple[int, tuple[str, ...], tuple[Parts, ...]]  # a layout's number, the slots of a formula, the parts of each


@dataclass
class PreparedStep:
    """A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

    step: Step
    process: int
    holder: tuple[int, ...]
    programs: Programs
    batches: tuple[BatchParts, ...]
    contexts: dict[Slots, Context] = field(default_factory=dict)  # made when first asked for

    @staticmethod
    def of(
        step: Step, process: int, machine: StepMachine, tokens: Sequence[TokenParts], words: Sequence[TokenWords]
    ) -> "PreparedStep":
        """Prepares a step. tokens, words: of every micro-batch, whose layouts are the first ones; what all pipelines
        have in common has a layout of its own, and no tokens.

        Raises:
            ValueError: a formula has a function that does not run, a transfer is encoded, or tokens do not fit.
        """
        holder = holders(step)
        given = list(zip(tokens, words, strict=True))
        batches = tuple(
            BatchParts(at, layout, machine, *(given[at] if at < len(given) else (NO_TOKENS, NO_WORDS)))
            for at, layout in enumerate(step.layouts)
        )
        for template in step.templates:
            encoded = template.operations.encoding[template.operations.encoding >= 0]
            if len(encoded):
                name = step.encodings[int(encoded[0])].name
                raise ValueError(f"template {template.name} has transfers encoded as {name}; those that run have none")
        programs = compile_step(step, process, holder) if process < step.num_gpus else {}
        return PreparedStep(step, process, holder, programs, batches)

    @property
    def places(self) -> list[int]:
        """The places that the process holds."""
        return [place for place, process in enumerate(self.holder) if process == self.process]

    def context(self, parts: BatchParts, one: Compute) -> Context:
        """Returns the context of a compute, which is that of others with the same parts of the same slots."""
        key = parts.number, parts.layout.formulas[one.formula].slots, one.slots
        if key not in self.contexts:
            self.contexts[key] = parts.context(one)
        return self.contexts[key]

    def make_contexts(self) -> None:
        """Makes all contexts, which else are made in the step."""
        for program in self.programs.values():
            for one in program.instructions:
                if isinstance(one, Compute):
                    self.context(self.batches[program.layout], one)

    def schedule(self) -> Iterator[tuple[TemplateProgram, Instruction | None, int]]:
        """Yields (template, instruction, layer) in the order of the step, of the instances that the process has a part
        in, with None for an instruction where one ends."""
        for instance in self.step.order if self.programs else ():
            for layer in instance.layers:
                program = self.programs[instance.template, start_of(self.step, instance, layer)]
                for one in program.instructions:
                    if self._happens(program, one, layer, instance.place):
                        yield program, one, layer
                if program.instructions:
                    yield program, None, layer

    def _happens(self, program: TemplateProgram, one: Instruction, layer: int, place: int) -> bool:
        """Returns whether an instruction is of a layer that is there for an instance played from a place on: one of its
        stage's, or any where it is of all pipelines."""
        if isinstance(one, Compute):
            return True
        cells = one if isinstance(one, Forget) else (*one.sends, *one.receives, *one.copies)[0].cells
        tensor = self.batches[program.layout].layout.tensors[cells.tensor]
        return self.step.layer_exists(tensor, layer, layer + cells.layer, place)


def items_of(prepared: PreparedStep, items: Items) -> Iterator[tuple[int, int, list[int], Parts, Parts]]:
    """Yields (tensor, layer, places, parts of both axes) of what a step's begins or ends name on the process's places;
    those of a layer are counted from the stage of their pipeline that has it."""
    step, layout = prepared.step, prepared.step.layouts[0]
    for row in items.rows():
        if layout.tensors[row[0]].layers == "none":
            yield from ((row[0], 0, *named) for named in _named(prepared, row, np.arange(step.num_places)))
            continue
        known: dict[tuple[int, ...], list[tuple[list[int], Parts, Parts]]] = {}  # by the stages that have a layer
        for layer in range(step.num_layers):
            stages = tuple(step.shifts[:, layer].tolist())
            if stages not in known:
                known[stages] = list(_named(prepared, row, step.where(ACROSS, layer)))
            yield from ((row[0], layer, *named) for named in known[stages])


def _named(prepared: PreparedStep, row: Sequence[int], where: Ints) -> Iterator[tuple[list[int], Parts, Parts]]:
    """Yields (places, parts of both axes) of an entry of items. where: the place that each one is that it names."""
    layout, (tensor, _, places, list0, list1, *_) = prepared.step.layouts[0], row
    numbers, width = pairs_of(layout, tensor, (list0, list1)), layout.shape(tensor)[1]
    if places != AT_HOME:
        cells = [(int(cell) // width, int(cell) % width) for cell in numbers]
        there = [place for place in where[layout.lists[places]].tolist() if place in prepared.places]
        for first, second in blocks(cells) if there else ():
            yield there, first, second
        return
    home = where[layout.tensors[tensor].home[numbers]]
    for place in prepared.places:
        cells = [(int(cell) // width, int(cell) % width) for cell in numbers[home == place]]
        for first, second in blocks(cells):
            yield [place], first, second
