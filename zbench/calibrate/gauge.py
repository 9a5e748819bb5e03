"""Times of single operations, measured on all ranks at once. The driver's side; imports no torch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any

from zbench.calibrate.quantity import quantity
from zbench.calibrate.subject import RankResources, others
from zbench.runtime.processes.fleet import Fleet

WINDOWS = 5  # that each operation is measured in; what counts is their median


class Gauge:
    """A fleet of ranks as a clock for single operations. fleet: of zbench.calibrate.measure.Measure. window: seconds of
    one measurement. tell: shown progress, a line each.

    Calls raise zbench.runtime.processes.fleet.RankFailed when a rank fails.
    """

    def __init__(self, fleet: Fleet, window: float, tell: Callable[[str], None]) -> None:
        self.window, self.tell = window, tell
        self._fleet = fleet
        self.others: dict[str, float] = {}  # share of all cores that others used while something was measured
        self.abouts: list[RankResources] = fleet.call("about")

    def seconds(self, method: str, *arguments: Any) -> float:
        """Returns the seconds of one call on a rank while all ranks make it: from the mean rate of the ranks, the
        median of the windows."""
        return 1.0 / median(fmean(self._fleet.call(method, *arguments, self.window)) for _ in range(WINDOWS))

    def transfer(self, method: str, *arguments: Any) -> float:
        """Returns the seconds of what a method of Measure does between ranks in one of its rounds, which it takes last;
        the mean of the ranks that take part and the median of the windows."""

        def once(rounds: int) -> float:
            return fmean(one for one in self._fleet.call(method, *arguments, rounds) if one is not None)

        rounds, seconds = 2, once(2)
        while rounds * seconds < self.window / 2:  # the first messages are slower: connections, memory
            rounds = max(2 * rounds, int(self.window / seconds / 2))
            seconds = once(rounds)
        return median(once(rounds) for _ in range(WINDOWS))

    def rising(
        self,
        words: str,
        sizes: Iterable[int],
        growth: float,
        work: Callable[[int], float],
        seconds: Callable[[int], float],
        unit: str = "FLOP/s",
    ) -> dict[int, float]:
        """Returns rates by size, work over seconds. Sizes rise until the next, `growth` times as long, would outgrow a
        window.

        words: what is measured, "{}" for the size.
        """
        rates: dict[int, float] = {}
        for size in sizes:
            taken = seconds(size)
            rates[size] = work(size) / taken
            self.tell(f"{words.format(size)}: {quantity(rates[size], unit)}")
            if growth * taken > self.window:
                break
        return rates

    @contextmanager
    def watched(self, what: str) -> Iterator[None]:
        """Finds out what others took of the processors meanwhile. Where ranks compute on GPUs that says nothing."""
        before = self._fleet.call("used")
        yield
        if self.abouts[0].backend == "gloo":
            self.others[what] = others(before, self._fleet.call("used"))
