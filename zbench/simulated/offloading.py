"""The layers whose inputs or activations wait in host memory, where a run leaves them open: as few first ones of every
stage as each micro-batch fits with. Or the tokens, of these layers.

Of tokens each sequence has a share, the same part of what is hidden behind its own layers (zbench.cost.hidden), which
are most of a long sequence's tokens and few of a short one's. Where all that is hidden is not enough, the same part of
what is left goes beside it. ByteScale's offload ratio (Ge et al. 2025, arXiv 2502.21231, section 4) is all that is
hidden of each sequence; here it is as small a part as fits, as a copy takes memory and links that others use.

Whether one fits is what planners reckon (zbench.cost.memory.peak), which is never less than a step's live ranges. A
copy to a host is beside what is computed, but takes memory and the GPU's link there, and gains nothing where there is
room. Where a micro-batch does not fit whatever is on hosts, all of them are that can be.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.cost.hidden import hidden_shares
from zbench.cost.memory.peak import peak_bytes, step_bytes
from zbench.cost.stacks import stacked
from zbench.describe.arrays import Floats, Ints
from zbench.plans.plan import Plan
from zbench.step.passes.own_plans import own_plans

PARTS = 64  # of what is hidden, and of what is not, of which as few are chosen as fit


def fewest_offloaded(fits: Callable[[Cost], bool], cost: Cost, layers: int) -> int:
    """Returns the fewest first layers of every stage that have to have something on hosts for plans to fit, 0 if they
    fit as they are, the most if they fit with none. fits: whether they do by a cost model; cost: of the plans' ranks;
    layers: of the longest stage."""

    def fits_with(count: int) -> bool:
        return fits(replace(cost, model=cost.model.offloading(count)))

    if fits_with(0):
        return 0
    low, high = 0, cost.model.most_offloaded(layers)  # with `low` they do not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_with(middle) else (middle, high)
    return high


def chosen_offload(plans: Sequence[Plan], cost: Cost, tensor_parallel: int, stages: int) -> tuple[int, ...]:
    """Returns `fewest_offloaded` of every micro-batch, each as if all that are under way with it were like it; of plans
    with pipelines of their own, where they differ, as few for all. cost: of GPUs; tensor_parallel: of these that are a
    plan's rank; stages: of a pipeline."""
    of_ranks = stacked(grouped(cost, tensor_parallel), stages)
    room = of_ranks.cluster.device.memory_bytes

    def fewest(peak: Callable[[Cost], Ints], longest: int) -> int:
        return fewest_offloaded(lambda one: bool(peak(one).max() <= room), of_ranks, longest)

    if plans[0].pipelines is not None:
        longest = of_ranks.model.num_layers // int(plans[0].pipelines.pp.min())
        return (fewest(partial(peak_bytes, tuple(plans)), longest),) * len(own_plans(plans))
    longest = max(of_ranks.model.with_stages(stages).layers_of_stages)
    return tuple(fewest(partial(step_bytes, plan), longest) for plan in plans)


def chosen_shares(
    plans: Sequence[Plan], cost: Cost, tensor_parallel: int, stages: int
) -> tuple[tuple[float, ...], ...]:
    """Returns of every micro-batch and each of its sequences the share of tokens of which something waits in host
    memory: the least with which it fits, each as if all that are under way with it were like it. cost,
    tensor_parallel, stages: as of chosen_offload."""
    of_ranks = stacked(grouped(cost, tensor_parallel), stages)
    room = of_ranks.cluster.device.memory_bytes

    def least(plan: Plan) -> tuple[float, ...]:
        hidden = np.minimum(hidden_shares(plan.lengths, of_ranks), 1.0)

        def shares(count: int) -> Floats:
            return np.asarray(
                hidden * min(count, PARTS) / PARTS + (1 - hidden) * max(count - PARTS, 0) / PARTS, np.float64
            )

        def fits(count: int) -> bool:
            return bool(step_bytes(plan, of_ranks, shares(count)).max() <= room)

        most = PARTS if (hidden == 1).all() else 2 * PARTS
        count = 0 if fits(0) else 1 + bisect_left(range(1, most), True, key=fits)
        return tuple(shares(count).tolist())

    return tuple(map(least, plans))
