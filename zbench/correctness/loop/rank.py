"""One rank of a loop that is compared with one process."""

from functools import partial

import numpy as np
import torch.distributed as dist
from torch import Tensor

from zbench.correctness.loop.cases import AloneReport
from zbench.correctness.loop.reference import AloneIteration, alone
from zbench.correctness.steps.dense import drawn_weights
from zbench.runtime.handlers.runner import Whole
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.policy_job import PolicyJob
from zbench.runtime.rollouts.policy_rank import PolicyRank
from zbench.runtime.stepping.comparison import Piece, state_pieces, whole_weights
from zbench.runtime.stepping.weights import OUTSIDE


class LoopRank(PolicyRank):
    """A rank of a loop. Rank 0 runs the loop by itself, too, and keeps what that came to."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, job: PolicyJob) -> None:
        super().__init__(rank, num_ranks, rendezvous, job)
        self.found: list[AloneIteration] = []

    def alone(self) -> list[AloneReport]:
        """Runs the loop in one process; nothing on other ranks than 0."""
        if self.rank == 0:
            self.board.say("the loop in one process")
            self.found = alone(drawn_weights(self.model, self.job.seed), self.job.seed)
        return [AloneReport(one.sequences, one.losses, one.scales, one.clipped) for one in self.found]

    def difference(self, iteration: int) -> float:
        """Returns the largest difference of weights to those of one process after an iteration, over the largest
        element of each; 0 on other ranks than 0. Collective."""
        assert self.resting is not None, "there was a step"
        mine = state_pieces(self.resting, self.runner.stores)
        every: list[list[Piece]] | None = [[]] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(mine, every, 0, self.group)
        if every is None:
            return 0.0
        found = whole_weights(self.resting.parts, [piece for one in every for piece in one])
        wanted = self.found[iteration].weights
        off = [float((found[name] - value).abs().max() / value.abs().max()) for name, value in wanted.items()]
        return float(np.max(off))

    # -- inside ---------------------------------------------------------------------------------------
    def _initial(self) -> Whole:
        return partial(_drawn, drawn_weights(self.model, self.job.seed))


def _drawn(weights: dict[str, Tensor], name: str, layer: int) -> Tensor:
    return weights[name] if name in OUTSIDE else weights[name][layer]
