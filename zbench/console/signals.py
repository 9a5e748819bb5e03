"""Signals that end a command: Ctrl-C, SIGTERM (Slurm, timeout, kill) and SIGHUP (a terminal that closes). Pure: stdlib.

While a command works they are exceptions, so that a record gets its last line and ranks are ended. While its modules
are imported, and after its work, there is nothing to end: the process leaves at once and says nothing.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.05  # seconds after which a signal comes again whose exception nobody got
_lost: list[KeyboardInterrupt] = []  # of signals that came where Python ignores exceptions


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
    """Raises Ended, or KeyboardInterrupt for Ctrl-C, where a signal comes inside; then all is as it was before.

    A signal may come where Python ignores exceptions: in a `__del__`, or in a callback of compiled code, as while numba
    compiles. It comes once more then, so that it is not lost.
    """
    before, hook, coming = _handle(_raise), sys.unraisablehook, list[threading.Timer]()
    _lost.clear()

    def ignored(what: "sys.UnraisableHookArgs") -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            hook(what)
            return
        _lost.append(what.exc_value)
        number = exit_code(what.exc_value) - 128
        coming.append(threading.Timer(AGAIN, os.kill, (os.getpid(), number)))
        coming[-1].daemon = True
        coming[-1].start()

    sys.unraisablehook = ignored
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for one in coming:
            one.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """Returns the Ctrl-C or other signal that `error` is, or that it came of: compiled code makes a SystemError of it,
    and what a callback did not do because of it may fail elsewhere."""
    stop = error
    while stop is not None and not isinstance(stop, KeyboardInterrupt):
        stop = stop.__cause__ or stop.__context__
    return stop if stop is not None or error is None or not _lost else _lost[-1]


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
