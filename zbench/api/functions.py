"""The library's functions: plan, verify, simulate, bound, load, compare_runs. All are names of `zbench` itself."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zbench.api.compiling import compiling_told
from zbench.api.parts import (
    Worlds,
    cluster_named,
    machine_in,
    model_named,
    strategy_choices,
    system_named,
    told,
    trained_named,
)
from zbench.api.yamls import Named
from zbench.cost.job import make_cost
from zbench.cost.stage import in_whole_steps
from zbench.describe.arrays import Ints
from zbench.describe.checks import check_boolean, is_whole
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.interfaces.protocols import System
from zbench.interfaces.published import VARIANT
from zbench.interfaces.result import StepResult
from zbench.planned.step import StepPlans
from zbench.record.flops import CONVENTIONS
from zbench.record.records import read_all
from zbench.record.rows import Row, rows
from zbench.run.checks.contract import plans_of
from zbench.run.checks.price import MOST_TOKENS
from zbench.simulated.compared import by_fastest_way
from zbench.simulated.executor import Simulated
from zbench.simulated.expert_homes import in_expert_homes

CLUSTER, MODEL, SYSTEM = "a800_4x8", "llama_7b", "zeppelin"  # as in conf/config.yaml
PIPELINES = "pipelines"  # whether what runs the plans has pipelines that a planner chooses
Lengths = Sequence[int] | Ints


def plan(
    lengths: Lengths,
    *,
    cluster: Named | Cluster = CLUSTER,
    model: Named | Model = MODEL,
    system: Named | System = SYSTEM,
    mask: str | None = None,
    strategy: Mapping[str, str | Mapping[str, Any]] | None = None,
    world: Worlds = None,
    **keys: Any,
) -> StepPlans:
    """Plans a training step: which GPU gets which tokens, and what is sent and attended to in what order.

        import zbench
        step = zbench.plan([60000, 5000, 300], cluster="a800_2x8", model="llama_3b", system="nodewise")
        print(step)
        print(zbench.simulate(step).seconds)

    lengths: [num_sequences], tokens of each sequence of the batch. cluster, model, system: a name of conf/, the
    path of a yaml, or an object. mask: "causal", "full" or "window:N"; None: the model's own. keys: of the system's
    yaml, as in played_placements=2; each that its authors' published form has otherwise takes the word "published",
    as in wait="published", and variant="published" gives it to all that are not named; with pipelines=False no
    planner chooses pipelines of its own, which zbench.torch does not run (nodewise and hydraulis may, for models
    without experts). strategy:
    how a model by name is trained, by group (sharding, recompute, memory, parallel, overlap, experts) a name of conf/
    or its keys, as in {"sharding": "zero1", "parallel": {"tensor_parallel": 2}}; the others are as the model's
    yaml chooses.
    world: what is otherwise on this machine (docs/worlds.md), a name of conf/ or keys, as in {"nvlink_channels":
    3}; plans are for the cluster in that world. Systems that choose from a workload before a run (static_best) plan
    nothing here.

    Returns the plans, proven correct; whether they fit in memory `verify` says.

    Raises:
        ValueError: a length, name, key, variant or size cannot be, in one sentence.
        zbench.proof.verify.PlanError: a system of one's own made a wrong plan.
    """
    numbers = checked_lengths(lengths)
    for group in (name for name in STRATEGY_GROUPS if name in keys):
        raise ValueError(
            f"{group} is how a model is trained and no key of a system; it is given as strategy={{'{group}': "
            f"{keys[group]!r}}}"
        )
    with told():
        made, own = trained_named(model, mask=mask, strategy=strategy_choices(strategy or {}))
        machine = machine_in(world, cluster_named(cluster), made)
        variant, pipelines = keys.pop(VARIANT, None), keys.pop(PIPELINES, True)
        step = StepPlans((), numbers, *machine, strategy=own)
        return planned(step, system, keys, variant, pipelines)


def planned(
    step: StepPlans,
    system: Named | System,
    keys: Mapping[str, Any],
    variant: str | None = None,
    pipelines: bool = True,
) -> StepPlans:
    """Has a system plan a step's lengths for its cluster and model, and proves what it plans.

    step: without plans yet. keys: of the system's yaml, changed. variant, pipelines: as of `plan`.

    Raises:
        ValueError: there is no such system or key, or the size cannot be.
        zbench.proof.verify.PlanError: the system made a wrong plan.
    """
    check_boolean(PIPELINES, pipelines)
    if step.strategy != USUAL_STRATEGY:
        Simulated(step.cost, **step.strategy.arguments)  # refuses what there are no steps of
    with compiling_told():
        chosen = pipelines and step.strategy.plans_pipelines and in_whole_steps(step.cost)
        cost = replace(step.cost, pipelines=chosen, even_slices=True)
        planner, name = system_named(system, cost, keys, variant)
        if isinstance(system, str | os.PathLike):

            def otherwise(changed: Mapping[str, Any]) -> System:
                return system_named(system, cost, {**keys, **changed}, variant)[0]

            planner = by_fastest_way(planner, otherwise, cost, step.strategy)
        planner = in_expert_homes(planner, cost, step.strategy)
        found = replace(step, plans=plans_of(planner, step.batch, cost), system=name)
        found.verify(memory=False)
    return found


def verify(step: StepPlans, memory: bool = True) -> None:
    """Returns if the plans are correct and, with `memory`, fit the GPUs' memory.

        step = zbench.plan([600, 50, 3], cluster="local_2x2", model="tiny")
        zbench.verify(step)

    Raises:
        zbench.proof.verify.PlanError: the first rule broken; OutOfMemory, which is one: a rank's memory is too small.
    """
    with compiling_told():
        _step(step).verify(memory)


def simulate(
    step: StepPlans | Named,
    *,
    cluster: Named | Cluster | None = None,
    model: Named | Model | None = None,
    world: Worlds = None,
) -> StepResult:
    """Plays a step on its cluster's clock; the seconds are simulated. step: plans, or the path of a plan file.

        step = zbench.plan([600, 50, 3], cluster="local_2x2", model="tiny")
        print(zbench.simulate(step).seconds)
        print(zbench.simulate(step, world="latency_3").seconds)  # as planned, where latencies are not as described

    cluster, model: those that the plans have to be for, as of `load`: a step is played on the machine it was planned
    for, and nowhere else. world: what is otherwise on that machine than the planner was told, as of `plan`.

    Raises:
        ValueError: the file is no plan file (StepPlans.load), the plans are for another cluster or model, their
            machine has no such world.
    """
    with compiling_told(), told():
        found = StepPlans.load(step) if isinstance(step, str | os.PathLike) else _step(step)
        _check_for(found, cluster, model)
        cost = found.cost_on(*machine_in(world, found.cluster, found.model))
        return Simulated(cost, **found.strategy.arguments).step(found.batch, found.plans)


def bound(
    lengths: Lengths,
    *,
    cluster: Named | Cluster = CLUSTER,
    model: Named | Model = MODEL,
    mask: str | None = None,
    strategy: Mapping[str, str | Mapping[str, Any]] | None = None,
    world: Worlds = None,
) -> float:
    """Returns the seconds of a step that no plan of these lengths can beat under the same cost model.

        seconds = zbench.bound([600, 50, 3], cluster="local_2x2", model="tiny")

    Arguments are as of `plan`.

    Raises:
        ValueError: a length, name or size cannot be, in one sentence.
    """
    numbers = checked_lengths(lengths)
    with told():
        made, own = trained_named(model, mask=mask, strategy=strategy_choices(strategy or {}))
        machine = machine_in(world, cluster_named(cluster), made)
        return Simulated(make_cost(*machine), **own.arguments).bound_seconds(StepPlans((), numbers, *machine).batch)


def load(path: Named, *, cluster: Named | Cluster | None = None, model: Named | Model | None = None) -> StepPlans:
    """Reads a plan file, and proves its plans. cluster, model: those that the plans have to be for; None: any.

        step = zbench.load("p.plan", cluster="a800_2x8")

    Raises:
        ValueError: the file is none, broken, another version's, or for another cluster or model.
    """
    with compiling_told():
        found = StepPlans.load(path)
    with told():
        _check_for(found, cluster, model)
    return found


def compare_runs(*paths: Named, convention: str = "zbench") -> list[Row]:
    """Returns a row of figures for every run of these records, as `python -m zbench.compare FILE... --json` has them.

        for row in zbench.compare_runs("results/runs.jsonl"):
            print(row["system"], row["tokens_per_second"])

    convention: how MFU counts FLOPs (docs/metrics.md).

    Raises:
        ValueError: a file is no record, or there is no such convention.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention is {convention!r}; it takes one of {', '.join(CONVENTIONS)}")
    if not paths:
        raise ValueError("compare_runs takes the path of at least one record")
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise ValueError(f"compare_runs has {wrong[0]!r:.60}; it takes paths of records")
    return rows(read_all([os.fspath(path) for path in paths]), convention)


