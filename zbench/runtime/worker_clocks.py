"""The clocks of workers that train apart on paced devices: none waits for another one but where they come together.

A driver gives all workers a step at a time, so that ranks pause between two. A pause is no time of a worker's: its
clock counts its steps alone, and it begins the end of a round as much later than the first worker as its steps took
longer. So who is early waits there, for messages, as if nobody had paused. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from zbench.runtime.job.step_job import StepReport


@dataclass(frozen=True, slots=True)
class StepClock:
    """The time of a step. seconds: that it adds to its round's, whose workers do not wait for each other between. idle:
    of each rank, those after its own end. wait: that workers waited for the slowest where they met, mean."""

    seconds: float
    idle: Sequence[float]
    wait: float | None = None

    def followed_by(self, end: "StepClock") -> "StepClock":
        """Returns the time of a step and of the round's end that followed it."""
        idle = [one + more for one, more in zip(self.idle, end.idle, strict=True)]
        return StepClock(self.seconds + end.seconds, idle, end.wait)


@dataclass
class WorkerClocks:
    """The clocks since workers last came together. each: ranks of a worker. elapsed: of every worker, the seconds of
    its steps; a worker's are those of its slowest rank."""

    workers: int
    each: int
    elapsed: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.elapsed = [0.0] * self.workers

    @property
    def later(self) -> list[float]:
        """The seconds by which every rank comes after the first one, to where workers come together."""
        first = min(self.elapsed)
        return [own - first for own in self.elapsed for _ in range(self.each)]

    def step(self, reports: Sequence[StepReport]) -> StepClock:
        """Lets a step of every worker pass."""
        before, slowest = max(self.elapsed), self._slowest([one.seconds for one in reports])
        self.elapsed = [own + more for own, more in zip(self.elapsed, slowest, strict=True)]
        ends = [one for one in slowest for _ in range(self.each)]
        idle = [end - one.seconds for end, one in zip(ends, reports, strict=True)]
        return StepClock(max(self.elapsed) - before, idle)

    def met(self, reports: Sequence[StepReport]) -> StepClock:
        """Lets the end of a round pass, which all began `later`; clocks begin anew."""
        later, behind = self.later, [max(self.elapsed) - own for own in self.elapsed]
        ends = [one.seconds + late for one, late in zip(reports, later, strict=True)]
        self.elapsed = [0.0] * self.workers
        return StepClock(max(ends) - max(later), [max(ends) - end for end in ends], fmean(behind))

    def _slowest(self, seconds: Sequence[float]) -> list[float]:
        return [max(seconds[at : at + self.each]) for at in range(0, len(seconds), self.each)]
