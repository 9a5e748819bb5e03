"""A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zbench.runtime.handlers.context import Context, TokenWords
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.steps.compiler import blocks, compile_step
from zbench.runtime.steps.instructions import Compute, Forget, Instruction, Parts, TemplateProgram, holders
from zbench.runtime.steps.presence import pairs_of
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.template import AT_HOME, Items, Step


@dataclass
class PreparedStep:
    """A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

    step: Step
    process: int
    holder: tuple[int, ...]
    programs: tuple[TemplateProgram, ...]
    batches: tuple[BatchParts, ...]
    contexts: dict[int, Context] = field(default_factory=dict)  # by the identity of a compute, made when first asked

    @staticmethod
    def of(
        step: Step, process: int, machine: StepMachine, tokens: Sequence[TokenParts], words: Sequence[TokenWords]
    ) -> "PreparedStep":
        """Prepares a step. tokens, words: of every layout.

        Raises:
            ValueError: a formula has a function that does not run, a transfer is encoded, the step has stages, or
                tokens do not fit.
        """
        if step.is_staged:
            raise ValueError(f"the step has {len(step.stages)} stages; steps of 1 run on processes")
        holder = holders(step)
        batches = tuple(
            BatchParts(at, layout, machine, tokens[at], words[at]) for at, layout in enumerate(step.layouts)
        )
        for template in step.templates:
            encoded = template.operations.encoding[template.operations.encoding >= 0]
            if len(encoded):
                name = step.encodings[int(encoded[0])].name
                raise ValueError(f"template {template.name} has transfers encoded as {name}; those that run have none")
        programs = compile_step(step, process, holder) if process < step.num_gpus else ()
        return PreparedStep(step, process, holder, programs, batches)

    @property
    def places(self) -> list[int]:
        """The places that the process holds."""
        return [place for place, process in enumerate(self.holder) if process == self.process]

    def context(self, parts: BatchParts, one: Compute) -> Context:
        """Returns the context of a compute."""
        if id(one) not in self.contexts:
            self.contexts[id(one)] = parts.context(one)
        return self.contexts[id(one)]

    def schedule(self) -> Iterator[tuple[TemplateProgram, Instruction | None, int]]:
        """Yields (template, instruction, layer) in order, with None for an instruction where an instance ends."""
        for instance in self.step.order if self.programs else ():
            program = self.programs[instance.template]
            for layer in instance.layers:
                for one in program.instructions:
                    if self._happens(program, one, layer):
                        yield program, one, layer
                yield program, None, layer

    def _happens(self, program: TemplateProgram, one: Instruction, layer: int) -> bool:
        """Returns whether an instruction is of a layer that is there."""
        if isinstance(one, Compute):
            return True
        cells = one if isinstance(one, Forget) else (*one.sends, *one.receives, *one.copies)[0].cells
        tensor = self.batches[program.layout].layout.tensors[cells.tensor]
        return tensor.layers == "none" or tensor.exists(layer + cells.layer, self.step.num_layers)


def items_of(prepared: PreparedStep, items: Items) -> Iterator[tuple[int, list[int], Parts, Parts]]:
    """Yields (tensor, places, parts of both axes) of what a step's begins or ends name on the process's places."""
    layout, mine = prepared.step.layouts[0], prepared.places
    for tensor, _, places, list0, list1, *_ in items.rows():
        numbers, width = pairs_of(layout, tensor, (list0, list1)), layout.shape(tensor)[1]
        if places != AT_HOME:
            cells = [(int(cell) // width, int(cell) % width) for cell in numbers]
            there = [place for place in layout.lists[places].tolist() if place in mine]
            for first, second in blocks(cells) if there else ():
                yield tensor, there, first, second
            continue
        home = layout.tensors[tensor].home[numbers]
        for place in mine:
            cells = [(int(cell) // width, int(cell) % width) for cell in numbers[home == place]]
            for first, second in blocks(cells):
                yield tensor, [place], first, second
