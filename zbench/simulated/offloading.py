"""The layers whose inputs or activations wait in host memory, where a run leaves them open: as few first ones of every
stage as each micro-batch fits with, of plans that are priced with what waits there. Or the tokens, of these layers.

Of tokens each sequence has a share, the same part of what is hidden behind its own layers (zbench.cost.hidden), which
are most of a long sequence's tokens and few of a short one's. Where all that is hidden is not enough, the same part of
what is left goes beside it. ByteScale's offload ratio (Ge et al. 2025, arXiv 2502.21231, section 4) is all that is
hidden of each sequence; here it is as small a part as fits, as a copy takes memory and links that others use.

Whether one fits is what planners reckon (zbench.cost.memory.fewest), which is never less than a step's live ranges. A
copy to a host is beside what is computed, but takes memory and the GPU's link there, and gains nothing where there is
room. Where a micro-batch does not fit whatever is on hosts, all of them are that can be.

A planner has room for larger micro-batches the more waits on hosts, and waits longer for copies. And what it adds up of
sequences is right where a GPU waits for its copies all the time, or never: it computes some while others are copied. So
a batch is planned with what layers wait for and without; where the number of layers, or the share of tokens, is open,
as if none, half or all of them could go; and the plans of least estimated seconds are taken, which have each GPU's
copies beside what it computes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from zbench.cost.cost import Cost
from zbench.cost.memory.fewest import fewest_of_pipelines, fewest_of_plan, least_shares
from zbench.cost.ranks_of_gpus import with_ranks_of
from zbench.describe.batch import Batch
from zbench.describe.checks import FEWEST
from zbench.interfaces.abilities import PlansHosts
from zbench.interfaces.dealt import BestPlans, undealt
from zbench.interfaces.protocols import System
from zbench.plans.plan import Plan
from zbench.simulator.estimate.step import StepEstimate
from zbench.step.passes.own_plans import own_plans

NOTE = "planned_on_hosts"  # of a step's first plan: for what its plans were made, and the estimates of all
KNOWN = 0.01  # of an estimate: plans that were shorter by less took longer as often as not (docs/memory/activations.md)
_ROUNDING = 1e-9  # relative, of estimates that are sums of the same seconds in another order
UNPRICED, PRICED = "computed", "copied"  # planned with as many layers as can go, without and with what they wait for


def chosen_offload(plans: Sequence[Plan], cost: Cost, tensor_parallel: int, stages: int) -> tuple[int, ...]:
    """Returns the fewest layers of every micro-batch, each as if all that are under way with it were like it; of plans
    with pipelines of their own, where they differ, as few for all. cost: of GPUs; tensor_parallel: of these that are a
    plan's rank; stages: of a pipeline."""
    of_ranks = with_ranks_of(cost, tensor_parallel, stages)
    if plans[0].pipelines is not None:
        return (fewest_of_pipelines(tuple(plans), of_ranks),) * len(own_plans(plans))
    return tuple(fewest_of_plan(plan, of_ranks) for plan in plans)


def planned_on_hosts(made: Callable[[Cost], System], cost: Cost) -> System:
    """Returns the system of a cost model, whose plans are the best of several where something of layers waits on hosts,
    unless it chooses for itself (zbench.interfaces.abilities.PlansHosts). made: makes it of a cost model."""
    system, model = made(cost), cost.model
    own = undealt(system)
    if not model.layers_on_hosts or (isinstance(own, PlansHosts) and own.plans_hosts):
        return system
    tried = dict[str, System]()
    if model.offload_layers == FEWEST:
        half = max(model.with_stages(cost.pp).layers_of_stages) // 2
        tried = {f"{count}_layers": made(_with_layers(cost, count)) for count in sorted({0, half})}
    elif model.offload_tokens == FEWEST:
        tried = {"no_tokens": made(_with_layers(cost, 0)), "half_of_tokens": made(_with_half(cost))}
    tried |= {UNPRICED: made(cost.not_waiting), PRICED: system}
    return BestPlans(system, tried, HostPrices(cost).best)


def _with_layers(cost: Cost, count: int) -> Cost:
    """Returns the cost model of so many layers on hosts at most."""
    return _changed(cost, lambda one: replace(one, model=one.model.offloading(count)))


def _with_half(cost: Cost) -> Cost:
    """Returns the cost model of half of the tokens on hosts."""
    return _changed(cost, lambda one: replace(one, model=replace(one.model, offload_tokens=0.5)))


def _changed(cost: Cost, change: Callable[[Cost], Cost]) -> Cost:
    """Returns a cost model with a change, of GPUs and of groups."""
    single = None if cost.single is None else _changed(cost.single, change)
    return replace(change(cost), single=single)


@dataclass(frozen=True, slots=True)
class HostPrices:
    """Compares plans of a batch by what they take with what waits on hosts. cost: of the run."""

    cost: Cost

    def best(self, batch: Batch, plans: Mapping[str, tuple[Plan, ...]]) -> tuple[Plan, ...]:
        """Returns the plans of least estimated seconds, of those that fit where any do, and of those that take as long
        the ones in the fewest micro-batches; those that are planned without waiting before others that are not shorter
        by more than an estimate knows; where none fit, the last ones. The first plan has notes of all."""
        seconds = {name: self.price(batch, found) for name, found in plans.items()}
        known = {name: one * (1 - KNOWN * (name == UNPRICED)) for name, one in seconds.items()}
        least = min(known.values())
        as_fast = [name for name in plans if known[name] <= least * (1 + _ROUNDING)]
        best = min(as_fast, key=lambda name: len(plans[name])) if least < inf else list(plans)[-1]
        told = {f"{NOTE}_{name}_seconds": one for name, one in seconds.items() if one < inf}
        first, *rest = plans[best]
        return (first.with_(notes={**first.notes, NOTE: best, **told}), *rest)

    def price(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the estimated seconds of plans with as few layers on hosts as they fit with, infinite where they do
        not."""
        cost = self.cost.routed_by(self.cost.experts, (batch.seed, batch.step))
        if plans[0].pipelines is not None and cost.model.offload_layers == FEWEST:
            cost = _with_layers(cost, fewest_of_pipelines(plans, cost))
        return StepEstimate(cost).compared_seconds(batch, plans)


def chosen_shares(
    plans: Sequence[Plan], cost: Cost, tensor_parallel: int, stages: int
) -> tuple[tuple[float, ...], ...]:
    """Returns of every micro-batch and each of its sequences the share of tokens of which something waits in host
    memory: the least with which it fits, each as if all that are under way with it were like it. cost,
    tensor_parallel, stages: as of chosen_offload."""
    of_ranks = with_ranks_of(cost, tensor_parallel, stages)
    return tuple(tuple(least_shares(plan, of_ranks).tolist()) for plan in plans)
