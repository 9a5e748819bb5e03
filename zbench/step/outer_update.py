"""The outer update, by the average of a round: its arithmetic for all methods, for numpy and torch alike. Pure.

Of every element: x, the parameter that the workers began their round with; mean, the average of theirs at its end,
weighted by tokens; m, the momentum, which is zero at first. difference = x - mean stands for a gradient.

    local_sgd   x <- mean
    slowmo      m <- momentum m + difference                       x <- x - lr m
    co2         m <- momentum m + difference / penalty             x <- x - lr clip(m)
    diloco      m <- momentum m + difference                       x <- x - lr (difference + momentum m)

streaming_diloco is diloco of some layers at a time. Its workers have trained on when an average comes, so they take up
what they have with it: own <- mixing own + (1 - mixing) x, where all others have x.

co2's mean is of the round before, and so is the x that its difference is from: since then x has moved by lr clip(m),
of the momentum before. gap_aware's penalty is, element by element, 1 + that move over the difference (ours, after
Barkai et al. 2020, arXiv 1909.10802, who divide a late gradient by 1 + how far a parameter moved meanwhile, in units of
a usual move).
"""

from typing import Any

from zbench.describe.sync import CO2, CONSTANT, DILOCO, STREAMING_DILOCO, RoundSync

Array = Any  # of numpy or of torch: what has +, -, *, /, abs() and clip()


def outer_update(sync: RoundSync, x: Array, m: Array, mean: Array) -> tuple[Array, Array]:
    """Returns the parameter and the momentum after a round."""
    if sync.method == CO2:
        return _co2(sync, x, m, mean)
    difference = x - mean
    m = sync.momentum * m + difference
    if sync.method in (DILOCO, STREAMING_DILOCO):
        return x - sync.lr * (difference + sync.momentum * m), m
    return x - sync.lr * m, m


def taken(sync: RoundSync, own: Array, x: Array) -> Array:
    """Returns the parameter that a worker goes on with. own: its own; x: after the outer update."""
    return sync.mixing * own + (1 - sync.mixing) * x if sync.mixing else x


def _co2(sync: RoundSync, x: Array, m: Array, mean: Array) -> tuple[Array, Array]:
    moved = sync.lr * _clipped(sync, m)
    difference = x + moved - mean
    if sync.penalty == CONSTANT:
        late = difference / sync.penalty_constant
    else:  # difference / (1 + |moved| / |difference|), which is 0 where the difference is
        size = abs(difference)
        late = difference * (size / (size + abs(moved) + (size == 0)))
    m = sync.momentum * m + late
    return x - sync.lr * _clipped(sync, m), m


def _clipped(sync: RoundSync, m: Array) -> Array:
    return m if sync.clip is None else m.clip(-sync.clip, sync.clip)
