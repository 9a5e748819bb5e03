"""Numbers of layers that a run leaves open, chosen with its system: the best few by the closed form are planned for and
played. An edge."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.interfaces.abilities import Chooses
from zbench.run.checks.contract import plans_of
from zbench.run.system import make_system
from zbench.run.target import Make
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulated.host_layers import LayerChoice, LayerCounts, quickest


def chosen_layers(
    config: Mapping[str, Any],
    batch: Batch,
    candidates: Sequence[LayerCounts],
    planners: Callable[[LayerCounts], Cost],
    make: Make,
    strategy: StepStrategy,
) -> LayerChoice:
    """Returns the candidate with which the run's system plans the quickest step of a batch, played on the machine that
    planners are told of; the first one where a system chooses its configuration before a run, and so plans nothing yet.

    candidates: at least one, the closed form's first. planners: the cost model that planners see with one of them;
    make, strategy: of the run.
    """
    first = candidates[0]
    if len(candidates) == 1 or isinstance(make_system(config, planners(first), make), Chooses):
        return LayerChoice(first, first)
    return quickest(candidates, partial(_seconds, config, batch, planners, make, strategy))


def _seconds(
    config: Mapping[str, Any],
    batch: Batch,
    planners: Callable[[LayerCounts], Cost],
    make: Make,
    strategy: StepStrategy,
    counts: LayerCounts,
) -> float:
    """Returns the seconds of the step that a run's system plans with some numbers, infinite where it does not fit."""
    cost = planners(counts)
    try:
        system = make_system(config, cost, make)
        executor = ComparedSteps(Simulated(cost, **strategy.arguments))
        return executor.compared_seconds(batch, plans_of(system, batch, cost))
    except ValueError:  # no room on hosts, or for a token on GPUs; the run says so where nothing else fits
        return inf
