"""Records: append-only JSON lines - a run's start, each of its steps, its end. Pure: no torch.

    {"kind":"start","run":ID,"time":...,"command":...,"config":{...},"baseline":...,"fingerprint":{...},"facts":{...}}
    {"kind":"about","run":ID, ...}: where training is real, what the ranks found: device, kernel, backend, versions
    {"kind":"step","run":ID,"step":0,"tokens":...,"seconds":..., ...}
    {"kind":"end","run":ID,"status":"finished" | "interrupted" | "failed","message":...}

Raw quantities only: whatever can be derived is derived on reading (zbench.metrics). A line is one
write to a descriptor opened for appending, so several runs may share a file and a killed run keeps
the steps it finished. A line that was torn all the same harms no other: the next writer starts on
a fresh line, and the reader names the broken one and goes on.
"""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Line = dict[str, Any]

_TEXT, _TABLE, _FLAG = "text", "an object", "true or false"
_NUMBER, _POSITIVE, _NUMBERS = "a number", "a number above 0", "a list of numbers"
_FIELDS: dict[str, dict[str, str]] = {
    "start": {"run": _TEXT, "time": _TEXT, "config": _TABLE, "fingerprint": _TABLE, "facts": _TABLE},
    "step": {
        "run": _TEXT,
        "batch": _TEXT,
        **dict.fromkeys(("step", "plan_seconds", "bound_seconds", "capacity_bytes"), _NUMBER),
        **dict.fromkeys(("tokens", "sum_squared", "max_length", "seconds"), _POSITIVE),
        **dict.fromkeys(
            (
                "attention_seconds",
                "linear_seconds",
                "communication_seconds",
                "exposed_seconds",
                "nic_tx_bytes",
                "nic_rx_bytes",
                "peak_bytes",
            ),
            _NUMBERS,
        ),
        "out_of_memory": _FLAG,
    },
    "about": {"run": _TEXT},
    "end": {"run": _TEXT, "status": _TEXT},
}  # what readers rely on; a line may hold more


class RecordError(Exception):
    """A record could not be written; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a file holds of one run: its start line, its steps in order, its end line if it came so far."""

    start: Line
    steps: list[Line] = field(default_factory=list)
    end: Line | None = None
    path: str = ""
    line: int = 0
    about: Line | None = None

    @property
    def status(self) -> str:
        """A run without an end was killed - or is still running."""
        return "interrupted" if self.end is None else str(self.end["status"])


# -- writing --------------------------------------------------------------------------------------
def check_writable(field: str, path: str) -> None:
    """Refuses a file that cannot be written to, before any work and without making it.

    Raises:
        ValueError: it is a folder, its folder is missing, or writing is not allowed; the message names `field`.
    """
    folder = Path(path).parent
    if Path(path).is_dir():
        raise ValueError(f"{field} is {path!r}; that is a folder, and it takes a file")
    if not folder.is_dir():
        raise ValueError(f"{field} is {path!r}; its folder {folder} does not exist")
    try:
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


# -- reading --------------------------------------------------------------------------------------
def read(path: str, wanted: Callable[[Line], bool] | None = None) -> tuple[list[Run], list[str]]:
    """The runs of a file, in the order they started, and one sentence for each line that is broken.

    wanted: of a start line, whether its run is of interest; lines of other runs are not parsed.

    Raises:
        ValueError: the file cannot be read.
    """
    runs: dict[str, Run] = {}
    unwanted: set[bytes] = set()
    problems: list[str] = []
    try:
        with Path(path).open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                if not raw.strip() or _owner(raw) in unwanted:
                    continue
                try:
                    line = _parse(raw)
                    if line["kind"] == "start" and wanted is not None and not wanted(line):
                        unwanted.add(line["run"].encode())
                    else:
                        _place(runs, line, path, number)
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}; the line is skipped")
    except OSError as error:
        raise ValueError(f"record file {path!r} cannot be read: {error.strerror}") from error
    return list(runs.values()), problems


def _owner(raw: bytes) -> bytes:
    """The run of a line as Writer lays it out, {"kind":"step","run":"ID",..., without parsing the rest."""
    parts = raw.split(b'"', 8)
    return parts[7] if len(parts) == 9 and parts[5] == b"run" else b""


def _parse(raw: bytes) -> Line:
    try:
        line: Line = json.loads(raw, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("not a line of JSON (nested too deeply)") from error
    except ValueError as error:  # also undecodable bytes
        reason = error if raw.endswith(b"}\n") else "cut off"
        raise ValueError(f"not a line of JSON ({reason})") from error
    kind = line.get("kind") if isinstance(line, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ValueError("not a line of a record (no kind start, about, step or end)")
    for name, shape in _FIELDS[kind].items():
        if name not in line or not _CHECKS[shape](line[name]):
            raise ValueError(f"a {kind} line whose {name} is not {shape}")
    return line


def _place(runs: dict[str, Run], line: Line, path: str, number: int) -> None:
    run_id = line["run"]
    if line["kind"] == "start":
        if run_id in runs:
            raise ValueError(f"a second start of run {run_id}")
        runs[run_id] = Run(line, path=path, line=number)
        return
    if run_id not in runs:
        raise ValueError(f"a line of run {run_id}, whose start is not in this file")
    run = runs[run_id]
    if line["kind"] == "end":
        runs[run_id] = replace(run, end=line)
    elif line["kind"] == "about":
        runs[run_id] = replace(run, about=line)
    else:
        run.steps.append(line)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(values: list[Any]) -> bool:
    """As _is_number of each, but fast: a step of a thousand ranks has thousands."""
    return {type(value) for value in values} <= {int, float} and all(map(math.isfinite, values))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str),
    _NUMBER: _is_number,
    _POSITIVE: lambda value: _is_number(value) and value > 0,
    _NUMBERS: lambda value: isinstance(value, list) and len(value) > 0 and _are_numbers(value),
    _TABLE: lambda value: isinstance(value, dict),
    _FLAG: lambda value: isinstance(value, bool),
}
