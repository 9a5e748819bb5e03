"""A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbench.describe.arrays import Floats
from zbench.runtime.handlers.context import NO_WORDS, TokenWords
from zbench.runtime.handlers.encoded import check_runs
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.steps.compiler import start_of
from zbench.runtime.steps.instructions import Compute, Forget, Instruction, Parts, Programs, TemplateProgram, holders
from zbench.runtime.steps.resting import items_on
from zbench.runtime.steps.tokens import NO_TOKENS, TokenParts
from zbench.step.template import Items, Step

# A template, an instruction of it, None where an instance ends, and the instance's layer.
ScheduledInstruction = tuple[TemplateProgram, Instruction | None, int]


@dataclass
class PreparedStep:
    """A step as a process runs it: instructions of its templates, and what handlers need of its micro-batches."""

    step: Step
    process: int
    holder: tuple[int, ...]
    programs: Programs
    batches: tuple[BatchParts, ...]

    @staticmethod
    def of(
        step: Step,
        process: int,
        machine: StepMachine,
        tokens: Sequence[TokenParts],
        words: Sequence[TokenWords],
        layers: tuple[int, ...] = (),
        seconds: Sequence[Floats | None] = (),
    ) -> "PreparedStep":
        """Prepares a step. tokens, words: of every micro-batch, whose layouts are the first ones; what all pipelines
        have in common has a layout of its own, and no tokens. layers: as of BatchParts. seconds: of its templates'
        operations on a paced device, as of zbench.runtime.steps.device_seconds.

        Raises:
            ValueError: a formula has a function that does not run, an encoding does not, or tokens do not fit.
        """
        holder = holders(step)
        given = list(zip(tokens, words, strict=True))
        batches = tuple(
            BatchParts(at, layout, machine, *(given[at] if at < len(given) else (NO_TOKENS, NO_WORDS)), layers)
            for at, layout in enumerate(step.layouts)
        )
        check_runs(step.encodings)
        how = seconds, machine.lanes, machine.messages.leaves_later
        programs = machine.programs.of(step, process, holder, *how) if process < step.num_gpus else {}
        return PreparedStep(step, process, holder, programs, batches)

    @property
    def places(self) -> list[int]:
        """The places that the process holds."""
        return [place for place, process in enumerate(self.holder) if process == self.process]

    def make_contexts(self) -> None:
        """Makes all contexts, which else are made in the step."""
        for program in self.programs.values():
            for one in program.instructions:
                parts = self.batches[program.layout]
                if isinstance(one, Compute) and not parts.is_update(one):
                    parts.contexts.of(parts.slots(one))

    def schedule(self) -> Iterator[ScheduledInstruction]:
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
        cells = one if isinstance(one, Forget) else one.cells
        tensor = self.batches[program.layout].layout.tensors[cells.tensor]
        return self.step.layer_exists(tensor, layer, layer + cells.layer, place)


def items_of(prepared: PreparedStep, items: Items) -> Iterator[tuple[int, int, list[int], Parts, Parts]]:
    """Yields what a step's begins or ends name on the process's places, as of zbench.runtime.steps.resting."""
    return items_on(prepared.step, items, prepared.places)
