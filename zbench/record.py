"""Records: append-only JSON lines - a run's start, each of its steps, its end. Pure: no torch.

    {"kind":"start","run":ID,"time":...,"command":...,"group":...,"config":{...},"baseline":...,
     "fingerprint":{...},"facts":{...}}
    {"kind":"about","run":ID, ...}: where training is real, what the ranks found: device, kernel, backend, versions
    {"kind":"step","run":ID,"step":0,"tokens":...,"seconds":..., ...}
    {"kind":"end","run":ID,"status":"finished" | "interrupted" | "failed","message":...}

Raw quantities only: whatever can be derived is derived on reading (zbench.metrics). Here is what lines hold
and how they are read, zbench.writer writes them. A line that was torn harms no other: the reader names it
and goes on.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zbench.older import as_today

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
    return _today(runs.values(), problems), problems


def _today(runs: Iterable[Run], problems: list[str]) -> list[Run]:
    """Runs with lines as they are written today (zbench.older); those that cannot be so are told of in `problems`."""
    found = []
    for run in runs:
        try:
            start, steps = as_today(run.start, run.steps)
            found.append(replace(run, start=start, steps=steps))
        except ValueError as error:
            problems.append(f"{run.path}:{run.line}: {error}; the run is skipped")
    return found


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
