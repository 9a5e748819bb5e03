"""Makes what is chosen before a run, once, and keeps the choice for the next run. An edge.

Systems may choose their configuration (`choose`), or have limits that are tried (`limits`); groups of the strategy may
be free (the run's `free_groups`), so that every system has its best of them. A choice depends on cluster, model,
strategy, workload, batch size, the system's keys and the sources, not on the run's seed; it is kept by all of them in
the user's cache folder. A record has it, and is replayed with it.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import PLANNED
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.interfaces.abilities import Chooses, HasLimits
from zbench.interfaces.dealt import undealt
from zbench.interfaces.protocols import System
from zbench.interfaces.study import PLAYED_WHOLE, Choice, Clock, Study
from zbench.plans.plan import Plan
from zbench.record.fingerprint import own_digest
from zbench.run.checks.attention_runs import AttentionRun
from zbench.run.checks.contract import batch_of, gives, plans_of
from zbench.run.fastest import Keys, fastest
from zbench.run.parts import Parts
from zbench.run.system import for_draws, make_system, step_strategy, with_system_keys
from zbench.run.target import Make, from_yaml, make_part
from zbench.runtime.attention_executor import TorchAttention
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulated.expert_homes import ExpertHomes, InOtherHomes, in_expert_homes
from zbench.simulated.iterations import SimulatedIterations
from zbench.systems.mesh import Mesh

SEED = 7_777_777  # of the batches that are looked at; a run of this seed has those of the next one looked at
CONFIGURED = (
    "cluster",
    "model",
    *STRATEGY_GROUPS,
    "world",
    "planners_see",
    "mask",
    "workload",
    "system",
    "tokens_per_gpu",
    "free_groups",
)


@dataclass(frozen=True, slots=True)
class Settled:
    """A system that plans, the parts that it runs with, and what it chose where it did."""

    system: System
    parts: Parts
    choice: Choice | None = None


def settled(
    config: Mapping[str, Any],
    parts: Parts,
    make: Make = from_yaml,
    recorded: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Settled:
    """Returns the system of `config`, after what is chosen before a run has been (zbench.interfaces.protocols,
    zbench.run.fastest). It plans for all models of a job with rollouts.

    recorded: the choice that a record has, in place of a new one; empty where it has none.

    Raises:
        ValueError: the system cannot be made, nothing that it could choose fits, or `recorded` is no choice.
    """
    found = _settled(config, parts, make, recorded, tell)
    return replace(found, parts=planning_all(found.system, found.parts))


def planning_all(system: System, parts: Parts) -> Parts:
    """Returns the parts of a run in which a system plans for all models of a job with rollouts; others as they are."""
    if not isinstance(parts.executor, SimulatedIterations):
        return parts
    return replace(parts, executor=replace(parts.executor, planner=partial(_planned_for, system)))


def _planned_for(system: System, batch: Batch, cost: Cost) -> tuple[Plan, ...]:
    """Returns the plans that the run's system, with the keys that it has, makes for another cost model.

    Raises:
        ValueError: the system cannot be made for another one.
    """
    own: Any = undealt(system)
    if not is_dataclass(own) or "cost" not in {one.name for one in fields(own)}:
        raise ValueError(
            f"system is {type(own).__name__}, which is no dataclass with a field `cost`; a job whose models are of "
            "several sizes, or on several numbers of nodes, takes one that is"
        )
    planner: Any = replace(own, cost=cost)  # type: ignore[type-var]
    return plans_of(planner, batch, cost)


def _settled(
    config: Mapping[str, Any],
    parts: Parts,
    make: Make,
    recorded: Mapping[str, Any] | None,
    tell: Callable[[str], None],
) -> Settled:
    """Returns what `settled` does, but for the planner of a job's other models."""
    system = make_system(config, parts.seen, make)
    if recorded is not None:
        choice = Choice(**{name: recorded[name] for name in Choice.__dataclass_fields__}) if recorded else None
    else:
        choice = _chosen(config, parts, system, make, tell)
    if choice is None:
        return Settled(system, parts)
    model = replace(parts.model, **choice.model)
    if model != parts.model:
        cost = parts.cost_of(parts.cluster, model)
        seen = parts.cost_of(parts.told.cluster, replace(parts.told.model, **choice.model))
        executor = replace(parts.executor, cost=cost)  # type: ignore[type-var]
        parts = replace(parts, model=model, cost=cost, seen=seen, executor=executor)
    if isinstance(system, Chooses):
        chosen = choice
        planner = for_draws(system.planner(choice, parts.seen), parts.seen, lambda one: system.planner(chosen, one))
        planner = in_expert_homes(planner, parts.seen, step_strategy(config, make))
        return Settled(planner, parts, choice)
    return Settled(make_system(with_system_keys(config, choice.keys), parts.seen, make), parts, choice)


