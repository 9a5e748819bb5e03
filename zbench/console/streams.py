"""Standard output and error of a command, which may be closed, full, or have a reader that leaves early. Pure: stdlib.

Python's own streams raise wherever something is printed, and once more when the interpreter ends. Here a reader who has
seen enough (head, less) stops nothing, and output that is lost is one OSError.
"""

import contextlib
import io
import os
import sys
from typing import Any, TextIO

_OUT, _ERROR = 1, 2  # descriptors


def wrap_streams() -> None:
    """Exchanges sys.stdout and sys.stderr for streams that bear being closed, full, or left by their reader. Call it
    once, before anything is opened.

    A closed descriptor becomes /dev/null: the next file to be opened, a record for instance, would get its number.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    sys.stdout = _stream(_OUT, sys.stdout)
    sys.stderr = _stream(_ERROR, sys.stderr)


def finish() -> None:
    """Writes out what was printed.

    Raises:
        OSError: not all of standard output could be written.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def _stream(descriptor: int, like: TextIO | None) -> TextIO:
    """Returns a stream that shows text as `like` does; what its encoding lacks is shown as an escape."""
    shown = like.encoding if like is not None else "utf-8"
    raw = _Raw(descriptor, "wb", closefd=False)
    whole = isinstance(like, io.TextIOWrapper) and like.write_through
    text = io.TextIOWrapper(io.BufferedWriter(raw), shown, "backslashreplace", write_through=whole)
    text.reconfigure(line_buffering=descriptor == _ERROR or raw.isatty())
    return text


class _Raw(io.FileIO):
    """Writes to a standard descriptor, and to /dev/null from the first failure on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.fileno() == _ERROR or isinstance(error, BrokenPipeError):
                return len(memoryview(data).cast("B"))
            raise OSError(error.errno, error.strerror, "standard output") from error
