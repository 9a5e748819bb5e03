"""A layer's seconds, with its share of what parameters and gradients add to a step: what planners compare plans by.

Their traffic takes the NICs as well, so a plan that keeps NICs busy may have faster layers and a longer step.
"""

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.simulator.simulate import Programs
from zbench.simulator.totals import Carried


def with_collectives(parts: Programs, forward: float, backward: float, cost: Cost) -> float:
    """Returns the seconds of a layer that takes `forward` and `backward`, together with its share of gathers and
    reductions that layers do not hide, as zbench.simulator.simulate charges them where a step is one micro-batch.
    parts: the plan's programs."""
    again = 1 if cost.model.recompute == "full" else 0
    ahead, back = (Carried.of(part, cost) for part in parts)
    of, layers = Collectives.of(cost), cost.layers
    shown = of.forward(layers * forward, ahead.busiest(cost)) if of.every_step else 0.0
    nic = ahead.times(again).plus(back).busiest(cost)
    shown += of.backward(layers * (again * forward + backward), nic)
    return forward + backward + shown / layers
