"""The choices of conf/recompute and conf/memory with which combinations are tried. An edge: OmegaConf.

A combination of a system, a model and a cluster has one pair of them, and all choices come round for every system that
can have them: each combination takes the pair with the most choices that its system still lacks, those first that can
take the fewest pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from zbench import CONF
from zbench.correctness.cover import Combination
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory import check_memory
from zbench.describe.model import NONE
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import Recompute, TrainingMemory
from zbench.run.choices import choices
from zbench.simulated.executor import Simulated


@dataclass(frozen=True, slots=True, order=True)
class MemoryChoice:
    """A choice of conf/recompute with one of conf/memory, by their names."""

    recompute: str
    memory: str

    def __str__(self) -> str:
        return f"recompute={self.recompute} memory={self.memory}"


@dataclass(frozen=True, slots=True)
class MemoryChoices:
    """The choices of conf/ by their names."""

    recompute: Mapping[str, Recompute]
    memory: Mapping[str, TrainingMemory]

    @staticmethod
    def of(chunk_tokens: int) -> "MemoryChoices":
        """Reads conf/. chunk_tokens: of chunks that its yamls count, which are far more tokens than a GPU has here."""
        again = {name: Recompute(**_keys("recompute", name)) for name in choices("recompute")}
        held = {name: _cut(TrainingMemory(**_keys("memory", name)), chunk_tokens) for name in choices("memory")}
        return MemoryChoices(again, held)

    @property
    def every(self) -> list[MemoryChoice]:
        """All pairs."""
        return [MemoryChoice(again, held) for again in self.recompute for held in self.memory]

    def is_adaptive(self, choice: MemoryChoice) -> bool:
        """Returns whether recomputation is chosen for every batch."""
        return self.recompute[choice.recompute].is_adaptive

    def cost(self, cost: Cost, strategy: TrainingStrategy, choice: MemoryChoice) -> Cost:
        """Returns the cost model of a job with another choice. strategy: of the job.

        Raises:
            ValueError: it cannot be; the message names the keys.
        """
        chosen = replace(strategy, recompute=self.recompute[choice.recompute], memory=self.memory[choice.memory])
        model = replace(cost.gpus.model, **chosen.model_fields)
        made = make_cost(cost.gpus.cluster, model, model.offload == NONE)  # inputs and state on hosts take no pipelines
        check_memory(made)
        Simulated(made, adaptive_recompute=chosen.recompute.is_adaptive)  # refuses what there are no steps of
        return made

    def possible(self, cost: Cost, strategy: TrainingStrategy) -> list[MemoryChoice]:
        """Returns the pairs that a job can have."""
        return [one for one in self.every if self._can_be(cost, strategy, one)]

    def _can_be(self, cost: Cost, strategy: TrainingStrategy, choice: MemoryChoice) -> bool:
        try:
            self.cost(cost, strategy, choice)
        except ValueError:
            return False
        return True


def choice_cover(
    combinations: Sequence[Combination], possible: Callable[[Combination], Sequence[MemoryChoice]], seed: int = 0
) -> dict[Combination, MemoryChoice]:
    """Chooses a pair for each combination that can have some, so that each system has every choice that it can. Ties
    are broken by the seed."""
    rng = np.random.default_rng(seed)
    found: dict[Combination, MemoryChoice] = {}
    for system in dict.fromkeys(one.system for one in combinations):
        mine = {one: list(possible(one)) for one in combinations if one.system == system}
        every = {part for some in mine.values() for pair in some for part in _parts(pair)}
        missing = set(every)
        for one, pairs in sorted(mine.items(), key=lambda item: len(item[1])):
            if not pairs:
                continue
            order = rng.permutation(len(pairs)).tolist()
            best = max(order, key=lambda at: len(missing & _parts(pairs[at])))
            found[one] = pairs[best]
            missing -= _parts(pairs[best])
            missing = missing or set(every)
    return found


def _parts(pair: MemoryChoice) -> set[tuple[str, str]]:
    """Returns both choices of a pair, each with its group."""
    return {("recompute", pair.recompute), ("memory", pair.memory)}


def _keys(group: str, name: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return {key: value for key, value in found.items() if key != "_target_"}


def _cut(memory: TrainingMemory, tokens: int) -> TrainingMemory:
    """Returns the choice with chunks of so many tokens in place of its own number."""
    keys = [key for key in ("mlp_chunk_tokens", "loss_chunk_tokens") if type(getattr(memory, key)) is int]
    counts: dict[str, Any] = dict.fromkeys(keys, tokens)
    return replace(memory, **counts)
