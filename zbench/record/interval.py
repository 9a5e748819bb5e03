"""Confidence intervals over batches: Student's t of one system's batches, and of two systems' ratios. Pure: no torch.

A ratio of two systems is paired: both ran every batch, so that batches which are slow for both do not widen the
interval. Logarithms make a half and a double equally far from 1.
"""

from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
LEAST = 3  # batches: of two the interval of anything measured reaches from next to nothing to anything


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns (mean, half the width of its interval by Student's t); None for the width of fewer than LEAST values."""
    mean = float(np.mean(values))
    if len(values) < LEAST:
        return mean, None
    from scipy.special import stdtrit  # a tenth of a second to import, which no shorter run waits for

    width = stdtrit(len(values) - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / np.sqrt(len(values))
    return mean, float(width)


def log_ratio(mine: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Returns (logarithm of the sum of `other` over that of `mine`, half the width of the interval of the pairs'
    ratios)."""
    _, half = interval(np.log(np.array(other) / np.array(mine)).tolist())
    return float(np.log(sum(other) / sum(mine))), half
