"""What Zeppelin's search compares its plans by. Pure: no torch."""

from dataclasses import dataclass

from zbench.collective import Collectives
from zbench.cost import Cost
from zbench.plan import Plan
from zbench.simulate import Programs, pass_seconds, programs
from zbench.totals import Carried

LAYERS = 3  # played to compare plans: in one, ranks that run ahead into the next layer look idle


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan, its programs, and the predicted seconds of a layer with its share of what parameters and gradients add.

    Their traffic takes the NICs as well: a plan that keeps NICs busy may have faster layers and a longer step.
    """

    plan: Plan
    parts: Programs
    seconds: float

    @staticmethod
    def of(plan: Plan, cost: Cost, parts: Programs | None = None) -> "Timed":
        """parts: the plan's programs, where they are at hand."""
        parts = parts or programs(plan, cost)
        forward, backward = pass_seconds(plan, cost, LAYERS, parts)
        return Timed(plan, parts, forward + backward + _shown(parts, forward, backward, cost))


def _shown(parts: Programs, forward: float, backward: float, cost: Cost) -> float:
    """Seconds a layer of gathers and reductions that layers do not hide, as zbench.simulate charges them."""
    again = 1 if cost.model.recompute == "full" else 0
    ahead, back = (Carried.of(part, cost) for part in parts)
    of, layers = Collectives.of(cost), cost.layers
    shown = of.forward(layers * forward, ahead.busiest(cost)) if of.every_step else 0.0
    nic = ahead.times(again).plus(back).busiest(cost)
    return (shown + of.backward(layers * (again * forward + backward), nic)) / layers
