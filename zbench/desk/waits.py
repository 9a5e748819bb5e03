"""Sets what ranks on emulated nodes waited for beside what the clock says of the same batches, of recorded whole steps.
Pure: no torch.

A step's parts sum to it, measured and simulated, so its computing, its waiting and its end are all there is. In rounds
workers do not wait for each other between local steps, so rounds are what is compared, of which a step has its share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from zbench.describe.sync import EVERY_STEP
from zbench.interfaces.result import COMPUTES, WAITS
from zbench.record.metrics import counted_rounds
from zbench.record.record import Line, Run
from zbench.record.rows import label, setting

Steps = Sequence[Mapping[str, Any]]  # as records have them


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds a step, means over ranks: of the whole step, of computing, of waiting for messages, and those that
    workers waited for the slowest of them where they met."""

    step: float
    computing: float
    waiting: float
    slowest: float

    @staticmethod
    def of(steps: Steps) -> "Waits":
        """Returns those of the steps of a round."""
        waits = [f"waiting_{name}" for name in WAITS]
        return Waits(
            fmean(one["seconds"] for one in steps),
            _part(steps, COMPUTES),
            _part(steps, waits),
            fmean(one["phases"].get("wait", 0.0) for one in steps),
        )


@dataclass(frozen=True, slots=True)
class ComparedWaits:
    """The waits of a run. of: system, workload and settings (zbench.record.rows). measured, simulated: medians of
    steps, in rounds means, as a few long documents decide. steps: that count, and all."""

    of: Mapping[str, str]
    measured: Waits
    simulated: Waits
    steps: tuple[int, int]


def compared_waits(run: Run, played: Callable[[Sequence[Line]], Steps]) -> ComparedWaits:
    """Compares what a run's ranks waited for. played: plays recorded steps in their order, all of them, as in rounds a
    step's seconds depend on those before it.

    Raises:
        ValueError: the run was simulated, has no account of its seconds, or no round of it counts whole.
    """
    sync = run.start["config"].get("sync", {})
    counted = counted_rounds(run.steps, sync)
    name = label(run.start, "system")
    if not counted or run.start["facts"]["simulated"]:
        raise ValueError(f"the run of {name} has no measured round of steps that counts")
    if not all(step.get("seconds_for") for step in run.steps):
        raise ValueError(f"the run of {name} does not tell what its seconds went to, as older records do not")
    told, over = played(run.steps), median if sync.get("method", EVERY_STEP) == EVERY_STEP else fmean

    def together(steps: Steps) -> Waits:
        each = [Waits.of([steps[at] for at in one]) for one in counted]
        return Waits(*(over([getattr(one, name) for one in each]) for name in Waits.__dataclass_fields__))

    return ComparedWaits(
        {**{group: label(run.start, group) for group in ("system", "workload")}, **setting(run.start)},
        together(run.steps),
        together(told),
        (sum(map(len, counted)), len(run.steps)),
    )


def waits_table(found: Sequence[ComparedWaits]) -> list[str]:
    """Returns the lines of a table in Markdown; settings that all have in common are left out, and waiting for the
    slowest worker where none did."""
    several = [key for key in found[0].of if len({one.of[key] for one in found}) > 1 and key != "sources"]
    fields = ["step", "computing", "waiting", *(["slowest"] if any(one.measured.slowest for one in found) else [])]
    words = {"slowest": "for the slowest worker"}
    kinds = ("measured", "simulated")
    titles = [*several, "steps that count", *(f"{words.get(name, name)}, {kind}" for name in fields for kind in kinds)]
    rows = [titles, ["---"] * len(titles)]
    for one in found:
        values = [getattr(getattr(one, kind), name) for name in fields for kind in kinds]
        steps = f"{one.steps[0]} of {one.steps[1]}"
        rows.append([*(one.of[key] for key in several), steps, *(f"{value:.3f}" for value in values)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _part(steps: Steps, names: Sequence[str]) -> float:
    """Returns the mean seconds of a step that went to parts of an account."""
    return fmean(sum(fmean(one["seconds_for"].get(name, [0.0])) for name in names) for one in steps)
