"""Seconds that the described devices take for the computes of a whole step, as its clock has them. No torch.

A paced device (zbench.runtime.clocks.pace) takes these, so what is measured on emulated nodes and what is simulated
have the same device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.template import Step

Seconds = tuple[Floats, ...]  # of every template's operations, float64 [operations]; 0 of what is no compute


@dataclass(frozen=True)
class DeviceSeconds:
    """The seconds of computes on described devices. cost: of GPUs; None: devices are not paced."""

    cost: Cost | None = None

    def of(self, step: Step, plans: Sequence[Plan] = ()) -> Seconds:
        """Returns the seconds of a step's operations by template; () where devices are not paced. plans: of its
        micro-batches, where it has attention."""
        if self.cost is None:
            return ()
        layouts = plans_of_layouts(plans) if plans else []
        return tuple(
            compute_seconds(
                Sizes(step.layouts[one.layout], (one,)),
                layouts[one.layout] if one.layout < len(layouts) else None,
                self.cost,
                step.num_hosts,
            )
            for one in step.templates
        )
