"""The layers whose inputs or activations wait in host memory, where a run leaves them open: as few first ones as each
micro-batch fits with.

Whether one fits is what planners reckon (zbench.cost.memory.peak), which is never less than a step's live ranges. A
copy to a host is beside what is computed, but takes memory and the GPU's link there, and gains nothing where there is
room. Where a micro-batch does not fit whatever is on hosts, all of them are that can be.
"""

from collections.abc import Sequence
from dataclasses import replace

from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.cost.memory.peak import peak_bytes
from zbench.plans.plan import Plan


def fewest_offloaded(plan: Plan, cost: Cost) -> int:
    """Returns the fewest layers that have to have something on hosts for a micro-batch to fit, 0 if it fits as it is,
    the most if it fits with none. cost: of the plan's ranks."""
    room = cost.cluster.device.memory_bytes

    def fits(layers: int) -> bool:
        return bool(peak_bytes((plan,), replace(cost, model=cost.model.offloading(layers))).max() <= room)

    if fits(0):
        return 0
    low, high = 0, cost.model.most_offloaded  # with `low` it does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def chosen_offload(plans: Sequence[Plan], cost: Cost, tensor_parallel: int) -> tuple[int, ...]:
    """Returns `fewest_offloaded` of every plan. cost: of GPUs; tensor_parallel: of these that are a plan's rank."""
    of_ranks = grouped(cost, tensor_parallel)
    return tuple(fewest_offloaded(plan, of_ranks) for plan in plans)
