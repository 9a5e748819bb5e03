"""Runs a rank's program on tensors: one layer of one micro-batch, forward or backward.

Rows as in zbench.runtime.program.program, fields of a tensor as in zbench.runtime.kernels.memory; D head_dim.
A run goes through its attends in plan order and waits only for what each of them reads; when messages leave is the
transport's part (zbench.runtime.transport.transport), which may call from another thread; partial sums join when they
leave or at the end.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter

import torch
from torch import Tensor

from zbench.describe.model import DO, O
from zbench.runtime.clocks.named import Name
from zbench.runtime.clocks.pace import Pacer, Unpaced
from zbench.runtime.clocks.times import Times
from zbench.runtime.kernels.kernels import Kernel
from zbench.runtime.kernels.memory import KvHeads, Memory, Shape, add, bytes_of, copy, output_of, rows_of
from zbench.runtime.processes.board import Board
from zbench.runtime.program.program import HOME, Add, KernelCall, Part, Program, Read, Receive, Send
from zbench.runtime.transport.transport import Endpoint, Transport


@dataclass(frozen=True)
class Engine:
    """The parts that every run on a rank shares. is_timed: seconds are counted by kind, until they are cleared."""

    shape: Shape
    kernel: Kernel
    post: Endpoint
    transport: Transport
    board: Board
    pace: Pacer = field(default_factory=Unpaced)
    is_timed: bool = True

    @cached_property
    def times(self) -> Times:
        """The times of this rank's device."""
        return Times.on(self.shape.device) if self.is_timed else Times.none()


