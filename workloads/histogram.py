"""Lengths from a published histogram. Pure.

A bin is chosen by its fraction, a length inside it log-uniformly: uniformly would fill wide bins,
above all an open last one, with documents near its upper edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.workloads.check import number, whole
from zbench.workloads.fill import check_batch, drawn_batch

# Published fractions are rounded; a sum further from 1 than this is a wrong table.
_ROUNDING = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """A workload whose lengths follow a published histogram. bins: rows (low, high, fraction): that fraction of
    documents has low <= length < high.

    A low of 0 counts as 1. A bin of one length (65536, 65537) is a spike.
    """

    seed: int
    tokens: int
    bins: Sequence[Sequence[float]]
    context_limit: int = 131072
    over_limit: str = "cut"
    _edges: Floats = field(init=False, repr=False)  # [2, num_bins]: low, high
    _fractions: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_batch(self.seed, self.tokens, self.context_limit, self.over_limit)
        _check_bins(self.bins)
        rows = np.array(self.bins, dtype=np.float64)
        object.__setattr__(self, "_edges", np.maximum(rows[:, :2].T, 1))
        object.__setattr__(self, "_fractions", rows[:, 2] / rows[:, 2].sum())

    def batch(self, step: int) -> Batch:
        return drawn_batch(self, step)

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        which = rng.choice(self._fractions.size, num, p=self._fractions)
        low, high = self._edges[0][which], self._edges[1][which]
        lengths = low * (high / low) ** rng.random(num)
        return np.asarray(np.clip(lengths, low, high - 1), dtype=np.int64)

    def cdf(self, length: Ints) -> Floats:
        # A whole length n stands for every real x in [n, n + 1); ln x rises evenly inside a bin, not between bins.
        so_far = np.cumsum(self._fractions)
        reached = np.stack([so_far - self._fractions, so_far])
        x, edges = np.asarray(length) + 1.0, self._edges.T.ravel()
        return np.asarray(np.interp(np.log(x), np.log(edges), reached.T.ravel()), dtype=np.float64)


def _check_bins(bins: Sequence[Sequence[float]]) -> None:
    if not isinstance(bins, Sequence) or isinstance(bins, str) or not bins:
        raise ValueError(f"workload.bins is {bins!r}; it must be at least one row [low, high, fraction]")
    last = 0
    for i, row in enumerate(bins):
        name = f"workload.bins[{i}]"
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise ValueError(f"{name} is {row!r}; it must be a row of 3 numbers, [low, high, fraction]")
        low, high, fraction = row
        whole(f"{name} low", low, last)  # bins rise and do not overlap
        whole(f"{name} high", high, max(int(low), 1) + 1)
        number(f"{name} fraction", fraction, 0, 1)
        last = int(high)
    total = sum(row[2] for row in bins)
    if abs(total - 1) > _ROUNDING:
        raise ValueError(f"workload.bins has fractions that sum to {total:g}; the sum must be 1 within {_ROUNDING}")
