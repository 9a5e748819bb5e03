"""A training step that was planned: its lengths, the cluster and model it is for, and a plan a micro-batch. Pure."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.units import with_noun
from zbench.planned.file import read_plan_file, write
from zbench.planned.machine_values import cluster_of, cluster_values, model_of, model_values
from zbench.planned.plan_values import ints, plan_of, plan_values, shown
from zbench.planned.strategy_values import STRATEGY, strategy_of, strategy_values
from zbench.plans.plan import Ints, Plan
from zbench.plans.text import summary
from zbench.proof.verify import PlanError, verify, verify_step

_PATH = str | os.PathLike[str]
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class StepPlans:
    """The plans of one training step.

    plans: one a micro-batch, in the order they run. lengths: int64 [num_sequences], tokens of each of the batch's
    sequences. cluster, model: what they are made for, as described. system: the name of what planned them. strategy:
    what a whole step of them has beside its model's fields.
    """

    plans: tuple[Plan, ...]
    lengths: Ints
    cluster: Cluster
    model: Model
    system: str = ""
    strategy: StepStrategy = USUAL_STRATEGY

    @cached_property
    def batch(self) -> Batch:
        """The batch, which has no seed: nothing drew it."""
        return Batch(self.lengths, seed=0, step=0)

    @cached_property
    def cost(self) -> Cost:
        """The cost model of cluster and model, as the plans' ranks see it."""
        return self.cost_on(self.cluster, self.model)

    def cost_on(self, cluster: Cluster, model: Model) -> Cost:
        """Returns the same on another machine, or for another model, with the strategy that memory has to know."""
        of, cut = self.strategy, self.strategy.expert_tensor_parallel
        of_memory = of.expert_parallel * cut, cut, of.exchanges, of.sharding_overlap.layers_ahead
        cost = make_cost(cluster, model, True, False, *of_memory)
        return cost.routed_by(of.experts, (self.batch.seed, self.batch.step))

    def verify(self, memory: bool = True) -> None:
        """Returns if the plans are correct (zbench.proof.verify) and, with `memory`, fit the cluster's GPUs.

        Raises:
            zbench.proof.verify.PlanError: the first rule broken; OutOfMemory, which is one: they do not fit.
        """
        verify_step(self.batch, self.plans, self.cost, memory)

    def save(self, path: _PATH) -> None:
        """Writes the step into a plan file (docs/plan_file.md), whole or not at all.

        Raises:
            ValueError: the file cannot be written, or cluster or model are of classes of one's own.
        """
        write(
            path,
            {
                "system": self.system,
                "cluster": cluster_values(self.cluster),
                "model": model_values(self.model),
                **strategy_values(self.strategy),
                "lengths": self.lengths.tolist(),
                "plans": [plan_values(plan) for plan in self.plans],
            },
        )

    @staticmethod
    def load(path: _PATH) -> "StepPlans":
        """Reads the step of a plan file, and proves it: every plan is correct, and every sequence in one of them.
        Whether it fits in memory is for `verify` to say.

        Raises:
            ValueError: the file is none, another version's, broken, or its plans are wrong; the message names the file.
        """
        found = read_plan_file(path)
        for name in ("cluster", "model", "lengths"):
            if found[name] is None:
                raise ValueError(f"the plan file {str(path)!r} has a plan without its {name}; it is read by Plan.load")
        step = _named(path, lambda: _step(found))
        try:
            step.verify(memory=False)
        except PlanError as error:
            raise PlanError(f"the plan file {str(path)!r} has no correct plans: {error}") from error
        return step

    def check_for(self, cluster: Cluster | None = None, model: Model | None = None) -> None:
        """Refuses plans that are for another cluster or model than these.

        Raises:
            ValueError: the message names the first value that differs.
        """
        found = None
        if cluster is not None and cluster != self.cluster:
            found = "cluster", _difference(cluster_values(self.cluster), cluster_values(cluster), "cluster")
        elif model is not None and model != self.model:
            found = "model", _difference(model_values(self.model), model_values(model), "model")
        if found is not None:
            name, (where, mine, other) = found
            raise ValueError(
                f"the plans are for another {name}: {where} is {shown(mine)} in theirs and {shown(other)} in the one "
                "asked for"
            )

    def __str__(self) -> str:
        whole = (
            f"{with_noun(len(self.lengths), 'sequence')}, {with_noun(int(self.lengths.sum()), 'token')} of "
            f"{self.model.name} on {self.cluster.name}"
        )
        head = f"step of {whole}{f', planned by {self.system}' if self.system else ''}"
        if len(self.plans) == 1:
            return f"{head}\n{summary(self.plans[0], self.model.tensor_parallel)}"
        told = (summary(plan, self.model.tensor_parallel) for plan in self.plans)
        each = (f"micro-batch {number}: {words}" for number, words in enumerate(told))
        return "\n".join((f"{head}: {with_noun(len(self.plans), 'micro-batch')}", *each))


def save_plan(plan: Plan, path: _PATH) -> None:
    """Writes one plan into a plan file, for any cluster of as many ranks.

    Raises:
        ValueError: the file cannot be written.
        zbench.proof.verify.PlanError: the plan's arrays are not as they have to be.
    """
    write(path, {"system": "", "cluster": None, "model": None, "lengths": None, "plans": [plan_values(plan)]})


def load_plan(path: _PATH) -> Plan:
    """Reads the plan of a file that has one, and proves it, for the file's cluster and model where it names them.

    Raises:
        ValueError: the file is none, another version's, broken, has several plans, or its plan is wrong.
    """
    found = read_plan_file(path)
    if len(found["plans"]) > 1:
        count = len(found["plans"])
        raise ValueError(
            f"the plan file {str(path)!r} has {with_noun(count, 'micro-batch')}; zbench.load reads them all"
        )
    if found["cluster"] is not None:
        return StepPlans.load(path).plans[0]
    plan = _named(path, lambda: plan_of(found["plans"][0], "plans[0]"))
    try:
        verify(plan)
    except PlanError as error:
        raise PlanError(f"the plan file {str(path)!r} has no correct plan: {error}") from error
    return plan


def _step(found: Mapping[str, Any]) -> StepPlans:
    if not isinstance(found["system"], str):
        raise ValueError(f"system is {shown(found['system'])}; it has to be text")
    plans = tuple(plan_of(values, f"plans[{number}]") for number, values in enumerate(found["plans"]))
    lengths = ints(found["lengths"], "lengths")
    cluster, model = cluster_of(found["cluster"]), model_of(found["model"])
    return StepPlans(plans, lengths, cluster, model, found["system"], strategy_of(found, STRATEGY))


def _named(path: _PATH, read_values: Callable[[], _Read]) -> _Read:
    """Returns what `read_values` does; what is wrong is told with the file's name."""
    try:
        return read_values()
    except ValueError as error:
        raise ValueError(f"the plan file {str(path)!r} is broken: {error}") from error


def _difference(ours: Any, asked: Any, where: str) -> tuple[str, Any, Any]:
    """Returns (dotted name, our value, theirs) of the first value that differs."""
    if isinstance(ours, Mapping) and isinstance(asked, Mapping):
        for key in (*ours, *asked):
            if ours.get(key) != asked.get(key):
                return _difference(ours.get(key), asked.get(key), f"{where}.{key}")
    return where, ours, asked
