"""A plan with the predicted seconds by which Zeppelin's search compares it."""

from dataclasses import dataclass

from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.simulator.attention import Programs, programs
from zbench.simulator.estimate.beside import seconds_beside

LAYERS = 2  # played to compare plans: in one, ranks that run ahead into the next layer look idle


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan, its programs, and the predicted seconds of a layer (zbench.simulator.estimate.beside)."""

    plan: Plan
    parts: Programs
    seconds: float

    @staticmethod
    def of(plan: Plan, cost: Cost, parts: Programs | None = None) -> "Timed":
        """Predicts the seconds of a plan. parts: the plan's programs, where they are at hand."""
        parts = parts or programs(plan, cost)
        return Timed(plan, parts, seconds_beside(plan, parts, cost, LAYERS))
