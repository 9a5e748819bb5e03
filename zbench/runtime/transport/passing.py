"""Sends what is not there yet, while the process goes on, in threads of their own.

What a message brings goes to another process, as it is, as in rings, or added to what was there. A process that waited
for it would compute nothing meanwhile; a GPU's links wait for nobody's arithmetic.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

Work = Any  # of torch.distributed: what to wait for


class PassedOn:
    """A message that leaves once it is here. arrived: waits for it; send: posts it then."""

    def __init__(self, arrived: Callable[[], Any], send: Callable[[], Work]) -> None:
        self._arrived, self._send = arrived, send
        self._posted = threading.Event()
        self._work: Work = None
        self._error: BaseException | None = None

    def post(self) -> None:
        """Waits for the message, and posts it."""
        try:
            self._arrived()
            self._work = self._send()
        except BaseException as error:  # told to whoever waits, who raises it
            self._error = error
        self._posted.set()

    def wait(self) -> None:
        """Returns when the message has left.

        Raises:
            what waiting for it, or posting it, raised.
        """
        self._posted.wait()
        if self._error is not None:
            raise self._error
        self._work.wait()


@dataclass
class _Line:
    """The messages that a thread was given. posted: how many of them it is done with."""

    given: "SimpleQueue[PassedOn | None]" = field(default_factory=SimpleQueue)
    posted: int = 0

    def post_all(self) -> None:
        """Posts messages, until there is None in place of one."""
        while (one := self.given.get()) is not None:
            one.post()
            self.posted += 1


class PassingThread:
    """A thread that posts messages one after another, in the order it was given them; it ends when nobody has this any
    more."""

    def __init__(self) -> None:
        self._line, self._count = _Line(), 0
        threading.Thread(target=self._line.post_all, name="zbench-passing", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether it has messages that are not posted yet; of the thread that gives them."""
        return self._line.posted < self._count

    def give(self, one: PassedOn) -> None:
        """Gives the thread a message."""
        self._count += 1
        self._line.given.put(one)

    def __del__(self) -> None:
        self._line.given.put(None)
