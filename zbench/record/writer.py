"""Writes records (zbench.record.record): whole lines, at the end of a file. Pure: no torch.

A line is one write to a descriptor opened for appending, so several runs may share a file and a killed run keeps
the steps it finished. Where a line was torn all the same, the next writer starts on a fresh one.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zbench.record.kinds import RECORD
from zbench.record.outputs import check_output


class RecordError(Exception):
    """A record could not be written; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """Appends whole lines to one file."""

    path: str
    descriptor: int

    @staticmethod
    def open(path: str) -> "RecordWriter":
        """Opens a record to append to; makes it where there is none.

        Raises:
            ValueError: it is something else than a record, or cannot be written.
        """
        check_output("out", path, RECORD, appended=True)
        try:
            return RecordWriter(path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666))
        except OSError as error:
            raise ValueError(f"out is {path!r}; it cannot be written: {error.strerror}") from error

    def append(self, line: Mapping[str, Any]) -> None:
        """Writes `line` whole or not at all.

        Raises:
            RecordError: it could not be written (a full disk); the file is as it was before.
        """
        data = json.dumps(line, separators=(",", ":"), allow_nan=False, default=_plain).encode() + b"\n"
        with _locked(self.descriptor):
            size = os.fstat(self.descriptor).st_size
            if size and os.pread(self.descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # an earlier writer died inside its line: leave it alone on its own
            written = 0
            try:
                while written < len(data):
                    written += os.write(self.descriptor, data[written:])
            except OSError as error:
                _take_back(self.descriptor, size, written)
                raise RecordError(
                    f"the record {self.path} cannot be written: {error.strerror}; the steps already in it are kept"
                ) from error

    def close(self) -> None:
        """Closes the file."""
        os.close(self.descriptor)


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Keeps other writers of the file away, so that a torn line can be taken back.

    Some network file systems know no locks: then one write a line still keeps lines whole, and only
    a full disk can tear one, which readers skip.
    """
    locked = True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        locked = False
    try:
        yield
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _take_back(descriptor: int, size: int, written: int) -> None:
    """Cuts the torn part of a line off again, unless somebody has written after it."""
    with contextlib.suppress(OSError):
        if written and os.fstat(descriptor).st_size == size + written:
            os.ftruncate(descriptor, size)


def _plain(value: Any) -> Any:
    """Turns numpy scalars and arrays into plain numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not belong in a record")
