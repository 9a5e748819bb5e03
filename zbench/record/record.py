"""Records: append-only JSON lines - a run's start, each of its steps, its end. Pure: no torch.

    {"kind":"start","run":ID,"time":...,"command":...,"group":...,"config":{...},"baseline":...,
     "fingerprint":{...},"facts":{...}}
    {"kind":"about","run":ID, ...}: where training is real, what the ranks found: device, kernel, backend, versions
    {"kind":"step","run":ID,"step":0,"tokens":...,"seconds":..., ...}
    {"kind":"end","run":ID,"status":"finished" | "interrupted" | "failed","message":...}, and where CPUs update across
        steps "last_update": seconds and bytes of what the last step left to update; played, "first_step" besides; where
        steps are out of memory "window": the layers ahead with which the fullest, "step", is not, "fits"

Raw quantities only: whatever can be derived is derived on reading (zbench.record.metrics). zbench.record.fields has
what lines hold, zbench.record.writer writes them, and here they are read: every reader of records gets whole runs
alone. A line that was torn costs that line, and one that cannot be costs its run; no other run is harmed, and a
sentence says why.
"""

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zbench.record.fields import ALIKE, FIELDS, line_fault, shortened
from zbench.record.older import as_today, with_all_keys
from zbench.record.renamed import renamed_baseline, renamed_iteration, renamed_run
from zbench.record.shown import plain

Line = dict[str, Any]

