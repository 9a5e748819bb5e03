"""What FSMoE's published planner prints for layers with gradients of their own: the number of chunks of each.

In steps all layers with experts are alike, and have the same shares (zbench.cost.fsmoe.gradient_shares).
"""

from collections.abc import Sequence

import numpy as np

from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds, unhidden_gradients
from zbench.describe.arrays import Floats

_UNITS = 128  # in which what is left of gradients is divided among layers


def divided_gradients(left: Sequence[float], layer: ExpertLayerSeconds, reduction: LinearSeconds) -> list[float]:
    """Returns how much of what is left of gradients each layer of experts reduces: the second step of FSMoE's
    partition, which makes the sum of all layers' seconds, each with its best degree, and of what is reduced after them
    least.

    left: as of unhidden_gradients, a number for each layer of experts; a layer can only reduce what is there. In units
    of a 128th of the sum, by dynamic programming, where the published planner searches at random.
    """
    total = float(sum(left))
    if total <= 0:
        return [0.0] * len(left)
    unit = total / _UNITS
    there = np.floor(np.cumsum(left) / unit + 1e-9).astype(np.int64)
    gap = layer.slack(layer.best_degree())
    seconds = np.array([_best_seconds(layer, gap + reduction.work * unit * one) for one in range(_UNITS + 1)])
    least: Floats = np.full(_UNITS + 1, np.inf)
    least[0] = 0.0
    choice: list[Floats] = []
    for most in there.tolist():
        rows = least[:, None] + np.full((_UNITS + 1, _UNITS + 1), np.inf)
        for placed in range(most + 1):
            rows[placed, placed : most + 1] = least[placed] + seconds[: most + 1 - placed]
        choice.append(np.argmin(rows, axis=0))
        least = np.min(rows, axis=0)
    at = int(np.argmin(least + reduction.work * unit * (_UNITS - np.arange(_UNITS + 1))))
    found = []
    for one in reversed(choice):
        found.append((at - int(one[at])) * unit)
        at = int(one[at])
    return found[::-1]


def _best_seconds(layer: ExpertLayerSeconds, reduced: float) -> float:
    return layer.makespan(layer.best_degree(reduced), reduced)


def backward_degrees(
    layer: ExpertLayerSeconds, gradient: float, dense: float, reduction: LinearSeconds, num_layers: int
) -> list[int]:
    """Returns the numbers of chunks of every layer of experts in a backward, in its order.

    layer: of the backward. gradient: the size of each dense part's gradient; dense: seconds of it in which reductions
    are hidden. The last layer has no gradient before it.
    """
    first = layer.best_degree()
    gap, count = layer.slack(first), num_layers - 1
    left = unhidden_gradients([gradient, 0.0] * count, [dense, gap] * count, reduction)
    pairs = [left[2 * at] + left[2 * at + 1] for at in range(count)]
    inside = [
        max(0.0, gap - reduction.start) / reduction.work + one for one in divided_gradients(pairs, layer, reduction)
    ]
    found = [layer.best_degree(reduction.start + one * reduction.work if one > 0 else 0.0) for one in inside]
    return [first, *found]