class ProgramRun:
    """A run of a program: one layer of one micro-batch, forward or backward.

    home: the rank's own tensors, all heads; those that the program adds to are there from the start.
    kept: memory of the program's imported slots. keep: slots whose memory outlives the run.
    """

    def __init__(
        self, engine: Engine, program: Program, home: dict[int, Memory], kept: Sequence[Memory], keep: Sequence[int]
    ) -> None:
        self.engine, self.program, self.home = engine, program, home
        self.slots: list[Memory | None] = [*kept, *[None] * (len(program.slots) - len(kept))]
        self.uses = list(program.uses)
        for number in keep:
            self.uses[number] += 1
        self.lock = threading.RLock()
        self.outputs: dict[int, Tensor] = {}
        self.main = threading.get_ident()
        self.number = engine.post.events.run()
        self.tag = 0 if O in home and DO not in home else 1  # tells a forward's messages from a backward's
        self.messages = engine.transport.open(engine.post, self)

    def go(self) -> None:
        """Runs all of it; afterwards the sums at home are complete, nothing is under way, and arithmetic goes on."""
        times, began = self.engine.times, self.engine.times.clock.now()
        for number, step in enumerate(self.program.attends):
            self.messages.before(number)
            self._attend(step)
        self.messages.before(len(self.program.attends))
        for collect in self.program.collects:
            for part in collect.parts:
                self._join(self.home[collect.tensor], part)
        for index in range(len(self.program.receives)):
            self._wait(index)
        if self.program.sends:
            self._waiting(self.messages.finish)
        ended = times.clock.now()
        times.add("total", began, ended)
        if self.program.sends or self.program.receives:
            times.add("under_way", began, ended)
        del self.messages  # which know this run: without the cycle its memory is free at once
        self.engine.pace.work()

    # -- attends --------------------------------------------------------------------------------------
    def _attend(self, step: KernelCall) -> None:
        for fill in step.fills:
            for part in fill.parts:
                self._join(self._memory(fill.slot), part)
        (q, *_), (kv, *_) = self._read(step.q), self._read(step.kv)
        ready = perf_counter()
        heads = KvHeads.of(self.engine.shape, step.lo, step.hi)
        k, v = heads.spread(kv[:, 0]), heads.spread(kv[:, 1])
        given = self._read_do(step.do) if step.do is not None else None
        self.engine.pace.work()
        began = self.engine.times.clock.now()
        if given is None:
            o, lse = self.engine.kernel.forward(q, k, v, step.cuts)
            results: tuple[tuple[Tensor, ...], ...] = ((o, lse),)
        else:
            dq, dk, dv = self.engine.kernel.backward(given[0], q, k, v, given[2], given[1], step.cuts)
            results = ((dq,), (torch.stack((heads.gather(dk), heads.gather(dv)), 1),))
        self.engine.times.add("kernel", began)
        for target, result in zip(step.adds, results, strict=True):
            self._add(target, result)
        for kind, seconds in (("kernel", step.seconds - step.repacking), ("repacking", step.repacking)):
            if seconds:
                began = self.engine.times.clock.now()
                self.engine.pace.spend(seconds)
                self.engine.times.add(kind, began)
        name = "attend forward" if given is None else "attend backward"
        self.engine.post.events.span(name, ready, self.number, step.op)
        for read in (step.q, step.kv, step.do):
            if read is not None:
                self._used(read.slot)

    def _read(self, read: Read) -> tuple[Tensor, ...]:
        return tuple(rows_of(x, read.rows) for x in self._source(read.tensor, read.slot, read.lo, read.hi))

    def _read_do(self, read: Read) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (do, lse, o). Away from home there is no o; anything with the right row sums of do * o serves as
        well."""
        do, lse, *_ = self._source(DO, read.slot, read.lo, read.hi)
        if read.slot == HOME:
            o = self.engine.shape.heads(self.home[O], read.lo, read.hi)[0]
        else:
            if read.slot not in self.outputs:
                memory = self._memory(read.slot)
                self.outputs[read.slot] = output_of(memory.fields[0], memory.fields[2])
            slot = self.program.slots[read.slot]
            o = self.outputs[read.slot][:, read.lo - slot.lo : read.hi - slot.lo]
        return rows_of(do, read.rows), rows_of(lse, read.rows), rows_of(o, read.rows)

    def _add(self, target: Add, result: tuple[Tensor, ...]) -> None:
        if target.fresh and target.whole:
            taken = self.engine.shape.taken(target.tensor, target.lo, target.hi, result)
            if taken is not None:
                self._set(target.slot, target.tensor, taken)
                return
        if target.slot == HOME:
            memory = self.home[target.tensor]
        else:
            memory = self._memory(target.slot, start=not (target.fresh and target.whole))
        fields = self.engine.shape.heads(memory, target.lo, target.hi)
        (copy if target.fresh else add)(fields, target.rows, result)

    # -- messages: what the transport asks for, from whichever thread -----------------------------------
    def place(self, receive: Receive) -> Tensor:
        """Returns the bytes that a message arrives in."""
        if receive.slot == HOME:
            return torch.empty(receive.end - receive.begin, dtype=torch.uint8, device=self.engine.shape.device)
        whole = self._memory(receive.slot).whole
        assert whole is not None
        return whole[receive.begin : receive.end]

    def message(self, send: Send) -> Tensor:
        """Returns the bytes of a message, put together if need be."""
        if send.whole != HOME:
            if send.parts or not self.messages.in_order:
                self._arrived(send.whole)
            memory = self._memory(send.whole)
            for part in send.parts:
                self._join(memory, part, never_fresh=True)
            memory = self.engine.shape.in_one_piece(memory)
            self._used(send.whole)
        elif (direct := self._direct(send)) is not None:
            return direct
        else:
            memory = self.engine.shape.empty(send.tensor, send.lo, send.hi, send.rows, send.start)
            for part in send.parts:
                self._join(memory, part)
        assert memory.whole is not None
        return memory.whole

    def _direct(self, send: Send) -> Tensor | None:
        """Returns the rows of the rank's own or of a slot as they lie, where these are the message."""
        if send.start or len(send.parts) != 1:
            return None
        (part,) = send.parts
        if not isinstance(part.rows, slice) or not isinstance(part.to, slice):
            return None
        fields = self._source(send.tensor, part.slot, send.lo, send.hi)
        if len(fields) > 1 or not fields[0].is_contiguous():
            return None
        self._used(part.slot)
        return bytes_of(fields[0][part.rows])

    # -- memory -----------------------------------------------------------------------------------------
    def _join(self, target: Memory, part: Part, never_fresh: bool = False) -> None:
        """Copies or adds a part to its place in `target`: of some heads it is an all-to-all's repacking."""
        source = self._source(target.tensor, part.slot, part.lo, part.hi)
        rows = tuple(rows_of(x, part.rows) for x in source)
        fields = self.engine.shape.heads(target, part.lo, part.hi)
        copies = part.fresh and not never_fresh
        repacks = copies and part.hi - part.lo < self.engine.shape.model.num_heads
        timed = repacks and threading.get_ident() == self.main  # what another thread does, this one does not wait for
        began = self.engine.times.clock.now() if timed else None
        (copy if copies else add)(fields, part.to, rows)
        if timed:
            self.engine.times.add("repacking", began)
        self._used(part.slot)

    def _source(self, tensor: int, slot: int, lo: int, hi: int) -> tuple[Tensor, ...]:
        """Returns the fields of a slot, once all of it has arrived, or of the rank's own rows."""
        if slot == HOME:
            return self.engine.shape.heads(self.home[tensor], lo, hi)
        self._arrived(slot)
        return self.engine.shape.heads(self._memory(slot), lo, hi)

    def _memory(self, number: int, start: bool = False) -> Memory:
        """Returns a slot's memory, made when first asked for."""
        with self.lock:
            memory = self.slots[number]
            if memory is None:
                slot = self.program.slots[number]
                if slot.inside is not None:
                    memory = self._memory(slot.inside[0]).part(slot.inside[1], slot.rows)
                else:
                    memory = self.engine.shape.empty(slot.tensor, slot.lo, slot.hi, slot.rows, start)
                self.slots[number] = memory
            return memory

    def _set(self, number: int, tensor: int, memory: Memory) -> None:
        if number == HOME:
            self.home[tensor] = memory
        else:
            with self.lock:
                self.slots[number] = memory

    def _used(self, number: int) -> None:
        """Lets a slot's memory go after its last use."""
        if number != HOME:
            with self.lock:
                self.uses[number] -= 1
                if self.uses[number] == 0 and number >= len(self.program.imported):
                    self.slots[number] = None

    def _arrived(self, slot: int) -> None:
        if slot != HOME:
            for index in self.program.arrives[slot]:
                self._wait(index)

    def _wait(self, index: int) -> None:
        if self.messages.is_done(index):
            return
        if threading.get_ident() != self.main:
            self.messages.wait(index)
            return
        self._waiting(partial(self.messages.wait, index), self.messages.name(index))

    def _waiting(self, call: Callable[[], None], name: Name | None = None) -> None:
        """Waits for something that only other ranks can end. name: of the message that it is."""
        began, stopped = self.engine.times.clock.now(), perf_counter()
        self.engine.board.wait()
        call()
        self.engine.pace.came()
        self.engine.board.resume()
        self.engine.times.add("waiting", began)
        if name is not None:
            self.engine.post.named.waited(name, began, self.engine.times.clock.now())
        self.engine.post.events.span("waiting", stopped, self.number)
