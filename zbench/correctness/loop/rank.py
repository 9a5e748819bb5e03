"""One rank of a loop that is compared with one process."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.loop.alone import AloneIteration, alone
from zbench.correctness.loop.cases import AloneReport, Loop, learned_from
from zbench.correctness.steps.dense import drawn_weights
from zbench.describe.arrays import Floats
from zbench.rollouts.experience import Learning, Rollout
from zbench.runtime.handlers.runner import Whole
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.model_rank import ModelRank
from zbench.runtime.rollouts.policy_job import (
    ADVANTAGES,
    COST,
    HOME,
    OF_RESPONSES,
    REWARD,
    UNTRAINED,
    PolicyJob,
    returns_of,
)
from zbench.runtime.rollouts.policy_rank import PolicyRank
from zbench.runtime.stepping.comparison import Piece, state_pieces, whole_weights
from zbench.runtime.stepping.weights import OF_NO_LAYER


class OtherRank(ModelRank):
    """A rank of a critic or a reference model, whose weights are drawn as the policy's are."""

    def _initial(self) -> Whole:
        return partial(_drawn, drawn_weights(self.model, self.job.seed))


class LoopRank(PolicyRank):
    """A rank of a loop. Rank 0 runs the loop by itself, too, and keeps what that came to."""

    kind = OtherRank

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job)
        self.found: list[AloneIteration] = []

    def alone(self, loop: Loop) -> list[AloneReport]:
        """Runs the loop in one process; nothing on other ranks than 0."""
        if self.rank == 0:
            self.board.say("the loop in one process")
            self.found = alone(loop, drawn_weights(self.model, self.job.seed), self.job.seed)
        return [
            AloneReport(one.sequences, one.losses, one.scales, one.clipped, one.multiplier, one.age, one.given_up)
            for one in self.found
        ]

    def learn_from(self, learning: Learning, count: int, known: Sequence[str], multiplier: float) -> Floats | None:
        """Computes what models learn from `count` rollouts, on the rank that has all of them, which returns what the
        cost model charged for each; None without one, and of others. known: the models that have scored; multiplier: of
        costs."""
        if self.rank != HOME:
            return None
        columns, every = self.columns, range(len(self.columns.lengths))
        rollouts = [columns.rollout(number) for number in range(count)]
        greedy = [Rollout(columns.tokens([at])[0], columns.prompts[at], np.zeros(0)) for at in every[count:]]

        def made(name: str, number: int) -> Floats:
            end = columns.lengths[number]
            return columns.read(name, (number, end - 1, end) if name in OF_RESPONSES else columns.response(number))

        scores = {name: [made(name, at) for at in (every if name == REWARD else range(count))] for name in known}
        given = learned_from(learning, rollouts, greedy, scores, multiplier)
        for number in range(count):
            columns.write_response(ADVANTAGES, number, given.advantages[number])
            for name, own in given.critics.items():
                columns.write_response(returns_of(name), number, own.returns[number])
        return np.concatenate(scores[COST]) if COST in scores else None

    def difference(self, iteration: int) -> float:
        """Returns the largest difference of models' weights to those of one process after an iteration, over the
        largest element of each; 0 on other ranks than 0. Collective."""
        off = [self._off(one, iteration, name) for name, one in self.models.items() if name not in UNTRAINED]
        return float(np.max(off))

    # -- inside ---------------------------------------------------------------------------------------
    def _off(self, one: ModelRank, iteration: int, name: str) -> float:
        assert one.resting is not None, "there was a step"
        mine = state_pieces(one.resting, one.runner.stores)
        every: list[list[Piece]] | None = [[]] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(mine, every, 0, self.group)
        if every is None:
            return 0.0
        found = whole_weights(one.resting.parts, [piece for some in every for piece in some])
        wanted = self.found[iteration].weights[name]
        return float(
            np.max([float((found[of] - value).abs().max() / value.abs().max()) for of, value in wanted.items()])
        )

    def _initial(self) -> Whole:
        return partial(_drawn, drawn_weights(self.model, self.job.seed))


def _drawn(weights: dict[str, Tensor], name: str, layer: int) -> Tensor:
    return weights[name] if name in OF_NO_LAYER else weights[name][layer]