def _chosen(
    config: Mapping[str, Any], parts: Parts, system: System, make: Make, tell: Callable[[str], None]
) -> Choice | None:
    """Returns what is chosen for a system before a run; None where nothing is to be chosen.

    Raises:
        ValueError: nothing that a system could choose fits.
    """
    choose = system.choose if isinstance(system, Chooses) else None
    if choose is None and not parts.free and _limits(system, parts.tokens) == [{}]:
        return None
    study = _study(config, parts, make, tell)

    def searched() -> Choice:
        if choose is not None:
            own = replace(study, clock=_in_homes(parts, step_strategy(config, make)))
            made: Choice = gives(system, ".choose", "a Study", Choice, lambda: choose(own))
            return made
        return fastest(study, lambda cost, keys: make_system(with_system_keys(config, keys), cost, make), _limits)

    ours = type(undealt(system)).__module__.partition(".")[0] == "zbench"  # whose sources the name has
    return kept(_name(config, parts, study), searched) if ours else searched()


def _limits(system: System, tokens: int) -> Sequence[Keys]:
    """Returns the keys that a system wants to have tried, with batches of so many tokens."""
    own = undealt(system)
    if not isinstance(own, HasLimits):
        return [{}]
    found: Sequence[Keys] = gives(system, ".limits", "the tokens of a batch", list, lambda: own.limits(tokens))
    return found or [{}]


def _study(config: Mapping[str, Any], parts: Parts, make: Make, tell: Callable[[str], None]) -> Study:
    seed = SEED + (config["seed"] == SEED)
    workload = make_part(make, config, "workload", seed=seed, tokens=parts.tokens)
    return Study(
        *parts.told,
        lambda number: batch_of(workload, number, parts.tokens),
        lambda model: parts.cost_of(parts.told.cluster, model),
        clock_of(parts, step_strategy(config, make)),
        PLAYED_WHOLE,
        not parts.simulated,
        tell,
        parts.free,
    )


def clock_of(parts: Parts, strategy: StepStrategy = USUAL_STRATEGY) -> Clock:
    """Returns the clock of whole steps, as the run's executor has them, or those that it trains by. Models beside the
    actor have the same mesh whatever is chosen for the actor. strategy: of the run's whole steps."""
    executor = parts.executor
    if isinstance(executor, SimulatedIterations):
        executor = replace(executor, planner=_in_mesh)
    if isinstance(executor, Simulated):
        return lambda cost: ComparedSteps(replace(executor, cost=cost))
    if isinstance(executor, TorchAttention):
        of_run = AttentionRun(executor.job().parameters, executor.device == "cpu")
        return lambda cost: ComparedSteps(of_run.whole_steps(cost))
    return lambda cost: ComparedSteps(Simulated(cost, **strategy.arguments, sync=parts.sync))


def _in_homes(parts: Parts, strategy: StepStrategy) -> Clock:
    """Returns the run's clock for plans whose tokens live where they are planned, before homes are changed."""
    clock = clock_of(parts, strategy)
    if strategy.experts.homes == PLANNED:
        return clock

    def homed(cost: Cost) -> InOtherHomes:
        executor = clock(cost)
        assert isinstance(executor, ComparedSteps)
        return InOtherHomes(executor, ExpertHomes(cost, strategy))

    return homed


def _in_mesh(batch: Batch, cost: Cost) -> tuple[Plan, ...]:
    """Returns the plans of a mesh of the fewest ranks that hold the longest sequence."""
    return Mesh(cost, batching="balanced", context_limit=int(batch.lengths.max())).plan(batch)


def _name(config: Mapping[str, Any], parts: Parts, study: Study) -> str:
    """Returns one name for all that a choice depends on; a batch of the study's tells what a file of lengths holds."""
    plain: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    told = {key: plain.get(key) for key in CONFIGURED} | {"trains": not parts.simulated, "sources": own_digest()}
    told |= {"pipelines": parts.pipelines}
    told |= {"executor": plain["executor"]} if isinstance(parts.executor, Simulated) else {}
    told |= {"batch": study.batch(0).digest}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


def kept(name: str, choose: Callable[[], Choice]) -> Choice:
    """Returns the choice of that name, from the cache folder if it is there; else a new one, which is put there.

    Without a folder to write to, or with a file there that is no choice, it is made anew.
    """
    path = choices_folder() / f"{name}.json"
    with suppress(OSError, ValueError, TypeError):
        return Choice(**json.loads(path.read_text()))
    choice = choose()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, other = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as stream:
            json.dump(asdict(choice), stream)
        Path(other).replace(path)  # at once, whoever else writes it
    return choice


def choices_folder() -> Path:
    """Returns the folder where choices are kept: zbench/choices of the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "zbench" / "choices"
