"""Plays the steps of candidates for a run, of which seconds are compared and nothing else.

None of them is run, so none is proven: whatever is chosen, each step of the run is, before it is played.
"""

from dataclasses import dataclass
from math import inf

from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import played_rows
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import step_seconds
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.template import Step


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
