"""One process of those that generate by Seesaw, compared with one process."""

from typing import Any

import torch.distributed as dist

from zbench.correctness.loop.reference import generated_alone
from zbench.correctness.seesaw.cases import FOUR_LAYERS, LIMIT, seesaw_prompts
from zbench.correctness.steps.dense import drawn_weights
from zbench.describe.arrays import Ints
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.rollouts.host_memory import HostKeys, HostWeights
from zbench.runtime.rollouts.sampling import generator_of
from zbench.runtime.rollouts.seesaw_job import SeesawJob, SeesawReport
from zbench.runtime.rollouts.seesaw_rank import SeesawRank, opened_places


class SeesawCheckRank:
    """A process. argument: nothing."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        assert argument is None
        self.rank, self.num_ranks, self.board = rank, num_ranks, rendezvous.board
        rendezvous.open("cpu")

    def alone(self, seed: int) -> dict[int, Ints]:
        """Generates in one process; nothing on other ranks than 0."""
        if self.rank:
            return {}
        weights = drawn_weights(FOUR_LAYERS, seed)
        return {
            number: generated_alone(weights, prompt, generator_of(seed, 0, number), LIMIT).tokens
            for number, prompt in enumerate(seesaw_prompts(seed))
        }

    def run(self, job: SeesawJob, folder: str) -> SeesawReport | None:
        """Generates by a pair of layouts; None where the rank has no place in it. folder: of files that processes
        share. Collective."""
        weights = HostWeights(job.model, f"{folder}/weights")
        if self.rank == 0:
            weights.write(drawn_weights(job.model, job.seed))
        places = opened_places(job, self.rank)
        dist.barrier()  # weights are written, and everybody is in every group
        found = None
        if places is not None:
            keys = HostKeys(job.model, f"{folder}/keys_{places[0].first}", job.host_tokens)
            found = SeesawRank(job, places, weights, keys, self.board.say).generate(seesaw_prompts(job.seed))
        dist.barrier()
        return found
