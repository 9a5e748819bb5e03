"""Runs a step on one process: its instructions in their one order, template after template, layer after layer.

Receives are posted ahead, and what arrives is waited for where it is read, so that links work while a process computes.
What leaves is waited for by nobody who computes: a sum that is added to on its way leaves once contributions have come.
The order is the proven one on every process, so the earliest message that is not there can always go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import tee

from torch import Tensor

from zbench.describe.links import share
from zbench.runtime.handlers.ahead import PostedAhead
from zbench.runtime.handlers.computing import compute
from zbench.runtime.handlers.encoded import EncodedCells, encoded_bytes
from zbench.runtime.handlers.formats import WHOLE, Fields, Format, base_name
from zbench.runtime.handlers.functions import merge_of
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.handlers.prepared import PreparedStep, items_of
from zbench.runtime.handlers.store import Slab, Store
from zbench.runtime.processes.board import Board
from zbench.runtime.steps.instructions import Cell, Cells, Compute, Exchange, Forget, Parcel, TemplateProgram
from zbench.runtime.transport.arrivals import Arrival, AwaitedBytes, Later
from zbench.step.template import Encoding
from zbench.step.tensor import NATURES, STATE

Lost = tuple[str, int, Cell]  # a tensor's name, its layer, a cell
Whole = Callable[[str, int], Tensor]  # a parameter's name and layer (0 of one that is of no layer) -> all of it


@dataclass
class StepRunner:
    """A process that runs steps. stores: what each place that it holds has, which stays from step to step. where: what
    steps are called on the board, as "step 3, ". kind: of stores."""

    machine: StepMachine
    board: Board
    stores: dict[int, Store] = field(default_factory=dict)
    where: str = ""
    kind: type[Store] = Store
    lost: dict[Lost, float] | None = None
    _settles: bool = True  # the step under way

    def begin(self, prepared: PreparedStep, whole: Whole) -> None:
        """Puts parameters and optimizer state where a step begins with them, and gradients that are in host memory.
        whole: gives all of a parameter, or of such a gradient by its own name."""
        self.stores = {place: self.kind(self.machine.device) for place in prepared.places}
        parts = prepared.batches[0]
        for tensor, layer, places, first, second in items_of(prepared, prepared.step.begins):
            one, of = parts.layout.tensors[tensor], parts.formats[tensor]
            name = base_name(one.name)
            if name not in WHOLE:  # shares of workers, which are told anew for every round
                continue
            begun = one.name[0] == "d" and places[0] >= prepared.step.num_gpus  # a gradient of the step before
            value = parts.slices.cells(name, whole(one.name if begun else name, layer), first, second)
            value = value.to(self.machine.device, of.fields[0][1])
            value = value * 0 if one.name == f"m{name}" else value  # momentum begins with nothing
            fields = (value, value * 0, value * 0) if len(of.fields) > 1 else (value,)
            slab = Slab.of(of, first, second, fields)
            for place in places:
                self.stores[place].put(parts.key(tensor, layer), slab)

    @contextmanager
    def places_of(self, prepared: PreparedStep) -> Iterator[dict[int, Store]]:
        """Gives stores of this process's places of the step before and of another one; the latter's alone stay."""
        for place in prepared.places:
            self.stores.setdefault(place, self.kind(self.machine.device))
        yield self.stores
        self.stores = {place: self.stores[place] for place in prepared.places}

    def run(self, prepared: PreparedStep, settles: bool = True) -> None:
        """Runs a step. Collective: every process of its GPUs has to come here. settles: whether it ends when all
        messages have arrived, or leaves the last ones under way, to be waited for where they are read."""
        messages, self._settles = self.machine.messages, settles
        schedule, coming = tee(prepared.schedule())
        ahead, times = PostedAhead(messages, prepared, coming, self.stores), messages.times
        for program, one, layer in schedule:
            parts = prepared.batches[program.layout]
            if one is None:
                self.board.wait()
                messages.turn()
                self.board.resume()
            elif isinstance(one, Compute):
                self.board.say(f"{self.where}{program.name}, layer {layer}, {parts.layout.labels[one.formula]}")
                before = times.turn_to(parts.seconds_for[one.formula])
                times.pace.work()
                times.notes.turn_to(program, one.op, layer, one.place, one.place)
                compute(one, parts, self.stores[one.place], layer)
                if one.seconds:  # what is free on a device has no end of its own
                    times.pace.spend(one.seconds)
                times.notes.computed()
                times.turn_to(before)
            elif isinstance(one, Forget):
                self.stores[one.place].forget(parts.key(one.tensor, layer + one.layer), one.cells)
            else:
                self._exchange(one, parts, layer, ahead.arrivals(), program)
        if settles:
            for store in self.stores.values():
                store.settle()
            self.board.wait()
            messages.settle()
            self.board.resume()

    def take(self, prepared: PreparedStep, name: str) -> list[Tensor]:
        """Returns what places of this process have at the end of a step of a tensor of no layer, and forgets it."""
        parts, found = prepared.batches[0], []
        for tensor, layer, places, first, second in items_of(prepared, prepared.step.ends):
            if parts.layout.tensors[tensor].name == name:
                key, of = parts.key(tensor, layer), parts.formats[tensor]
                found += [self.stores[place].take(key, of, first, second)[0] for place in places]
        return found

    def _exchange(
        self, one: Exchange, parts: BatchParts, layer: int, arrivals: list[Arrival], program: TemplateProgram
    ) -> None:
        """Does a transfer or a collective."""
        notes = self.machine.messages.times.notes
        for parcel in one.sends:
            notes.turn_to(program, one.op, layer, parcel.src, parcel.dst)
            coming = self._coming(one, parcel, parts, layer)
            leaving = self._message(one, parcel, parts, layer) if coming is None else coming
            peers = parcel.shares or (parcel.peer,)
            for number, peer in enumerate(peers):
                begin, end = share(leaving.numel() if isinstance(leaving, Tensor) else leaving.size, number, len(peers))
                if begin == end:  # of rows that routers choose there may be none, and no message then
                    continue
                if parcel.shares:
                    notes.turn_to(program, one.op, layer, parcel.src, peer)
                if isinstance(leaving, Tensor):
                    self.machine.messages.send(one.purpose, leaving[begin:end], peer)
                else:
                    self.machine.messages.pass_on(one.purpose, leaving, peer, slice(begin, end))
        self.machine.messages.posted()
        for parcel, arrival in zip(one.receives, arrivals, strict=True):
            cells, of = parcel.cells, parts.format(parcel.cells.tensor, layer + parcel.cells.layer)
            unpacked = _Unpacked(self, one.purpose, of, cells, arrival, one.encoding)
            slab = Slab(of, cells.first, cells.second, unpacked)
            unpacked.slab, slab.coming, slab.encoded = slab, arrival, one.encoding is not None
            self._arrive(one, parcel, parts, layer, slab)
        for parcel in one.copies:
            cells, of = parcel.cells, parts.format(parcel.cells.tensor, layer + parcel.cells.layer)
            lists = cells.first, cells.second
            if one.encoding is None:
                fields = tuple(field.clone() for field in self._leaving(one, parcel, parts, layer))
            else:
                fields = self._encoded(one, parcel, parts, layer).fields(of, lists)
            self._arrive(one, parcel, parts, layer, Slab.of(of, *lists, fields))
            notes.turn_to(program, one.op, layer, parcel.src, parcel.dst)
            self.machine.messages.copied(one.purpose, encoded_bytes(of, lists, one.encoding))

    def _coming(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int) -> AwaitedBytes | None:
        """Returns what a parcel carries where that is on its way here: the message that brings just this, or what is
        put together once several have come; None where it is there, or has to be waited for."""
        cells, layer = parcel.cells, layer + parcel.cells.layer
        if one.encoding is not None or not cells.pairs():
            return None
        key, store = parts.key(cells.tensor, layer), self.stores[parcel.src]
        if not one.takes:
            found: Arrival | None = store.slab(key, cells.pairs()[0]).under_way(cells.first, cells.second)
            if found is not None:
                return found
        # A sum that is left under way when the step ends is waited for: else what is added to it would stay that long.
        if not (self.machine.messages.leaves_later and self._settles):
            return None
        of = parts.format(cells.tensor, layer)
        later = store.leaving(key, of, cells.first, cells.second, one.takes)
        if later is None:
            return None
        needs, fields = later
        return Later(needs, lambda: of.packed(fields()), of.num_bytes(cells.first, cells.second))

    def _message(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int) -> Tensor:
        """Returns what a parcel carries as bytes."""
        if one.encoding is not None:
            return self._encoded(one, parcel, parts, layer).message
        of = parts.format(parcel.cells.tensor, layer + parcel.cells.layer)
        return of.packed(self._leaving(one, parcel, parts, layer))

    def _encoded(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int) -> EncodedCells:
        """Returns what a parcel carries in fewer bits: cells that have arrived so go on as they are."""
        of, cells, encoding = parts.formats[parcel.cells.tensor], parcel.cells, one.encoding
        assert encoding is not None, "the exchange is encoded"
        key, lists = parts.key(cells.tensor, layer + cells.layer), (cells.first, cells.second)
        store, sent = self.stores[parcel.src], dict[Cell, tuple[Tensor, Tensor]]()
        for cell in () if one.takes else of.pairs(*lists):
            slab = store.slab(key, cell)
            slab.settle()
            if slab.carried is not None and slab.carried.encoding == encoding:
                sent[cell] = slab.carried.parts[cell]
        if len(sent) == len(of.pairs(*lists)):
            return EncodedCells(encoding, sent)
        found = EncodedCells.of(of, lists, self._leaving(one, parcel, parts, layer), encoding)
        if self.lost is not None:
            for cell, most in found.lost.items():
                self.lost[key[0], key[1], cell] = self.lost.get((key[0], key[1], cell), 0.0) + most
        return EncodedCells(encoding, {**found.parts, **sent})

    def _leaving(self, one: Exchange, parcel: Parcel, parts: BatchParts, layer: int) -> tuple[Tensor, ...]:
        """Returns what leaves a place: contributions are taken, others copied."""
        store, cells = self.stores[parcel.src], parcel.cells
        get = store.take if one.takes else store.read
        layer += cells.layer
        key, of = parts.key(cells.tensor, layer), parts.format(cells.tensor, layer)
        return get(key, of, cells.first, cells.second)

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

    runner: StepRunner
    purpose: int
    format: Format
    cells: Cells
    arrival: Arrival
    encoding: Encoding | None
    slab: Slab | None = None

    def __call__(self) -> Fields:
        board, times = self.runner.board, self.runner.machine.messages.times
        if not self.arrival.is_here:  # as it is for a thread that sends it on, which waits for it before
            board.wait()
            times.wait(self.purpose, self.arrival.wait, self.arrival.name, self.arrival.of)
            board.resume()
        message = self.arrival.data
        times.arrived()
        lists = self.cells.first, self.cells.second
        if self.encoding is not None:
            found = EncodedCells.arrived(message, self.format, lists, self.encoding)
            assert self.slab is not None, "it is what the slab's fields come from"
            self.slab.carried = found
            return found.fields(self.format, lists)
        return self.format.unpacked(message, *lists)
