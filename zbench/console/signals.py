"""Signals that end a command: Ctrl-C, SIGTERM (Slurm, timeout, kill) and SIGHUP (a terminal that closes). Pure: stdlib.

While a command works they are exceptions, so that a record gets its last line and ranks are ended. While its modules
are imported, and after its work, there is nothing to end: the process leaves at once and says nothing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal asked the process to end; whoever knows what to do at Ctrl-C does the same."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def leave_at_once() -> None:
    """Makes such a signal end the process, without a word, from now on.

    For imports: an exception would come out of somebody's module as a traceback, or as another exception.
    """
    _handle(_leave)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raises Ended, or KeyboardInterrupt for Ctrl-C, where a signal comes inside; then all is as it was before."""
    before = _handle(_raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """Returns the Ctrl-C or other signal that `error` is, or that it came of: compiled code makes a SystemError of
    it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def exit_code(stop: KeyboardInterrupt) -> int:
    """Returns the exit code that shells give to a process that the signal killed: 130 after Ctrl-C, 143 after
    SIGTERM."""
    return 128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)


def stopped_by(stop: KeyboardInterrupt) -> str:
    """Says who stopped the work, for records."""
    return f"stopped by {stop}" if isinstance(stop, Ended) else "stopped by the user"


def _handle(handler: "signal._HANDLER") -> dict[int, "signal._HANDLER"]:
    """Sets the handler of all signals that are not ignored (nohup, a shell's background jobs); what they had before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before: dict[int, signal._HANDLER] = {}
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


def _raise(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)
