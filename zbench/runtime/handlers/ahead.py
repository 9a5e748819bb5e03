"""Receives of a step that are posted before their operation is reached, so that links work while a process computes."""

from collections import deque
from collections.abc import Mapping

from zbench.runtime.handlers.encoded import encoded_bytes
from zbench.runtime.handlers.messages import Arrival, StepMessages
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.store import Store
from zbench.runtime.steps.instructions import Exchange


class PostedAhead:
    """The receives of a step, posted in order, some of them before their operation is reached. stores: by place; they
    may have room for what arrives."""

    def __init__(self, messages: StepMessages, prepared: PreparedStep, stores: Mapping[int, Store]) -> None:
        self.messages, self.stores = messages, stores
        self._coming = (
            (one, prepared.batches[program.layout], layer)
            for program, one, layer in prepared.schedule()
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
        one, parts, layer = following
        posted = []
        for parcel in one.receives:
            cells, of = parcel.cells, parts.formats[parcel.cells.tensor]
            size = encoded_bytes(of, (cells.first, cells.second), one.encoding)
            key = parts.key(cells.tensor, layer + cells.layer)
            # What is encoded is decoded into memory of its own.
            into = None if one.encoding else self.stores[parcel.dst].room(key, of, cells.first, cells.second)
            posted.append(self.messages.receive(one.queue, size, parcel.peer, into))
        self._posted.append(posted)
        self._waiting += len(posted)
        self.messages.times.posted(len(posted))
        return True
