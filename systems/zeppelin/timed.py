"""A plan with the predicted seconds by which Zeppelin's search compares it."""

from dataclasses import dataclass

from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.simulator.simulate import Programs, pass_seconds, programs
from zbench.systems.common.layer_seconds import with_collectives

LAYERS = 3  # played to compare plans: in one, ranks that run ahead into the next layer look idle


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan, its programs, and the predicted seconds of a layer (zbench.systems.common.layer_seconds)."""

    plan: Plan
    parts: Programs
    seconds: float

    @staticmethod
    def of(plan: Plan, cost: Cost, parts: Programs | None = None) -> "Timed":
        """Predicts the seconds of a plan. parts: the plan's programs, where they are at hand."""
        parts = parts or programs(plan, cost)
        forward, backward = pass_seconds(plan, cost, LAYERS, parts)
        return Timed(plan, parts, with_collectives(parts, forward, backward, cost))
