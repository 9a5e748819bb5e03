"""Runs a step on one process: its instructions in their one order, template after template, layer after layer.

Receives are posted ahead, and what arrives is waited for where it is read, so that links work while a process computes.
The order is the proven one on every process, so the earliest message that is not there can always go on.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from zbench.runtime.handlers.computing import compute
from zbench.runtime.handlers.context import Context, Words
from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.functions import merge_of
from zbench.runtime.handlers.machine import BatchParts, Machine
from zbench.runtime.handlers.messages import Arrival
from zbench.runtime.handlers.store import Slab, Store
from zbench.runtime.processes.board import Board
from zbench.runtime.steps.compiler import blocks, compile_step
from zbench.runtime.steps.instructions import (
    Cells,
    Compute,
    Exchange,
    Forget,
    Instruction,
    Parcel,
    Parts,
    TemplateProgram,
    holders,
)  # fmt: skip
from zbench.runtime.steps.presence import pairs_of
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.template import AT_HOME, Items, Step
from zbench.step.tensor import NATURES, STATE


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
        step: Step, process: int, machine: Machine, tokens: Sequence[TokenParts], words: Sequence[Words]
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


@dataclass
class StepRunner:
    """A process that runs steps. stores: what each place that it holds has, which stays from step to step."""

    machine: Machine
    board: Board
    stores: dict[int, Store] = field(default_factory=dict)

    def begin(self, prepared: PreparedStep, weights: Mapping[str, Tensor]) -> None:
        """Puts parameters and optimizer state where a step begins with them. weights: by name, whole; of layers one
        after another, [layers, ...]."""
        self.stores = {place: Store() for place in prepared.places}
        parts = prepared.batches[0]
        for tensor, places, first, second in items_of(prepared, prepared.step.begins):
            one, of = parts.layout.tensors[tensor], parts.formats[tensor]
            name = one.name.removeprefix("s")
            for layer in range(prepared.step.num_layers) if one.layers == "layer" else (0,):
                whole = weights[name][layer] if one.layers == "layer" else weights[name]
                value = parts.slices.cells(name, whole, first, second).to(of.fields[0][1])
                fields = (value, value * 0, value * 0) if len(of.fields) > 1 else (value,)
                slab = Slab.of(of, first, second, fields)
                for place in places:
                    self.stores[place].put(parts.key(tensor, layer), slab)

    def run(self, prepared: PreparedStep) -> None:
        """Runs a step. Collective: every process of its GPUs has to come here."""
        ahead = _Ahead(self, prepared)
        for program, one, layer in prepared.schedule():
            parts = prepared.batches[program.layout]
            if one is None:
                self.machine.messages.turn()
            elif isinstance(one, Compute):
                self.board.say(f"{program.name}, layer {layer}, {parts.layout.labels[one.formula]}")
                compute(one, parts, prepared.context(parts, one), self.stores[one.place], layer)
            elif isinstance(one, Forget):
                self.stores[one.place].forget(parts.key(one.tensor, layer + one.layer), one.cells)
            else:
                self._exchange(one, parts, layer, ahead.arrivals())
        for store in self.stores.values():
            store.settle()
        self.board.wait()
        self.machine.messages.settle()
        self.board.resume()

    def _exchange(self, one: Exchange, parts: BatchParts, layer: int, arrivals: list[Arrival]) -> None:
        """Does a transfer or a collective."""
        for parcel in one.sends:
            of = parts.formats[parcel.cells.tensor]
            self.machine.messages.send(one.queue, of.packed(self._leaving(one, parcel, parts, layer)), parcel.peer)
        self.machine.messages.posted()
        for parcel, arrival in zip(one.receives, arrivals, strict=True):
            of, cells = parts.formats[parcel.cells.tensor], parcel.cells
            slab = Slab(of, cells.first, cells.second, _Unpacked(self.board, of, cells, arrival))
            self._arrive(one, parcel, parts, layer, slab)
        for parcel in one.copies:
            fields = tuple(field.clone() for field in self._leaving(one, parcel, parts, layer))
            of = parts.formats[parcel.cells.tensor]
            self._arrive(one, parcel, parts, layer, Slab.of(of, parcel.cells.first, parcel.cells.second, fields))

    def _leaving(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int) -> tuple[Tensor, ...]:
        """Returns what leaves a place: contributions are taken, others copied."""
        store, cells = self.stores[parcel.src], parcel.cells
        get = store.take if one.takes else store.read
        return get(parts.key(cells.tensor, layer + cells.layer), cells.first, cells.second)

    def _arrive(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int, slab: Slab) -> None:
        tensor = parts.layout.tensors[parcel.cells.tensor]
        key, store = parts.key(parcel.cells.tensor, layer + parcel.cells.layer), self.stores[parcel.dst]
        if one.takes:
            store.add(key, slab, merge_of(tensor.name, tensor.merge))
        else:
            store.put(key, slab, over=NATURES.index(tensor.nature) == STATE)


@dataclass
class _Unpacked:
    """The fields of a message, once it has arrived."""

    board: Board
    format: Format
    cells: Cells
    arrival: Arrival

    def __call__(self) -> Fields:
        self.board.wait()
        message = self.arrival.wait()
        self.board.resume()
        return self.format.unpacked(message, self.cells.first, self.cells.second)


class _Ahead:
    """The receives of a step, posted in order, some of them before their operation is reached."""

    def __init__(self, runner: StepRunner, prepared: PreparedStep) -> None:
        self.messages = runner.machine.messages
        self._coming = (
            (one, prepared.batches[program.layout])
            for program, one, _ in prepared.schedule()
            if isinstance(one, Exchange)
        )
        self._posted: deque[list[Arrival]] = deque()
        self._waiting = 0  # messages among them

    def arrivals(self) -> list[Arrival]:
        """Returns the arrivals of the next exchange, and posts receives beyond it."""
        while not self._posted or self._waiting - len(self._posted[0]) < self.messages.ahead:
            if not self._post():
                break
        found = self._posted.popleft()
        self._waiting -= len(found)
        return found

    def _post(self) -> bool:
        """Posts the receives of another exchange; returns whether there was one."""
        following = next(self._coming, None)
        if following is None:
            return False
        one, parts = following
        sizes = [
            parts.formats[parcel.cells.tensor].num_bytes(parcel.cells.first, parcel.cells.second)
            for parcel in one.receives
        ]
        self._posted.append(
            [
                self.messages.receive(one.queue, size, parcel.peer)
                for size, parcel in zip(sizes, one.receives, strict=True)
            ]
        )
        self._waiting += len(sizes)
        return True


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
