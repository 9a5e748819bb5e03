"""Samples what a node's NICs carry while a step runs: in all, and as a time series. No torch."""

import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zbench.runtime.network.nic import PhysicalCounters

if TYPE_CHECKING:
    from zbench.runtime.network.place import Place

Read = dict[str, tuple[int, int]]


class Counters(Protocol):
    """Counters of NICs."""

    def read(self) -> Read:
        """Returns the bytes of every NIC since it came up, (sent, received) by name."""


class Sampler:
    """A sampler that reads `counters` when a step begins and ends and, if there is an `interval` (seconds), so often in
    between.

    begin() and end() are called in turn; between them a thread reads.
    """

    def __init__(self, counters: Counters, interval: float | None) -> None:
        self._counters, self._interval = counters, interval
        self._moments: list[float] = []
        self._reads: list[Read] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def of_node(is_first: bool, place: "Place | None", interval: float | None) -> "Sampler":
        """Makes a rank's sampler of its machine's NICs or, where its node is emulated, of that `place`'s. is_first: of
        its node, where alone it looks in between. interval: as of the class."""
        counters = PhysicalCounters.of() if place is None else place.counters()
        return Sampler(counters, interval if is_first else None)

    def begin(self) -> None:
        """Begins a step."""
        self._moments, self._reads = [], []
        self._look()
        self._over.clear()
        if self._interval is not None:
            self._thread = threading.Thread(target=self._work, name="zbench-sampler", daemon=True)
            self._thread.start()

    def end(self) -> Read:
        """Ends a step; returns the bytes of every NIC since begin(), (sent, received) by name."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._look()
        first, last = self._reads[0], self._reads[-1]
        return {name: (last[name][0] - tx, last[name][1] - rx) for name, (tx, rx) in first.items()}

    def series(self) -> dict[str, Any]:
        """Returns the curves after end(): {"interval": seconds, "tx": per NIC the bytes sent in each interval, "rx":
        received}; {} without an interval.

        Looks come late by as much as the thread does; in between bytes are taken to come evenly.
        """
        if self._interval is None:
            return {}
        began, ended = self._moments[0], self._moments[-1]
        grid = began + self._interval * np.arange(1 + max(1, int((ended - began) / self._interval)))
        told: dict[str, Any] = {"interval": self._interval}
        for way, name in enumerate(("tx", "rx")):
            sums = [[read[nic][way] for read in self._reads] for nic in self._reads[0]]
            told[name] = [np.diff(np.interp(grid, self._moments, nic).round()).astype(int).tolist() for nic in sums]
        return told

    def _work(self) -> None:
        assert self._interval is not None
        due = self._moments[0] + self._interval
        while not self._over.wait(max(0.0, due - perf_counter())):
            self._look()
            due += self._interval

    def _look(self) -> None:
        self._reads.append(self._counters.read())
        self._moments.append(perf_counter())
