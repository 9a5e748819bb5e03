"""The system of a run, made from its configuration for a cost model. An edge."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench.cost.collective import once_a_step
from zbench.cost.cost import Cost
from zbench.cost.job import worker_cost, worker_gpus
from zbench.cost.memory.routed import draws_rows
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.sync import EVERY, RoundSync
from zbench.interfaces.abilities import Chooses, PlansStages
from zbench.interfaces.dealt import Dealt, MadeForDraws, WorkerPlans
from zbench.interfaces.protocols import System
from zbench.run.target import Make, expect, from_yaml, make_part, make_strategy
from zbench.simulated.compared import by_fastest_way
from zbench.simulated.expert_homes import in_expert_homes
from zbench.simulated.offloading import planned_on_hosts


def make_system(config: Mapping[str, Any], cost: Cost, make: Make = from_yaml) -> System:
    """Makes the system; make: as of Parts.of. One that chooses before a run plans after that, with homes of tokens as
    the strategy has them (zbench.run.chosen). For workers that train apart it plans for each by itself.

    Raises:
        ValueError: it chooses before a run whose workers train apart, or cannot plan.
    """
    sync: RoundSync = make_part(make, config, "sync") if "sync" in config else EVERY  # the library's has a system alone
    own = worker_cost(cost, sync) if sync.in_rounds else cost
    system: System = make_part(make, config, "system", cost=own)
    if isinstance(system, Chooses):
        if sync.in_rounds:
            raise ValueError(
                f"system is {type(system).__name__}, which chooses by steps in which all come together; with "
                f"sync={sync.method} it takes one that does not choose before a run, as ring, mesh, zeppelin or "
                "nodewise"
            )
        return system
    expect("system", system, "planner" if callable(getattr(system, "choose", None)) else "plan")
    planned = _planned(config, own, make, system)
    if sync.in_rounds:
        return WorkerPlans(planned, cost.gpus.cluster.num_ranks // worker_gpus(cost, sync))
    strategy = step_strategy(config, make)
    if "experts" in config:  # a system alone knows no steps to be played

        def otherwise(keys: Mapping[str, Any]) -> System:
            changed = with_system_keys(config, keys)
            return _planned(changed, cost, make, make_part(make, changed, "system", cost=cost))

        planned = by_fastest_way(planned, otherwise, cost, strategy)
    return in_expert_homes(planned, cost, strategy)


def _planned(config: Mapping[str, Any], cost: Cost, make: Make, system: System) -> System:
    """Returns a system that was made for a cost model as it plans: priced with hosts' links, anew for draws of rows,
    and in parts where there are stages."""
    in_parts = cost.pp > 1 and not (isinstance(system, PlansStages) and system.plans_stages)

    def made(of: Cost) -> System:
        own = system if of is cost else make_part(make, config, "system", cost=of)
        return for_draws(own, of, lambda one: make_part(make, config, "system", cost=one))

    planned = planned_on_hosts(made, cost)
    if in_parts:
        of_part = partial(_of_part, made, cost)
        planned = Dealt(planned, cost.model.micro_batches, of_part if once_a_step(cost) else None)
    return planned


def with_system_keys(config: Mapping[str, Any], keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a configuration with other values of its system's keys."""
    if not isinstance(config, DictConfig):
        return {**config, "system": {**config["system"], **keys}}
    changed = config.copy()
    OmegaConf.update(changed, "system", dict(keys))
    return changed


def _of_part(made: Callable[[Cost], System], cost: Cost, first: bool, last: bool) -> System:
    """Returns the system for a part of a step's micro-batches, which knows whether it is the first or the last."""
    return planned_on_hosts(made, cost.of_part(first, last))


def for_draws(system: System, cost: Cost, made: Callable[[Cost], System]) -> System:
    """Returns a system that knows for every batch how many rows the GPU of its most popular experts is sent; itself
    where this is the same in all. cost: that it was made for; made: makes it for another one."""
    if not draws_rows(cost):
        return system
    return MadeForDraws(system, lambda seed, step: made(cost.routed_by(cost.experts, (seed, step))))


def step_strategy(config: Mapping[str, Any], make: Make) -> StepStrategy:
    """Returns the strategy of whole steps of a run; the usual one of a system alone, as the library's."""
    return StepStrategy.of(make_strategy(config, make)) if "experts" in config else USUAL_STRATEGY
