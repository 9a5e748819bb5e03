"""Plans where the numbers of a batch of rollouts go from rank to rank, from lengths alone. No torch.

Tokens go to every rank that computes with them, what was generated and scored to the one that computes advantages, and
from there what models are trained with to every rank that trains with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.rollouts.columns import ColumnMoves, ColumnRuns
from zbench.runtime.rollouts.policy_job import ADVANTAGES, BEFORE, HOME, POLICY, REFERENCE, TOKENS, returns_of

Runs = set[tuple[int, int, int]]


@dataclass(frozen=True)
class ExperienceWays:
    """The ways of a batch. lengths, prompts: of its sequences, the tokens of both and of prompts, greedy responses
    behind `count` rollouts. owners: the rank that generated each."""

    ranks: int
    count: int
    lengths: Sequence[int]
    prompts: Sequence[int]
    owners: Sequence[int]

    def of_tokens(self, reads: Flags) -> ColumnMoves | None:
        """Returns the way of tokens, and of likelihoods of generation to where advantages are computed. reads: which
        sequences ranks compute with, bool [ranks, sequences]."""
        owns = np.zeros((self.ranks, len(self.owners)), bool)
        owns[list(self.owners), np.arange(len(self.owners))] = True
        at_home = self._at_home(len(self.owners))
        whole = np.array([(at, 0, length) for at, length in enumerate(self.lengths)], np.int64)
        return ColumnMoves.of(
            [
                ColumnRuns(TOKENS, whole, owns, reads | at_home),
                ColumnRuns(BEFORE, self._responses(self.count), owns[:, : self.count], at_home[:, : self.count]),
            ]
        )

    def of_scores(self, held: Mapping[str, Sequence[Runs]]) -> ColumnMoves | None:
        """Returns the way of what models made of tokens to where advantages are computed. held: by model the runs that
        each rank has."""
        wants = self._at_home(len(self.owners))
        return ColumnMoves.of([ColumnRuns.of_sets(name, some, wants) for name, some in held.items()])

    def of_responses(self, ranks: Sequence[int]) -> list[Runs]:
        """Returns the runs of each rank, where each rollout's whole response was scored on one."""
        runs = [tuple(run) for run in self._responses(self.count).tolist()]
        return [{run for run, owner in zip(runs, ranks, strict=True) if owner == rank} for rank in range(self.ranks)]

    def of_targets(
        self, reads: Mapping[str, Flags], held: Mapping[str, Sequence[Runs]], kl: bool
    ) -> ColumnMoves | None:
        """Returns the way of what models are trained with. reads: by model, which rollouts ranks train it with, bool
        [ranks, rollouts]; held: as of of_scores; kl: whether the policy's loss has a KL term."""
        runs, only = self._responses(self.count), self._at_home(self.count)
        columns = list[ColumnRuns]()
        for model, wants in reads.items():
            if model != POLICY:
                columns.append(ColumnRuns(returns_of(model), runs, only, wants))
                columns.append(ColumnRuns(model, runs, only | self._whole(held[model]), wants))
                continue
            owns = np.arange(self.ranks)[:, None] == np.array(self.owners[: self.count])
            columns.append(ColumnRuns(ADVANTAGES, runs, only, wants))
            columns.append(ColumnRuns(BEFORE, runs, only | owns, wants))
            if kl:
                columns.append(ColumnRuns(REFERENCE, runs, only | self._whole(held[REFERENCE]), wants))
        return ColumnMoves.of(columns)

    # -- inside ---------------------------------------------------------------------------------------
    def _at_home(self, count: int) -> Flags:
        found = np.zeros((self.ranks, count), bool)
        found[HOME] = True
        return found

    def _responses(self, count: int) -> Ints:
        some = zip(self.prompts[:count], self.lengths[:count], strict=True)
        return np.array([(at, prompt - 1, length - 1) for at, (prompt, length) in enumerate(some)], np.int64)

    def _whole(self, held: Sequence[Runs]) -> Flags:
        """Returns which responses ranks have scored whole, bool [ranks, rollouts]."""
        wanted = [tuple(run) for run in self._responses(self.count).tolist()]
        return np.array([[run in some for run in wanted] for some in held], bool)
