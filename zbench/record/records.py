"""The runs of several record files, as commands read them: what is left out is told on stderr. An edge: no torch."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from zbench.record.record import Run, read

T = TypeVar("T")

_MOST_PROBLEMS = 10  # named at once


def read_all(paths: Sequence[str]) -> list[Run]:
    """Reads the whole runs of all files; one that is in several of them counts once.

    Raises:
        ValueError: a file cannot be read, or holds no whole run.
    """
    found: dict[str, Run] = {}
    for path in dict.fromkeys(paths):
        runs, problems = read(path)
        if not runs:
            _tell(problems, f"more lines or runs of {path} are left out")
            raise ValueError(f"record file {path!r} holds no run")
        for run in runs:
            first = found.setdefault(run.start["run"], run)
            if first is not run:
                which = "; it counts once" if _same(first, run) else " with other lines; it is left out here"
                where = f"{first.path}:{first.line}{which}"
                problems.append(f"{path}:{run.line}: run {run.start['run']} is also in {where}")
        _tell(problems, f"more lines or runs of {path} are left out")
    return list(found.values())


def each(runs: Sequence[Run], of: Callable[[Run], T]) -> list[T]:
    """Returns what `of` finds of every run; of a run for which that is a ValueError, the sentence is told.

    Raises:
        ValueError: it is one for all of them.
    """
    found: list[T] = []
    problems: list[str] = []
    for run in runs:
        try:
            found.append(of(run))
        except ValueError as error:
            problems.append(f"{run.path}:{run.line}: {error}")
    if problems and not found:
        raise ValueError(problems[0] + (f"; {len(problems) - 1} more cannot be, either" if len(problems) > 1 else ""))
    _tell([f"{problem}; the run is left out" for problem in problems], "more runs are left out")
    return found


def _tell(problems: Sequence[str], others: str) -> None:
    """Prints the first of them, and how many others there are."""
    for problem in problems[:_MOST_PROBLEMS]:
        print(f"zbench: {problem}", file=sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        print(f"zbench: {len(problems) - _MOST_PROBLEMS} {others}", file=sys.stderr)


def _same(one: Run, other: Run) -> bool:
    return (one.start, one.steps, one.about, one.end) == (other.start, other.steps, other.about, other.end)
