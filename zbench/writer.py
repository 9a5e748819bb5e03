"""Writes records (zbench.record): whole lines, at the end of a file. Pure: no torch.

A line is one write to a descriptor opened for appending, so several runs may share a file and a killed run keeps
the steps it finished. Where a line was torn all the same, the next writer starts on a fresh one.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RecordError(Exception):
    """A record could not be written; the message is one sentence for the user."""


def check_writable(field: str, path: str) -> None:
    """Refuses a file that cannot be written to, before any work and without making it.

    Raises:
        ValueError: it is a folder, its folder is missing, or writing is not allowed; the message names `field`.
    """
    folder = Path(path).parent
    try:
        if Path(path).is_dir():
            raise ValueError(f"{field} is {path!r}; that is a folder, and it takes a file")
        if not folder.is_dir():
            raise ValueError(f"{field} is {path!r}; its folder {folder} does not exist")
        if Path(path).exists():
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
        elif not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{field} is {path!r}; its folder {folder} is read-only")
    except OSError as error:
        raise ValueError(f"{field} is {path!r}; it cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends whole lines to one file."""

    path: str
    descriptor: int

    @staticmethod
    def open(path: str) -> "Writer":
        try:
            return Writer(path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666))
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
    """numpy scalars and arrays as plain numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not belong in a record")
