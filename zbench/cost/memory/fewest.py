"""Counts the first layers of a stage, or finds the share of tokens, that have to have something on hosts for plans to
fit, by planners' memory."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.hidden import hidden_shares
from zbench.cost.memory.peak import peak_bytes, step_bytes
from zbench.describe.arrays import Floats
from zbench.describe.checks import FEWEST
from zbench.plans.plan import Plan

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


def fewest_of_plan(plan: Plan, cost: Cost) -> int:
    """Returns `fewest_offloaded` of a micro-batch as if all that are under way with it were like it."""
    room, longest = cost.cluster.device.memory_bytes, max(cost.model.with_stages(cost.pp).layers_of_stages)
    return fewest_offloaded(lambda one: bool(step_bytes(plan, one).max() <= room), cost, longest)


def fewest_of_pipelines(plans: tuple[Plan, ...], cost: Cost) -> int:
    """Returns `fewest_offloaded` of plans with pipelines of their own, where micro-batches differ: as few for all."""
    pipelines, room = plans[0].pipelines, cost.cluster.device.memory_bytes
    assert pipelines is not None, "plans without pipelines have numbers of their own"
    longest = cost.model.num_layers // int(pipelines.pp.min())
    return fewest_offloaded(lambda one: bool(peak_bytes(plans, one).max() <= room), cost, longest)


def least_shares(plan: Plan, cost: Cost) -> Floats:
    """Returns of each sequence of a micro-batch the share of its tokens of which something is on hosts, float64
    [sequences]: the least with which it fits, as if all that are under way with it were like it; first the same part of
    what is hidden of each (zbench.cost.hidden), then, beside that, of what is not."""
    room, hidden = cost.cluster.device.memory_bytes, np.minimum(hidden_shares(plan.lengths, cost), 1.0)

    def shares(count: int) -> Floats:
        return np.asarray(hidden * min(count, PARTS) / PARTS + (1 - hidden) * max(count - PARTS, 0) / PARTS, np.float64)

    def fits(count: int) -> bool:
        return bool(step_bytes(plan, cost, shares(count)).max() <= room)

    most = PARTS if (hidden == 1).all() else 2 * PARTS
    return shares(0 if fits(0) else 1 + bisect_left(range(1, most), True, key=fits))


def with_fewest(plan: Plan, cost: Cost) -> Cost:
    """Returns the cost model of a micro-batch: with as few layers on hosts as it fits with, where their number is open
    and copies are waited for; else as it is."""
    if not (cost.waits_for_hosts and cost.model.layers_on_hosts and cost.model.offload_layers == FEWEST):
        return cost
    return replace(cost, model=cost.model.offloading(fewest_of_plan(plan, cost)))
