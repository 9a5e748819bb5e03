"""Candidates: systems with all their keys pinned, as they are played on every batch and in every world. An edge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.advise.question import BASELINE, Question
from zbench.describe.worlds import NOMINAL
from zbench.interfaces.protocols import System
from zbench.interfaces.study import Study
from zbench.run.checks.contract import batch_of
from zbench.run.chosen import SEED, clock_of, planning_all, settled
from zbench.run.parts import Parts
from zbench.run.system import make_system
from zbench.run.target import from_yaml, make_part

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PinnedSystem:
    """A system of conf/system with keys of it and of the model set to what was chosen. words: the choice, told; ""
    where nothing was."""

    name: str
    system: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""

    def made(self, question: Question, world: str = NOMINAL) -> tuple[System, Parts]:
        """Makes the system and the parts that it runs with.

        Raises:
            ValueError: the cluster or the model is none for it.
        """
        parts = question.parts(self.model, world)
        system = make_system(question.system_config(self.system, self.keys), parts.seen)
        return system, planning_all(system, parts)


def settle(question: Question, name: str, tell: Tell) -> PinnedSystem:
    """Returns a system of conf/system with what a run of it would choose before it begins.

    Raises:
        ValueError: nothing that it could choose fits, or the cluster is none for it.
    """
    found = settled(question.with_system(name), question.parts(), tell=tell)
    if found.choice is None:
        return PinnedSystem(name, name)
    system = "mesh" if name == BASELINE else name
    return PinnedSystem(name, system, dict(found.choice.keys), dict(found.choice.model), found.choice.words)


def study_of(question: Question, tell: Tell) -> Study:
    """Returns the study that settings are chosen by: batches of another seed than the question's, as before a run."""
    parts = question.parts()
    seed = SEED + (question.settings.seed == SEED)
    workload = make_part(from_yaml, question.config, "workload", seed=seed, tokens=parts.tokens)
    return Study(
        parts.cluster,
        parts.model,
        lambda number: batch_of(workload, number, parts.tokens),
        lambda model: parts.cost_of(parts.cluster, model),
        clock_of(parts),
        tell=tell,
    )
