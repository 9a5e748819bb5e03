"""The choices of conf/recompute, conf/memory and conf/experts, and of experts on GPUs, with which combinations are
tried. An edge: OmegaConf.

A combination of a system, a model and a cluster has one of each, and all choices come round for every system that can
have them: each combination takes those with the most choices that its system still lacks, combinations first that can
take the fewest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from zbench import CONF
from zbench.correctness.cover import Combination
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import check_memory
from zbench.describe.expert_schedule import SEQUENTIAL, Experts
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import Recompute, TrainingMemory
from zbench.run.choices import choices
from zbench.simulated.executor import Simulated

AT_HOME, WHOLE, CUT = "home", "whole", "cut"  # experts: all on every GPU; some on each; those of a group cut over it


@dataclass(frozen=True, slots=True, order=True)
class StrategyChoice:
    """A choice of conf/recompute with one of conf/memory, by their names, and where experts are: "home", "whole" or
    "cut"; "" of a model without. schedule: of experts that are on several GPUs, a choice of conf/experts; "" of
    others."""

    recompute: str
    memory: str
    experts: str = ""
    schedule: str = ""

    def __str__(self) -> str:
        experts = f" experts={self.experts}" if self.experts else ""
        schedule = f" schedule={self.schedule}" if self.schedule else ""
        return f"recompute={self.recompute} memory={self.memory}{experts}{schedule}"


@dataclass(frozen=True, slots=True)
class StrategyChoices:
    """The choices of conf/ by their names."""

    recompute: Mapping[str, Recompute]
    memory: Mapping[str, TrainingMemory]
    schedules: Mapping[str, Experts]

    @staticmethod
    def of(chunk_tokens: int) -> "StrategyChoices":
        """Reads conf/. chunk_tokens: of chunks that its yamls count, which are far more tokens than a GPU has here."""
        again = {name: Recompute(**_keys("recompute", name)) for name in choices("recompute")}
        held = {name: _cut(TrainingMemory(**_keys("memory", name)), chunk_tokens) for name in choices("memory")}
        return StrategyChoices(again, held, {name: Experts(**_keys("experts", name)) for name in choices("experts")})

    def made(self, cost: Cost, strategy: TrainingStrategy, choice: StrategyChoice) -> tuple[Cost, StepStrategy]:
        """Returns the cost model of a job with another choice, and what its whole steps have besides. strategy: of the
        job.

        Raises:
            ValueError: it cannot be; the message names the keys.
        """
        expert_parallel, cut = expert_degrees(cost, choice.experts)
        chosen = replace(
            strategy,
            recompute=self.recompute[choice.recompute],
            memory=self.memory[choice.memory],
            parallel=replace(strategy.parallel, expert_parallel=expert_parallel, expert_tensor_parallel=cut),
            experts=self.schedules[choice.schedule or SEQUENTIAL],
        )
        model = replace(cost.gpus.model, **chosen.model_fields)
        made = make_cost(cost.gpus.cluster, model, not model.rests_on_hosts)  # which takes no pipelines
        check_memory(made)
        step = StepStrategy.of(chosen)
        Simulated(made, **step.arguments)  # refuses what there are no steps of
        return made, step

    def possible(self, cost: Cost, strategy: TrainingStrategy) -> list[StrategyChoice]:
        """Returns the choices that a job can have with its experts at once, each with every schedule of experts, with
        which some cannot be."""
        found = []
        for experts in _placements(cost):
            schedules = tuple(self.schedules) if experts in (WHOLE, CUT) else ("",)
            for again, held in product(self.recompute, self.memory):
                if self.can_be(cost, strategy, StrategyChoice(again, held, experts)):
                    found += [StrategyChoice(again, held, experts, one) for one in schedules]
        return found

    def can_be(self, cost: Cost, strategy: TrainingStrategy, choice: StrategyChoice) -> bool:
        """Returns whether a job can have a choice."""
        try:
            self.made(cost, strategy, choice)
        except ValueError:
            return False
        return True


def expert_degrees(cost: Cost, experts: str) -> tuple[int, int]:
    """Returns the groups of GPUs that hold all experts together, and the GPUs of each, over which its experts are cut.

    Whole experts are on as many GPUs of a node as can have as many of them each; cut ones are over nodes, each cut over
    the GPUs of one, as FSMoE has them, as far as numbers divide.
    """
    cluster, model = cost.gpus.cluster, cost.gpus.model
    if experts == WHOLE:
        return gcd(model.num_experts, cluster.gpus_per_node), 1
    if experts == CUT:
        return gcd(model.num_experts, cluster.num_nodes), gcd(model.ffn_hidden, cluster.gpus_per_node)
    return 1, 1


def _placements(cost: Cost) -> list[str]:
    """Lists where experts can be."""
    if cost.gpus.model.num_experts == 1:
        return [""]
    placed = {expert_degrees(cost, one): one for one in (CUT, WHOLE, AT_HOME)}  # the last of those that are the same
    return [one for one in (AT_HOME, WHOLE, CUT) if one in placed.values()]


def choice_cover(
    combinations: Sequence[Combination],
    possible: Callable[[Combination], Sequence[StrategyChoice]],
    can_be: Callable[[Combination, StrategyChoice], bool],
    seed: int = 0,
) -> dict[Combination, StrategyChoice]:
    """Chooses one for each combination that can have some, so that each system has every choice that it can. can_be:
    whether a combination can have one of those that `possible` has of it. Ties are broken by the seed."""
    rng = np.random.default_rng(seed)
    found: dict[Combination, StrategyChoice] = {}
    for system in dict.fromkeys(one.system for one in combinations):
        mine = {one: list(possible(one)) for one in combinations if one.system == system}
        every = {part for some in mine.values() for choice in some for part in _parts(choice)}
        missing = set(every)
        for one, able in sorted(mine.items(), key=lambda item: len(item[1])):
            if not able:
                continue
            order = rng.permutation(len(able)).tolist()
            order.sort(key=lambda at: -len(missing & _parts(able[at])))
            best = next((able[at] for at in order if can_be(one, able[at])), None)
            if best is None:
                continue
            found[one] = best
            missing -= _parts(best)
            missing = missing or set(every)
    return found


def _parts(choice: StrategyChoice) -> set[tuple[str, str]]:
    """Returns the choices, each with its group."""
    parts = {("recompute", choice.recompute), ("memory", choice.memory)}
    if choice.experts:  # at home they have no schedule, which counts as one: places would else come after all schedules
        parts |= {("experts", choice.experts), ("schedule", choice.schedule)}
    return parts


def _keys(group: str, name: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return {key: value for key, value in found.items() if key != "_target_"}


def _cut(memory: TrainingMemory, tokens: int) -> TrainingMemory:
    """Returns the choice with chunks of so many tokens in place of its own number."""
    keys = [key for key in ("mlp_chunk_tokens", "loss_chunk_tokens") if type(getattr(memory, key)) is int]
    counts: dict[str, Any] = dict.fromkeys(keys, tokens)
    return replace(memory, **counts)
