"""The steps of an iteration: what is scored and what is trained on is planned from lengths alone, before any step runs,
so that it is known which ranks will compute with which sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.correctness.loop.cases import LoopSteps
from zbench.describe.arrays import Flags
from zbench.rollouts.experience import Learning
from zbench.runtime.rollouts.policy_job import POLICY, REWARD, ModelStep, PolicyJob
from zbench.runtime.steps.reads import sequences_read


@dataclass(frozen=True)
class PlannedUpdate:
    """An update. which: the numbers of its rollouts; steps: of each model that is trained."""

    which: list[int]
    steps: dict[str, ModelStep]


@dataclass(frozen=True)
class PlannedIteration:
    """The steps of an iteration on the ranks of a job. scores: by model its step, and the numbers of what it reads.
    count: of rollouts, behind which greedy responses have their numbers, up to `every`."""

    job: PolicyJob
    scores: dict[str, tuple[ModelStep, list[int]]]
    updates: list[PlannedUpdate]
    count: int
    every: int

    @staticmethod
    def of(
        steps: Mapping[str, LoopSteps],
        job: PolicyJob,
        learning: Learning,
        lengths: Sequence[int],
        count: int,
        drawn: tuple[int, int],
    ) -> "PlannedIteration":
        """Plans an iteration. steps: by model. lengths: of all sequences, `count` rollouts first. drawn: seed and
        iteration."""
        scores, updates = {}, list[PlannedUpdate]()
        for name in job.others:
            read = len(lengths) if name == REWARD else count  # greedy responses are rewarded, and that is all
            scores[name] = steps[name].of_scores(lengths[:read], drawn[1]), list(range(read))
        for which in learning.updates(count, *drawn):
            some = [lengths[number] for number in which]
            trained = (POLICY, *job.critics)
            updates.append(PlannedUpdate(which, {name: steps[name].of_rollouts(some, drawn[1]) for name in trained}))
        return PlannedIteration(job, scores, updates, count, len(lengths))

    def reads(self) -> Flags:
        """Returns which sequences ranks compute with, bool [ranks, sequences]."""
        found = np.zeros((self.job.num_ranks, self.every), bool)
        for name, (step, which) in self.scores.items():
            found |= self._read(name, step, which)
        for wants in self.trained().values():
            found[:, : self.count] |= wants
        return found

    def trained(self) -> dict[str, Flags]:
        """Returns by model which rollouts ranks train it with, bool [ranks, rollouts]."""
        found = dict[str, Flags]()
        for update in self.updates:
            for name, step in update.steps.items():
                read = self._read(name, step, update.which)[:, : self.count]
                found[name] = found[name] | read if name in found else read
        return found

    # -- inside ---------------------------------------------------------------------------------------
    def _read(self, name: str, step: ModelStep, which: Sequence[int]) -> Flags:
        """Returns which sequences ranks compute with in a step, bool [ranks, sequences]. which: those of its batch."""
        _, built, tokens = step
        first = 0 if name == POLICY else self.job.others[name].first
        found = np.zeros((self.job.num_ranks, self.every), bool)
        found[first : first + built.num_gpus, which] = sequences_read(built, tokens, len(which))
        return found