def checked_lengths(lengths: Lengths) -> Ints:
    """Returns lengths as int64 [num_sequences].

    Raises:
        ValueError: they are no list of whole numbers of at least 1, or too many tokens.
    """
    values = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"lengths is of type {type(lengths).__name__}; it takes a list of tokens, as in [60000, 5000]")
    for number, value in enumerate(values):
        whole = int(value) if isinstance(value, np.integer) else value
        if not is_whole(whole) or not 1 <= whole <= MOST_TOKENS:
            raise ValueError(f"lengths[{number}] is {value!r:.60}; it takes a whole number from 1 to {MOST_TOKENS}")
    if not values:
        raise ValueError("lengths is empty; a batch has at least one sequence")
    if sum(map(int, values)) > MOST_TOKENS:
        raise ValueError(f"lengths adds up to more than {MOST_TOKENS:,} tokens, the most that a batch may have")
    return np.array(values, np.int64)


def _check_for(step: StepPlans, cluster: Named | Cluster | None, model: Named | Model | None) -> None:
    step.check_for(None if cluster is None else cluster_named(cluster), None if model is None else model_named(model))


def _step(given: object) -> StepPlans:
    if not isinstance(given, StepPlans):
        raise ValueError(
            f"the step is of type {type(given).__name__}; it takes what zbench.plan or zbench.load returns"
        )
    return given
