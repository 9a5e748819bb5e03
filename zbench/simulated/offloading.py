"""The layers whose inputs or activations wait in host memory, where a run leaves them open: as few first ones of every
stage as each micro-batch fits with.

Whether one fits is what planners reckon (zbench.cost.memory.peak), which is never less than a step's live ranges. A
copy to a host is beside what is computed, but takes memory and the GPU's link there, and gains nothing where there is
room. Where a micro-batch does not fit whatever is on hosts, all of them are that can be.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.cost.memory.peak import peak_bytes, step_bytes
from zbench.cost.stacks import stacked
from zbench.describe.arrays import Ints
from zbench.plans.plan import Plan
from zbench.step.passes.own_plans import own_plans


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
