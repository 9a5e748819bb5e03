"""Candidates by their estimates, the best few of them built and played on the cluster's clock."""

from collections.abc import Callable, Iterator

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.plans.plan import Ints, Plan
from zbench.simulator.estimate.step import layer_seconds

LAYERS = 2  # played to compare plans: in one, ranks that run ahead into the next layer look idle
OVER = (
    1.5  # times the best played: estimates were at most 1.49 times what was played (415 plans of FCP on five clusters)
)
MOST_PLAYED = 7_000  # operations of a direction that all played candidates have together: 20 to 40 ms


def best_first(
    seconds: Floats, num_ops: Ints, build: Callable[[int], Plan], cost: Cost, near: float, most: int
) -> Iterator[Plan]:
    """Plans of candidates 0, 1, ..., the fastest predicted first.

    seconds: estimates; num_ops: about how many operations the plan's forward has. The `most` best estimates are
    played, as far as MOST_PLAYED allows and they are below `near` times the best and OVER times the best played; the
    others follow by their estimate, and are only built where a caller asks for them, because earlier ones do not
    fit memory.
    """
    order = [int(i) for i in np.argsort(seconds, kind="stable")]
    room = np.cumsum(num_ops[order]) <= MOST_PLAYED
    tries = [i for i, fits in zip(order, room, strict=True) if fits and seconds[i] <= near * seconds.min()][:most]
    plans: list[Plan] = []
    played: list[float] = []
    for i in tries if len(tries) > 1 else []:
        if played and seconds[i] > OVER * min(played):
            break
        plans.append(build(i))
        played.append(layer_seconds(plans[-1], cost, LAYERS))
    yield from (plans[i] for i in np.argsort(played, kind="stable"))
    for i in order[len(plans) :]:
        yield build(i)
