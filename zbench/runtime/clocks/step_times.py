"""Times of a whole step on one process: which part of it (zbench.interfaces.result.SECONDS_FOR) each moment went to.

A process does one thing at a time, and says when it turns to another. So its parts sum to the step by construction:
what is waited for inside of a compute is no computing, and what is said to be nothing else is the interpreter's.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from zbench.interfaces.result import SECONDS_FOR
from zbench.runtime.clocks.named import Name, NamedMessages, NamedMoments
from zbench.runtime.clocks.pace import Paced, Pacer, Unpaced
from zbench.runtime.clocks.step_notes import NotedOperation, StepNotes
from zbench.runtime.clocks.times import Clock
from zbench.step.operations import QUEUES

OTHER = "interpreter"  # copies into messages and out of them, and what runs the list of operations
# By queue, the part that waiting for its messages is; attention's and tensor parallelism's are not told apart.
MESSAGES = "waiting_messages"
WAITS = tuple(f"waiting_{one}" if f"waiting_{one}" in SECONDS_FOR else MESSAGES for one in QUEUES)


class StepTimes:
    """The times of a step on a device's clock. They count from `begin` to `end`, and are read when the work is done: on
    a GPU, after torch.cuda.synchronize. pace: of the device; a paced one has a clock of its own.

    Of messages with a name, whose moments are the host's, `named` has when they were posted, and of the queues whose
    part is MESSAGES how long they were waited for. notes: of what was done when, where that is asked for.
    """

    def __init__(self, clock: Clock, pace: Pacer | None = None) -> None:
        self.clock, self.pace = pace if isinstance(pace, Paced) else clock, pace or Unpaced()
        self.notes = StepNotes(self.clock, clock)
        self._part, self._coming, self._is_on = OTHER, 0, False
        self._turns: list[tuple[str, Any]] = []  # the part that begins, and when
        self._named, self.named = NamedMoments(), NamedMessages()
        self._under_way: list[Any] = []  # moments, in turn of the first message to come and of the last that came
        self._counting = threading.Lock()  # of messages to come, which several threads wait for

    def begin(self, noted: bool = False) -> None:
        """Begins a step. noted: whether it is noted operation by operation."""
        self._part, self._is_on, now = OTHER, True, self.clock.now()
        self._named.begin()
        self.notes.begin(noted)
        self._turns, self._under_way = [(OTHER, now)], [now] if self._coming else []  # of what began to come before

    def end(self) -> None:
        """Ends a step."""
        now = self.clock.now()
        self._turns.append(("", now))
        if self._coming:
            self._under_way.append(now)
        self._is_on, self.named, self.notes.is_on = False, self._named.end(), False

    def turn_to(self, part: str) -> str:
        """Says that what follows is of a part of SECONDS_FOR; returns the one that it was of."""
        before = self._part
        if self._is_on and part != before:
            self._turns.append((part, self.clock.now()))
            self._part = part
        return before

    def wait(
        self,
        queue: int,
        messages: Callable[[], Any],
        name: Name | None = None,
        of: NotedOperation | None = None,
    ) -> Any:
        """Waits for messages of a queue; returns what that returns. name: of the message that it is; of: as of
        zbench.runtime.clocks.step_notes.NotedWait."""
        before, asked = self.turn_to(WAITS[queue]), self.pace.moment()
        began, noted = self.clock.now() if name is not None else 0.0, self.notes.asks()
        found = messages()
        self.pace.came(asked)
        self.notes.waited(of, queue, noted)
        if name is not None and WAITS[queue] == MESSAGES:
            self._named.waited(name, began, self.clock.now())
        self.turn_to(before)
        return found

    def leaves(self, name: Name) -> None:
        """Says that a message is posted now; from any thread."""
        self._named.leaves(name)

    def posted(self, count: int) -> None:
        """Says that receives of so many messages were posted."""
        with self._counting:
            if self._is_on and count and not self._coming:
                self._under_way.append(self.clock.now())
            self._coming += count

    def arrived(self) -> None:
        """Says that a message was waited for; from any thread."""
        with self._counting:
            self._coming -= 1
            if self._is_on and not self._coming:
                self._under_way.append(self.clock.now())

    def spans(self) -> Iterator[tuple[str, Any, Any]]:
        """Yields (part, its begin, its end), one after the other."""
        for (part, began), (_, ended) in zip(self._turns, self._turns[1:], strict=False):
            yield part, began, ended

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of every part that took some."""
        found: dict[str, float] = {}
        for part, began, ended in self.spans():
            found[part] = found.get(part, 0.0) + self.clock.between(began, ended)
        return found

    @property
    def under_way(self) -> float:
        """The seconds in which some message was to come: its receive was posted, and it was not waited for yet."""
        begins, ends = self._under_way[::2], self._under_way[1::2]
        return sum(self.clock.between(began, ended) for began, ended in zip(begins, ends, strict=True))
