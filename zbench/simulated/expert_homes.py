"""Homes of tokens of a model with experts: as a system has planned them, where queries are attended, or even.

A system plans attention, and balances what is computed at home as if all of a layer were. With experts on other GPUs
that is little of it, while what a GPU sends to experts is as uneven as its tokens. Which homes are best is told by a
price (zbench.simulated.home_prices), or by playing a batch's whole step with those of the lowest prices, on the
described cluster (docs/dispatch.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import ATTENTION, CHOSEN_HOMES, EVEN_IN_NODE, HOMES, PLANNED, PRICED
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.interfaces.dealt import ChangedPlans
from zbench.interfaces.protocols import System
from zbench.passes.homes import with_attention_homes, with_even_homes
from zbench.plans.plan import Plan
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulated.home_prices import HomePrices

NOTE = "homes"  # of a plan: which homes were chosen, and as "homes_even_seconds" those of a played step with these
PLAYED = 2  # those as planned and the cheapest others: the best, or 0.9 % off, in all of 41 batches (docs/dispatch.md)
KNOWN = 0.005  # of a price: homes that were cheaper by less were slower as often as faster in these batches


def in_expert_homes(system: System, cost: Cost, strategy: StepStrategy) -> System:
    """Returns a system whose plans have homes as a strategy wants them, itself where these are as planned. cost: of the
    machine that the system plans for."""
    if strategy.experts.homes == PLANNED:
        return system
    return ChangedPlans(system, ExpertHomes(cost, strategy).changed)


@dataclass(frozen=True, slots=True)
class ExpertHomes:
    """Changes homes of plans. cost, strategy: as of `in_expert_homes`."""

    cost: Cost
    strategy: StepStrategy

    def changed(self, batch: Batch, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        """Returns a batch's plans with other homes; where they are chosen, the first plan's notes say what was.

        Raises:
            ValueError: a package computes attention of these plans.
        """
        homes = self.strategy.experts.homes
        if plans[0].attention:
            raise ValueError(
                f"experts.homes is {homes}; {plans[0].attention} computes attention of this system's plans, with homes "
                f"of its own, so it takes {PLANNED}"
            )
        if homes not in CHOSEN_HOMES:
            return self.with_homes(homes, plans)
        tried = {name: self.with_homes(name, plans) for name in HOMES if name not in CHOSEN_HOMES}
        tried = {
            name: found
            for name, found in tried.items()
            if name == PLANNED or any(one is not own for one, own in zip(found, plans, strict=True))
        }
        ranked = self._ranked(batch, tried)
        if homes == PRICED:
            best, seconds = ranked[0], dict[str, float]()
        else:
            order = dict.fromkeys([PLANNED, *ranked])
            seconds = self._played(batch, {name: tried[name] for name in order})
            best = min(seconds, key=lambda name: seconds[name])  # the first of those that are as fast
        told = {f"{NOTE}_{name}_seconds": one for name, one in seconds.items() if one < inf}  # without what has no room
        first = tried[best][0]
        return (replace(first, notes={**first.notes, NOTE: best, **told}), *tried[best][1:])

    def _ranked(self, batch: Batch, tried: Mapping[str, tuple[Plan, ...]]) -> list[str]:
        """Returns homes by their prices; those as planned before others that are not cheaper by more than a price
        knows."""
        if len(tried) == 1:
            return list(tried)
        pricing = HomePrices(self.cost, self.strategy)
        prices = {name: pricing.seconds(batch, found) for name, found in tried.items()}
        prices[PLANNED] *= 1 - KNOWN
        return sorted(tried, key=lambda name: prices[name])

    def _played(self, batch: Batch, tried: Mapping[str, tuple[Plan, ...]]) -> dict[str, float]:
        """Returns the seconds of steps with the first homes of `tried`, until enough of them have room."""
        executor, seconds = ComparedSteps(Simulated(self.cost, **self.strategy.arguments)), dict[str, float]()
        for name, found in tried.items():
            seconds[name] = executor.compared_seconds(batch, found)
            if sum(one < inf for one in seconds.values()) == PLAYED:
                break
        return seconds

    def with_homes(self, homes: str, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        """Returns plans with homes of one kind."""
        if homes == ATTENTION:
            return tuple(with_attention_homes(one) for one in plans)
        if homes == PLANNED:
            return plans
        return tuple(with_even_homes(one, self.cost, across=homes != EVEN_IN_NODE) for one in plans)


@dataclass(frozen=True, slots=True)
class InOtherHomes:
    """Steps of candidates for a run whose plans have other homes than planned, one of
    zbench.interfaces.study.Compares."""

    executor: ComparedSteps
    homes: ExpertHomes

    def fits(self, batch: Batch, plans: tuple[Plan, ...]) -> bool:
        """Returns whether GPUs have room for a step."""
        return self.executor.fits(batch, self.homes.changed(batch, plans))

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        """Returns the seconds of a step, infinite where GPUs have no room for it."""
        return self.executor.compared_seconds(batch, self.homes.changed(batch, plans))

    def least_seconds(self, batch: Batch) -> float:
        """Returns the seconds that no step of a batch can beat, whatever homes its plans have."""
        return self.executor.least_seconds(batch)
