"""Times of a step's attention, measured where it runs: by the host's clock on a CPU, by events on a GPU.

On a GPU calls return before their work has begun, and waiting for a message holds up the compute stream, not the host.
So a moment there is an event on the current stream, and how far two are apart is known once the stream has got there.
"""

from time import perf_counter
from typing import Any, Protocol

import torch

KINDS = ("kernel", "repacking", "waiting", "total", "under_way")


class Clock(Protocol):
    """A clock of the work on a device."""

    def now(self) -> Any:
        """Returns this moment of the work under way."""

    def between(self, began: Any, ended: Any) -> float:
        """Returns the seconds between two moments, both of which are past."""


class HostClock:
    """The host's clock, for work on a CPU."""

    def now(self) -> float:
        return perf_counter()

    def between(self, began: float, ended: float) -> float:
        return ended - began


class StreamClock:
    """Events in the compute stream of a GPU."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
        return float(began.elapsed_time(ended)) * 1e-3


class NoClock:
    """A clock that nobody reads, for runs that are not timed."""

    def now(self) -> float:
        return 0.0

    def between(self, began: float, ended: float) -> float:
        return 0.0


def clock_on(device: torch.device) -> Clock:
    """Returns the clock of a device."""
    return StreamClock() if device.type == "cuda" else HostClock()


class Times:
    """Seconds of all runs of a step: in kernels, repacking heads for messages and after them, waiting for messages,
    attention in all, and with messages to come.

    They are to be read when the work is done: on a GPU, after torch.cuda.synchronize.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._spans: dict[str, list[tuple[Any, Any]]] = {kind: [] for kind in KINDS}

    @staticmethod
    def on(device: torch.device) -> "Times":
        """Returns times on a device's clock."""
        return Times(clock_on(device))

    @staticmethod
    def none() -> "Times":
        """Returns times of nothing: whoever runs programs for months wants no list of their moments."""
        return Untimed(NoClock())

    def clear(self) -> None:
        """Forgets all times, for the next step."""
        for spans in self._spans.values():
            spans.clear()

    def add(self, kind: str, began: Any, ended: Any = None) -> None:
        """Counts from `began` to `ended`, or to now, as time of `kind`."""
        self._spans[kind].append((began, self.clock.now() if ended is None else ended))

    @property
    def kernel(self) -> float:
        """Seconds in kernels."""
        return self._seconds("kernel")

    @property
    def repacking(self) -> float:
        """Seconds of repacking heads for messages and after them."""
        return self._seconds("repacking")

    @property
    def waiting(self) -> float:
        """Seconds of waiting for messages."""
        return self._seconds("waiting")

    @property
    def total(self) -> float:
        """Seconds of attention in all."""
        return self._seconds("total")

    @property
    def under_way(self) -> float:
        """Seconds with messages to come."""
        return self._seconds("under_way")

    def _seconds(self, kind: str) -> float:
        return sum(self.clock.between(began, ended) for began, ended in self._spans[kind])


class Untimed(Times):
    """Times that count nothing."""

    def add(self, kind: str, began: Any, ended: Any = None) -> None:
        """Forgets what it is told."""
