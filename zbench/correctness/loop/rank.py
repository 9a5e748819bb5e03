"""One rank of a loop that is compared with one process."""

from functools import partial

import numpy as np
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.loop.alone import AloneIteration, alone
from zbench.correctness.loop.cases import AloneReport, Loop
from zbench.correctness.steps.dense import drawn_weights
from zbench.runtime.handlers.runner import Whole
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.model_rank import ModelRank
from zbench.runtime.rollouts.policy_job import UNTRAINED, PolicyJob
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
