"""Plays the steps of candidates for a run, of which seconds are compared and nothing else.

None of them is run, so none is proven: whatever is chosen, each step of the run is, before it is played.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.interfaces.abilities import PlansInWays
from zbench.interfaces.dealt import BestPlans, undealt
from zbench.interfaces.protocols import System
from zbench.plans.alike import plans_digests
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import played_rows
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import step_seconds
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.template import Step

NOTE = "way"  # of a plan: the way that was taken, and as "way_NAME_seconds" those of each way's played step


@dataclass(frozen=True, slots=True)
class ComparedSteps:
    """Steps as an executor of whole steps plays them, one of zbench.interfaces.study.Compares. Rounds and
    iterations are played as in a run, and so are plans with pipelines, which a change of pipelines may come before."""

    executor: Simulated

    def fits(self, batch: Batch, plans: tuple[Plan, ...]) -> bool:
        """Returns whether GPUs have room for a step, by its account of memory; what is not a step alone is played."""
        if not self.executor.plays_steps_alone:
            return not self.executor.step(batch, plans).out_of_memory
        step = self.executor.chosen(batch, plans).steps.built(batch, plans)
        return self._has_room(self._parts(step, plans))

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, infinite where GPUs have no room for it."""
        if not self.executor.plays_steps_alone or plans[0].pipelines is not None:
            result = self.executor.step(batch, plans)
            return inf if result.out_of_memory else result.seconds
        steps = self.executor.chosen(batch, plans).steps
        step = steps.built(batch, plans)
        parts = self._parts(step, plans)
        if not self._has_room(parts):
            return inf
        drawn = played_rows(steps, step, batch, plans)  # of all rows that routers could choose those of a draw
        return step_seconds(parts if drawn is step else self._parts(drawn, plans), self.least_seconds(batch))

    def least_seconds(self, batch: Batch) -> float:
        """Returns the seconds that no step of a batch can beat whose plans have no pipelines of their own: the ceiling,
        the bound where there is none, and of what is not a step alone 0."""
        if not self.executor.plays_steps_alone:
            return 0.0
        ceiling = self.executor.ceiling_seconds(batch, False)
        return self.executor.bound_seconds(batch) if ceiling is None else ceiling

    def _parts(self, step: Step, plans: tuple[Plan, ...]) -> StepParts:
        """Returns the templates of a batch's step."""
        return StepParts(step, plans_of_layouts(plans), self.executor.cost.gpus)

    def _has_room(self, parts: StepParts) -> bool:
        """Returns whether GPUs have room for a step."""
        memory, cluster = step_memory(parts), self.executor.cost.gpus.cluster
        self.executor.host_bytes(memory)  # refuses what nodes have no room for
        return int(memory.peak[: cluster.num_ranks].max()) <= int(cluster.device.memory_bytes)


def by_fastest_way(
    system: System, made: Callable[[Mapping[str, Any]], System], cost: Cost, strategy: StepStrategy
) -> System:
    """Returns a system that plans each batch in all ways that `system` has and takes the plans whose whole step is
    played fastest; `system` itself where it has no several ways.

    made: makes the same system with other values of some keys. cost: of the machine that it plans for; strategy: of the
    run's whole steps.
    """
    own = undealt(system)
    ways = own.ways() if isinstance(own, PlansInWays) else {}
    if len(ways) < 2:
        return system
    tried = {name: made(keys) if keys else system for name, keys in ways.items()}
    return BestPlans(system, tried, FastestPlans(cost, strategy).best)


@dataclass(frozen=True, slots=True)
class FastestPlans:
    """Compares plans of a batch by their whole steps, played. cost, strategy: as of `by_fastest_way`."""

    cost: Cost
    strategy: StepStrategy

    def best(self, batch: Batch, plans: Mapping[str, tuple[Plan, ...]]) -> tuple[Plan, ...]:
        """Returns the plans whose step is fastest, of those that have room, the first of those that are as fast.
        Nothing is played where all are the same plans. The first plan's notes say what was."""
        if len({plans_digests(found) for found in plans.values()}) == 1:
            return next(iter(plans.values()))
        executor = ComparedSteps(Simulated(self.cost, **self.strategy.arguments))
        seconds = {name: executor.compared_seconds(batch, found) for name, found in plans.items()}
        best = min(seconds, key=lambda name: seconds[name])
        told = {f"{NOTE}_{name}_seconds": one for name, one in seconds.items() if one < inf}  # without what has no room
        taken = plans[best]
        return (taken[0].with_(notes={**taken[0].notes, NOTE: best, **told}), *taken[1:])
