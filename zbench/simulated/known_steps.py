"""Steps that were built and proven before, so that the same plans on a machine of other speeds are timed alone.

What a step is, its proof, what its operations wait for and the bytes that they hold do not depend on how fast links and
GPUs are: worlds of one machine, and systems that come to the same plans, have these in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.alike import plans_digests
from zbench.plans.plan import Plan
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.template import Step

_Of = tuple[str, int, int]  # a batch
_Key = tuple[_Of, tuple[bytes, ...], int]
_FORWARDS: _Of = ("", 0, 0)  # which are the same of every batch


@dataclass(slots=True)
class KnownSteps:
    """The first steps that runs had. most: how many are kept, as each takes a few MB."""

    most: int = 0
    _kept: dict[_Key, list[tuple[ProvenSteps, StepParts]]] = field(default_factory=dict, init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)

    def step(self, steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost) -> StepParts:
        """Returns the training step of a batch's plans, proven, as it is on the machine of `cost`."""
        of = batch.digest, batch.seed, batch.step
        return self._parts(of, steps, plans, cost, lambda: steps.of(batch, plans))

    def forwards(self, steps: ProvenSteps, plans: Sequence[Plan], cost: Cost) -> StepParts:
        """Returns the forwards of a batch's plans by themselves, as `step`."""
        return self._parts(_FORWARDS, steps, plans, cost, lambda: steps.forwards(plans))

    def _parts(
        self, of: _Of, steps: ProvenSteps, plans: Sequence[Plan], cost: Cost, build: Callable[[], Step]
    ) -> StepParts:
        if self.most == 0:
            return StepParts(build(), plans_of_layouts(plans), cost)
        key = of, plans_digests(plans), cost.cluster.gpus_per_node
        own = steps if steps.model.uses_hosts else replace(steps, cluster=None)  # which it is checked against
        for other, parts in self._kept.get(key, ()):
            if other == own:
                return parts.on(cost)
        made = StepParts(build(), plans_of_layouts(plans), cost)
        if self._count == self.most:
            return made
        self._kept.setdefault(key, []).append((own, made))
        self._count += 1
        return made.on(cost)  # what is made of it to be played is not kept
