"""Gradients summed in two levels: every rank has the sum, bit for bit, and every rank sends its share across nodes."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from zbench.runtime import reduction
from zbench.runtime.reduction import TwoLevel

NODES, PER_NODE = 2, 3
SIZES = (6, 300, 3000, 12)  # all of them multiples of the ranks; 3000 is more than the bucket below
BUCKET = 1000


def piece(rank: int, size: int) -> Tensor:
    return torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * rank + size))


def rank_main(rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    reduction.BUCKET = BUCKET
    world = NODES * PER_NODE
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    one, rounds = TwoLevel(NODES, PER_NODE), []
    for _ in range(2):  # what is finished can be started again
        pieces = [piece(rank, size) for size in SIZES]
        for data in pieces:
            one.start(data)
        one.finish()
        rounds.append(pieces)
    one.close()
    torch.save(rounds, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.timeout(120)
def test_every_rank_has_the_sum(tmp_path: Path) -> None:
    spawn(rank_main, (tmp_path,), nprocs=NODES * PER_NODE)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(NODES * PER_NODE)]
    for at, size in enumerate(SIZES):
        total = torch.stack([piece(rank, size) for rank in range(NODES * PER_NODE)]).sum(0)
        for rounds in found:
            assert all(torch.equal(pieces[at], found[0][0][at]) for pieces in rounds)
        torch.testing.assert_close(found[0][0][at], total, rtol=1e-14, atol=0)
