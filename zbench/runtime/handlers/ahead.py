"""Receives of a step that are posted before their operation is reached, so that links work while a process computes."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from zbench.runtime.handlers.counted import CountedRows
from zbench.runtime.handlers.encoded import encoded_bytes
from zbench.runtime.handlers.machine import BatchParts
from zbench.runtime.handlers.messages import Arrival, StepMessages
from zbench.runtime.handlers.prepared import PreparedStep, ScheduledInstruction
from zbench.runtime.handlers.store import Store
from zbench.runtime.steps.instructions import Exchange, TemplateProgram


class PostedAhead:
    """The receives of a step, posted in order, some of them before their operation is reached. schedule: of the step;
    stores: by place; they may have room for what arrives."""

    def __init__(
        self,
        messages: StepMessages,
        prepared: PreparedStep,
        schedule: Iterable[ScheduledInstruction],
        stores: Mapping[int, Store],
    ) -> None:
        self.messages, self.stores = messages, stores
        self._coming = (
            (program, one, prepared.batches[program.layout], layer)
            for program, one, layer in schedule
            if isinstance(one, Exchange)
        )
        self._posted: deque[list[Arrival]] = deque()
        self._waiting = 0  # messages among them
        self._next: tuple[TemplateProgram, Exchange, BatchParts, int] | None = None  # whose sizes are not known yet

    def arrivals(self) -> list[Arrival]:
        """Returns the arrivals of the next exchange, and posts receives beyond it."""
        while not self._posted or self._waiting - len(self._posted[0]) < self.messages.ahead:
            if not self._post():
                break
        found = self._posted.popleft()
        self._waiting -= len(found)
        return found

    def _post(self) -> bool:
        """Posts the receives of another exchange; returns whether there was one. How large messages of counted rows are
        is known when their numbers have come, which are waited for when the exchange is reached."""
        following = self._next or next(self._coming, None)
        if following is None:
            return False
        program, one, parts, layer = following
        self._next = None
        if parts.counted is not None and not parts.counted.know(one.receives, layer):
            if self._posted:
                self._next = following
                return False
            self._count(parts.counted, one, parts, layer)
        posted, notes = [], self.messages.times.notes
        for parcel in one.receives:
            notes.turn_to(program, one.op, layer, parcel.src, parcel.dst)
            cells, of = parcel.cells, parts.format(parcel.cells.tensor, layer + parcel.cells.layer)
            size = encoded_bytes(of, (cells.first, cells.second), one.encoding)
            key = parts.key(cells.tensor, layer + cells.layer)
            # What is encoded is decoded into memory of its own.
            into = None if one.encoding else self.stores[parcel.dst].room(key, of, cells.first, cells.second)
            posted.append(
                self.messages.receive(one.purpose, size, parcel.peer, into) if size else _nothing(self.stores)
            )
        self._posted.append(posted)
        self._waiting += len(posted)
        self.messages.times.posted(len(posted))
        return True

    def _count(self, counted: CountedRows, one: Exchange, parts: BatchParts, layer: int) -> None:
        """Waits for the numbers of rows that messages have."""
        for parcel in one.receives:
            if not counted.know_of(cells := parcel.cells, layer):
                own = replace(cells, tensor=counted.counts(cells.tensor))
                key, store = parts.key(own.tensor, layer + own.layer), self.stores[parcel.dst]
                numbers = store.read(key, parts.formats[own.tensor], own.first, own.second)[0]
                counted.note(layer + own.layer, own, numbers)


def _nothing(stores: Mapping[int, Store]) -> Arrival:
    """Returns a message without a row, which nobody sends."""
    device = next(iter(stores.values())).device
    return Arrival(torch.empty(0, dtype=torch.uint8, device=device), [])
