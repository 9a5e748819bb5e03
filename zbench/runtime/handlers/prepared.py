"""A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zbench.runtime.handlers.context import Context, TokenWords
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.steps.compiler import blocks, compile_step
from zbench.runtime.steps.instructions import Compute, Forget, Instruction, Parts, Programs, TemplateProgram, holders
from zbench.runtime.steps.presence import pairs_of
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.template import AT_HOME, Items, Step

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
        """Prepares a step. tokens, words: of every layout.

        Raises:
            ValueError: a formula has a function that does not run, a transfer is encoded, or tokens do not fit.
        """
        holder = holders(step)
        batches = tuple(
            BatchParts(at, layout, machine, tokens[at], words[at]) for at, layout in enumerate(step.layouts)
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
            program = self.programs[instance.template, instance.place]
            for layer in instance.layers if program.instructions else ():
                for one in program.instructions:
                    if self._happens(program, one, layer):
                        yield program, one, layer
                yield program, None, layer

    def _happens(self, program: TemplateProgram, one: Instruction, layer: int) -> bool:
        """Returns whether an instruction is of a layer that is there for an instance: one of its stage's."""
        if isinstance(one, Compute):
            return True
        cells = one if isinstance(one, Forget) else (*one.sends, *one.receives, *one.copies)[0].cells
        tensor = self.batches[program.layout].layout.tensors[cells.tensor]
        return self.step.layer_exists(tensor, layer, layer + cells.layer)


def items_of(prepared: PreparedStep, items: Items) -> Iterator[tuple[int, int, list[int], Parts, Parts]]:
    """Yields (tensor, layer, places, parts of both axes) of what a step's begins or ends name on the process's places;
    those of a layer are counted from the first one of its stage."""
    step, layout = prepared.step, prepared.step.layouts[0]
    for row in items.rows():
        if layout.tensors[row[0]].layers == "none":
            yield from ((row[0], 0, *named) for named in _named(prepared, row, 0))
            continue
        of_stage = {start.place: list(_named(prepared, row, start.place)) for start in step.stages}
        for layer in range(step.num_layers):
            yield from ((row[0], layer, *named) for named in of_stage[int(step.shifts[0, layer])])


def _named(prepared: PreparedStep, row: Sequence[int], start: int) -> Iterator[tuple[list[int], Parts, Parts]]:
    """Yields (places, parts of both axes) of an entry of items whose places are counted from `start` on."""
    layout, (tensor, _, places, list0, list1, *_) = prepared.step.layouts[0], row
    numbers, width = pairs_of(layout, tensor, (list0, list1)), layout.shape(tensor)[1]
    if places != AT_HOME:
        cells = [(int(cell) // width, int(cell) % width) for cell in numbers]
        there = [place + start for place in layout.lists[places].tolist() if place + start in prepared.places]
        for first, second in blocks(cells) if there else ():
            yield there, first, second
        return
    home = layout.tensors[tensor].home[numbers] + start
    for place in prepared.places:
        cells = [(int(cell) // width, int(cell) % width) for cell in numbers[home == place]]
        for first, second in blocks(cells):
            yield [place], first, second
