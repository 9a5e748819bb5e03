"""Four numbers that say how far a group of predictions is off. Pure: no torch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from zbench.anchors.anchor import Anchor

APART = 1.1  # measurements within 10 % of each other have no order to keep


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of a group of predictions. median, p90, worst: of the errors' sizes. broken: pairs of one family in
    the wrong order, of `pairs` apart.

    A pair is of two methods; of one that was measured several times it is the mean that has a place.
    """

    median: float
    p90: float
    worst: float
    broken: list[tuple[str, str]]
    pairs: int


def summary_rows(anchors: Sequence[Anchor]) -> Summary:
    """Sums up the errors of anchors, and the pairs of one family that they put in the wrong order."""
    errors = np.abs([anchor.error for anchor in anchors])
    apart = [
        (a, b) if a.measured > b.measured else (b, a) for a, b in combinations(_merged(anchors), 2) if _apart(a, b)
    ]
    broken = [(high.case, low.case) for high, low in apart if high.predicted <= low.predicted]
    return Summary(float(np.median(errors)), float(np.quantile(errors, 0.9)), float(errors.max()), broken, len(apart))


def _merged(anchors: Sequence[Anchor]) -> list[Anchor]:
    """Returns an anchor for each method of a family, the mean of its repeats."""
    found: dict[tuple[str, str], list[Anchor]] = defaultdict(list)
    for anchor in anchors:
        found[anchor.family, anchor.method or anchor.case].append(anchor)
    return [
        replace(
            repeats[0],
            measured=float(np.mean([one.measured for one in repeats])),
            predicted=float(np.mean([one.predicted for one in repeats])),
        )
        for repeats in found.values()
    ]


def _apart(a: Anchor, b: Anchor) -> bool:
    low, high = sorted((a.measured, b.measured))
    return bool(a.family) and a.family == b.family and high > APART * low
