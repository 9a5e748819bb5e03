"""Ranks of a loop whose sets of models wait for each other in turns, which they can if they train at the same time."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from zbench.correctness.loop.rank import LoopRank
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.policy_job import PolicyJob

LONGEST = timedelta(seconds=60)


class WaitingRank(LoopRank):
    """A rank that begins an update once all ranks of the other set have ended it: the actor's set in every second
    update, the other set in those between."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job)
        self.updates_so_far = 0
        self.told = rendezvous.store()

    def update(self, steps: Any, which: Sequence[int], kl: float) -> dict[str, StepReport]:
        mine, actors = self.rank < self.loop.own_ranks, range(self.loop.own_ranks)
        if mine == (self.updates_so_far % 2 == 0):
            others = range(len(actors), self.loop.num_ranks) if mine else actors
            self.told.wait([self._key(rank) for rank in others], LONGEST)
        found = super().update(steps, which, kl)
        self.told.set(self._key(self.rank), "ended")
        self.updates_so_far += 1
        return found

    def _key(self, rank: int) -> str:
        return f"update {self.updates_so_far} of rank {rank}"
