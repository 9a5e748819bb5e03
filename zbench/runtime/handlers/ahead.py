"""Receives of a step that are posted before their operation is reached, so that links work while a process computes."""

from collections import deque

from zbench.runtime.handlers.encoded import encoded_bytes
from zbench.runtime.handlers.messages import Arrival, StepMessages
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.steps.instructions import Exchange


class PostedAhead:
    """The receives of a step, posted in order, some of them before their operation is reached."""

    def __init__(self, messages: StepMessages, prepared: PreparedStep) -> None:
        self.messages = messages
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
            encoded_bytes(parts.formats[parcel.cells.tensor], (parcel.cells.first, parcel.cells.second), one.encoding)
            for parcel in one.receives
        ]
        self._posted.append(
            [
                self.messages.receive(one.queue, size, parcel.peer)
                for size, parcel in zip(sizes, one.receives, strict=True)
            ]
        )
        self._waiting += len(sizes)
        self.messages.times.posted(len(sizes))
        return True
