"""Candidates by their estimates, the best few of them built and played on the cluster's clock. Pure: no torch."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from zbench.cost import Cost
from zbench.plan import Ints, Plan
from zbench.simulate import layer_seconds

Floats = NDArray[np.float64]

LAYERS = 2  # played to compare plans: in one, ranks that run ahead into the next layer look idle
MOST_PLAYED = 7_000  # operations of a direction that all played candidates have together: 20 to 40 ms


def best_first(
    seconds: Floats, num_ops: Ints, build: Callable[[int], Plan], cost: Cost, near: float, most: int
) -> Iterator[Plan]:
    """Plans of candidates 0, 1, ..., the fastest predicted first.

    seconds: estimates; num_ops: about how many operations the plan's forward has. The `most` best estimates are
    played, as far as MOST_PLAYED allows and they are below `near` times the best; the others follow by their
    estimate, and are only built where a caller asks for them, because earlier ones do not fit memory.
    """
    order = [int(i) for i in np.argsort(seconds, kind="stable")]
    room = np.cumsum(num_ops[order]) <= MOST_PLAYED
    tries = [i for i, fits in zip(order, room, strict=True) if fits and seconds[i] <= near * seconds.min()][:most]
    if len(tries) > 1:
        plans = [build(i) for i in tries]
        played = [layer_seconds(plan, cost, LAYERS) for plan in plans]
        yield from (plans[i] for i in np.argsort(played, kind="stable"))
        order = order[len(tries) :]
    for i in order:
        yield build(i)
