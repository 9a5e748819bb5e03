"""Says why one system's steps are shorter than another's, from what was played of both. An edge."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbench.advise.play import Played
from zbench.record.record import Line

TOLD = 0.1  # of the difference: smaller parts of it are not told
UNEVEN = 0.02  # more than that of the mean has the busiest rank to compute before it counts as a reason to wait


@dataclass(frozen=True, slots=True)
class Spent:
    """The parts of a step's time, seconds, mean over ranks and steps: they add up to the step. communication: that no
    computing hides. waiting: the rest, for busier ranks and for the optimizer."""

    computing: float
    communication: float
    waiting: float

    @staticmethod
    def of(steps: Sequence[Line]) -> "Spent":
        """Works it out of lines of a record."""
        each = []
        for step in steps:
            busy = np.array(step["attention_seconds"]) + np.array(step["linear_seconds"])
            left = np.maximum(step["seconds"] - busy, 0.0)
            exposed = np.minimum(np.array(step["exposed_seconds"]), left)  # counted by layers, which may overlap
            each.append((busy.mean(), exposed.mean(), (left - exposed).mean()))
        return Spent(*map(float, np.mean(each, axis=0)))


def why(mine: Played, other: Played) -> str:
    """Returns a sentence or two on why `mine` is faster than `other`; both were played, within memory."""
    ours, theirs = mine.figures, other.figures
    assert ours.step_seconds
    assert theirs.step_seconds
    gap = theirs.step_seconds - ours.step_seconds
    names = mine.candidate.name, other.candidate.name
    steps = f"a step takes {_seconds(ours.step_seconds)}, and {_seconds(theirs.step_seconds)} with {names[1]}"
    parts = sorted(_parts(mine, other), key=lambda part: -part[0])
    gained = [f"{_seconds(size)} {words}" for size, words in parts if size >= TOLD * abs(gap)]
    lost = [f"{_seconds(-size)} {words}" for size, words in reversed(parts) if -size >= TOLD * abs(gap)]
    if not gained:
        return f"With {names[0]} {steps}."
    spent = f"; it loses {' and '.join(lost)}" if lost else ""
    return f"With {names[0]} {steps}. It saves {', '.join(gained)}{spent}."


def _parts(mine: Played, other: Played) -> list[tuple[float, str]]:
    """Returns (seconds that `mine` saves, of what, in words with the figures behind it) for every part of a step."""
    ours, theirs, (a, b) = Spent.of(mine.steps), Spent.of(other.steps), (mine.figures, other.figures)
    computing = theirs.computing - ours.computing
    hidden = f"{a.exposed_communication:.0%} of it against {b.exposed_communication:.0%}"
    if a.nic_utilization or b.nic_utilization:
        hidden += f"; NICs in use {a.nic_utilization:.0%} against {b.nic_utilization:.0%}"
    uneven = (b.imbalance or 1.0) > (a.imbalance or 1.0) + UNEVEN
    busiest = f" (the busiest GPU computes {a.imbalance:.2f} x the mean against {b.imbalance:.2f})" if uneven else ""
    return [
        (theirs.communication - ours.communication, f"of communication that no computing hides ({hidden})"),
        (theirs.waiting - ours.waiting, f"of waiting{busiest}"),
        (computing, "of computing, as kernels are faster on what it gives them" if computing > 0 else "of computing"),
    ]


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
