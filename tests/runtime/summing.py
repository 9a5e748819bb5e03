"""A rank that sums gradients in two levels."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training import reduction
from zbench.runtime.training.reduction import TwoLevel

NODES, PER_NODE = 2, 3
SIZES = (6, 300, 3000, 12)  # all of them multiples of the ranks; 3000 is more than the bucket below
BUCKET = 1000


def piece(rank: int, size: int) -> Tensor:
    return torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * rank + size))


class Summing:
    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        self.rank = rank
        rendezvous.open("cpu")
        reduction.BUCKET = BUCKET

    def rounds(self) -> list[list[Tensor]]:
        """The sums of SIZES, twice: what is finished can be started again."""
        one, rounds = TwoLevel(NODES, PER_NODE), []
        for _ in range(2):
            pieces = [piece(self.rank, size) for size in SIZES]
            for data in pieces:
                one.start(data)
            one.finish()
            rounds.append(pieces)
        one.close()
        dist.barrier()
        return rounds
