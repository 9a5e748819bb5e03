"""Passes on messages that have not arrived yet, while the process goes on, in threads of their own.

What a message brings goes to another process as it is, as in rings. A process that waited for it would compute nothing
meanwhile; a GPU's links wait for nobody's arithmetic.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Work = Any  # of torch.distributed: what to wait for


class PassedOn:
    """A message that is passed on once it is here. arrived: waits for it; send: posts it then."""

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


class PassingThread:
    """A thread that posts messages one after another, in the order it was given them; it ends when nobody has this any
    more."""

    def __init__(self) -> None:
        self._given: SimpleQueue[PassedOn | None] = SimpleQueue()
        threading.Thread(target=_post_all, args=(self._given,), name="zbench-passing", daemon=True).start()

    def give(self, one: PassedOn) -> None:
        """Gives the thread a message."""
        self._given.put(one)

    def __del__(self) -> None:
        self._given.put(None)


def _post_all(given: "SimpleQueue[PassedOn | None]") -> None:
    while (one := given.get()) is not None:
        one.post()
