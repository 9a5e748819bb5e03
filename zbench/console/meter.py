"""Progress on stderr: of a run's steps and, in a sweep, of its jobs."""

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 5.0


@dataclass(slots=True)
class Sweep:
    """The progress of a sweep, and what its runs have to say below its table.

    jobs: how many there are; None where only hydra's sweeper knows. job: the number of the one that runs, from 1.
    said, files: sentences about the runs' figures and about files written, each once. not_again: runs not made again.
    traces: files that jobs so far write.
    """

    jobs: int | None
    job: int = 0
    began: float = field(default_factory=lambda: time.monotonic())
    spoke: float = field(default_factory=lambda: time.monotonic())
    said: dict[str, None] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    not_again: int = 0
    traces: set[str] = field(default_factory=set)

    def told(self) -> str:
        """Tells how far the sweep is, such as '3 of 15, about 40 s left: ', by the mean of the jobs so far."""
        if self.jobs is None:
            return f"job {self.job}: "
        done, left = self.job - 1, self.jobs - self.job + 1
        if done == 0:
            return f"{self.job} of {self.jobs}: "
        return f"{self.job} of {self.jobs}, about {_duration((time.monotonic() - self.began) / done * left)} left: "


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


@dataclass(slots=True)
class Meter:
    """The progress of one job: a bar a system on a terminal; elsewhere a line now and then."""

    total: int
    sweep: Sweep | None = None
    unit: str = "step"
    _bars: Progress | None = field(default=None, init=False)
    _tasks: dict[str, TaskID] = field(default_factory=dict, init=False)
    _spoke: float = field(default=0.0, init=False)

    def __enter__(self) -> "Meter":
        self._spoke = time.monotonic() if self.sweep is None else self.sweep.spoke
        if sys.stderr.isatty():
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=self.sweep is not None,  # else a sweep leaves a bar for every run of it
            )
            self._bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bars is not None:
            self._bars.stop()
        if self.sweep is not None:
            self.sweep.spoke = self._spoke

    def show(self, system: str, done: int, loss: float | None = None, doing: str = "") -> None:
        """Shows how far a system is. done: steps. doing: what the next one is at, as steps of thousands of ranks take
        minutes."""
        told = f", {doing}" if doing else "" if loss is None else f", loss {loss:.4f}"
        name = system if self.sweep is None else f"{self.sweep.told()}{system}"
        if self._bars is not None:
            if system not in self._tasks:
                self._tasks[system] = self._bars.add_task(name, total=self.total)
            self._bars.update(self._tasks[system], completed=done, description=f"{name}{told}")
        elif time.monotonic() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            with suppress(BrokenPipeError):  # nobody listens any more: no reason to stop
                print(f"{name}: {self.unit} {done} of {self.total}{told}", file=sys.stderr, flush=True)