SKIPPED = "; the line is skipped"  # how the problem of a line ends, for who reads the others
_NAMES = re.compile(r"\w[\w.-]{0,99}", re.ASCII)  # of a run: trackers make folders of it


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run: its start line, its steps in order, its end line if it came so far."""

    start: Line
    steps: list[Line] = field(default_factory=list)
    end: Line | None = None
    path: str = ""
    line: int = 0
    about: Line | None = None

    @property
    def status(self) -> str:
        """The status of the run: one without an end was killed - or is still running."""
        return "interrupted" if self.end is None else str(self.end["status"])


def read(path: str, wanted: Callable[[Line], bool] | None = None) -> tuple[list[Run], list[str]]:
    """Reads the whole runs of a file, in the order they started, and a sentence for each line or run that is left out.

    A file that gzip has compressed is read as any other, whatever its name.

    wanted: of a start line, whether its run is of interest; lines of other runs are not parsed.

    Raises:
        ValueError: the file cannot be read.
    """
    reading = _Reading(path)
    unwanted: set[bytes] = set()
    try:
        with _opened(path) as stream:
            for number, raw in enumerate(stream, 1):
                if not raw.strip() or _owner(raw) in unwanted:
                    continue
                try:
                    line = _parse(raw)
                except ValueError as error:
                    reading.problems.append(f"{path}:{number}: {error}{SKIPPED}")
                    continue
                if line["kind"] == "start" and wanted is not None and line_fault(line) is None and not wanted(line):
                    unwanted.add(line["run"].encode())
                else:
                    reading.take(line, number)
    except OSError as error:
        raise ValueError(f"record file {path!r} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ValueError(f"record file {path!r} cannot be read: what gzip has compressed is damaged") from error
    except MemoryError as error:
        raise ValueError(f"record file {path!r} cannot be read: a line of it is longer than memory") from error
    problems = reading.told()
    return _today(reading.runs(), problems), problems


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Iterable[bytes]]:
    """Opens a file to read, and what is in it where gzip has compressed it."""
    with Path(path).open("rb") as stream:
        if stream.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(stream) as inside:
                yield inside
        else:
            yield stream


def _today(runs: Iterable[Run], problems: list[str]) -> list[Run]:
    """Runs with lines as they are written today (zbench.record.older); those that cannot be so are told of in
    `problems`."""
    found = []
    for run in runs:
        try:
            start, steps = as_today(run.start, run.steps)
            found.append(replace(run, start=start, steps=steps))
        except ValueError as error:
            problems.append(f"{run.path}:{run.line}: {error}; the run is skipped")
    return found


def _owner(raw: bytes) -> bytes:
    """Returns the run of a line as Writer lays it out, {"kind":"step","run":"ID",..., without parsing the rest."""
    parts = raw.split(b'"', 8)
    return parts[7] if len(parts) == 9 and parts[5] == b"run" else b""


def _parse(raw: bytes) -> Line:
    """Reads a line; older names in it become today's.

    Raises:
        ValueError: it is no line of a record, or does not say of which run.
    """
    try:
        line: Line = json.loads(raw, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("not a line of JSON (nested too deeply)") from error
    except ValueError as error:  # also undecodable bytes
        reason = error if raw.endswith(b"}\n") else "cut off"
        raise ValueError(f"not a line of JSON ({reason})") from error
    kind = line.get("kind") if isinstance(line, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        told = f"kind is {shortened(kind)}" if isinstance(line, dict) and "kind" in line else "it has no kind"
        raise ValueError(f"not a line of a record ({told}; it takes {', '.join(FIELDS)})")
    run = line.get("run")
    if not isinstance(run, str) or _NAMES.fullmatch(run) is None:
        told = f"run of a {kind} line is {shortened(run)}"
        raise ValueError(f"{told}; it takes a name of at most 100 letters, digits, _, . and -")
    if kind != "step":  # whose text no command prints
        line = plain(line)
    if kind == "step" and "rollouts" in line:
        line["rollouts"] = renamed_iteration(line["rollouts"])
    if kind == "start":
        line |= {"baseline": renamed_baseline(line["baseline"])} if "baseline" in line else {}
        line |= {"config": with_all_keys(renamed_run(line["config"]))} if "config" in line else {}
    return line


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


@dataclass(slots=True)
class _Known:
    """A run that is being read."""

    start: Line
    number: int
    steps: dict[int, Line] = field(default_factory=dict)
    about: Line | None = None
    end: Line | None = None


@dataclass(slots=True)
class _Reading:
    """The state of reading a file. left_out: runs of which a line cannot be. repeated: lines that are there once
    more."""

    path: str
    problems: list[str] = field(default_factory=list)
    known: dict[str, _Known] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    repeated: dict[str, int] = field(default_factory=dict)

    def take(self, line: Line, number: int) -> None:
        run = line["run"]
        if run in self.left_out:
            return
        problem = line_fault(line) or (
            self._begin(line, number) if line["kind"] == "start" else self._add(line, number)
        )
        if problem is not None:
            self.problems.append(f"{self.path}:{number}: {line['kind']} line: {problem}; run {run} is left out")
            self.left_out.add(run)

    def _begin(self, line: Line, number: int) -> str | None:
        known = self.known.setdefault(line["run"], _Known(line, number))
        if known.number == number:
            return None
        return self._again(known.start, line, number, f"run is {line['run']!r}, which started in line {known.number}")

    def _add(self, line: Line, number: int) -> str | None:
        """Adds a line to its run; what speaks against it."""
        kind, known = line["kind"], self.known.get(line["run"])
        if known is None:
            return "the run has no start line before it in this file"
        if kind != "step":
            before = getattr(known, kind)
            if before is not None:
                return self._again(before, line, number, f"the run has another {kind} line")
            setattr(known, kind, line)
            return None
        step = line["step"]
        if step in known.steps:
            return self._again(known.steps[step], line, number, f"step is {step}, which the run has already")
        if known.end is not None:
            return f"step is {step}, after the run's end"
        if known.steps and step < (last := next(reversed(known.steps))):
            return f"step is {step}, after step {last}; a run's steps are in order"
        first = next(iter(known.steps.values()), line)
        known.steps[step] = line
        return _uneven(line, first)

    def _again(self, before: Line, line: Line, number: int, otherwise: str) -> str | None:
        """Handles a line that was there before: one that says the same counts once; one that does not cannot be."""
        if before != line:
            return f"{otherwise}, with other values"
        self.repeated.setdefault(line["run"], number)
        return None

    def runs(self) -> list[Run]:
        return [
            Run(one.start, list(one.steps.values()), one.end, self.path, one.number, one.about)
            for run, one in self.known.items()
            if run not in self.left_out
        ]

    def told(self) -> list[str]:
        repeated = {run: number for run, number in self.repeated.items() if run not in self.left_out}
        if not repeated:
            return self.problems
        whose = next(iter(repeated)) + (f" and {len(repeated) - 1} more" if len(repeated) > 1 else "")
        return [
            *self.problems,
            f"{self.path}:{min(repeated.values())}: lines of run {whose} are here a second time; they count once",
        ]


def _uneven(line: Line, first: Line) -> str | None:
    """Returns what is wrong with the lengths of a step's lists; first: the run's first step."""
    for one, *others in ALIKE:
        for other in others:
            if len(line[other]) != len(line[one]):
                return f"{other} has {len(line[other])} elements; it takes as many as {one}, {len(line[one])}"
    ranks = line["attention_seconds"]
    apart = line.get("exposed_nic_seconds") or line["exposed_seconds"]
    for name, mine, its in (
        ("exposed_nic_seconds", apart, line["exposed_seconds"]),
        ("nic_tx_bytes", line["nic_tx_bytes"], first["nic_tx_bytes"]),
        *((f"seconds_for[{name!r}]", mine, ranks) for name, mine in line.get("seconds_for", {}).items()),
    ):
        if len(mine) != len(its):
            return f"{name} has {len(mine)} elements; it takes {len(its)}, as before"
    return None
