"""A tracker that cannot cost a run its numbers. Knows no tracker by name."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zbench.interfaces.protocols import Tracked, Tracker


@dataclass(frozen=True, slots=True)
class Nothing:
    """The tracker of tracker=none, which does nothing."""

    def start(self, run: Tracked) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def curves(self, step: int, title: str, interval: float, lines: Mapping[str, Sequence[float]]) -> None: ...

    def attach(self, name: str, path: str) -> None: ...

    def finish(self, status: str, figures: Mapping[str, float]) -> None: ...

    def where(self) -> str:
        return "nowhere"


@dataclass(slots=True)
class Careful:
    """A tracker around any other, whose failures become one warning."""

    tracker: Tracker
    _failed: bool = field(default=False, init=False)

    def start(self, run: Tracked) -> None:
        self._try(lambda: self.tracker.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._try(lambda: self.tracker.log(step, metrics))

    def curves(self, step: int, title: str, interval: float, lines: Mapping[str, Sequence[float]]) -> None:
        self._try(lambda: self.tracker.curves(step, title, interval, lines))

    def attach(self, name: str, path: str) -> None:
        self._try(lambda: self.tracker.attach(name, path))

    def finish(self, status: str, figures: Mapping[str, float]) -> None:
        self._try(lambda: self.tracker.finish(status, figures))

    def _try(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except Exception as error:  # a plug-in of any origin: whatever it raises is its own affair
            self._failed = True
            print(
                f"zbench: tracking stops, the run and its record go on: {type(error).__name__}: {first_line(error)}",
                file=sys.stderr,
            )


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return (str(error).strip().splitlines() or ["no reason given"])[0]
