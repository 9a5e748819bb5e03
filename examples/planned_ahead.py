"""A training loop whose plans are made one batch ahead, by a planner in a process of its own.

    torchrun --nproc-per-node=4 examples/planned_ahead.py

Rank 0 has the planner and sends each plan to all ranks. Printed is how long planning took in all and how much of it the
ranks waited for: the rest was hidden behind training.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import InitVar, dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zbench
import zbench.torch
from zbench.describe.model import Model

MODEL = Model("own", 1, 64, 4, 2, 16, 128, 256, element_bytes=4)
LENGTHS = [[900 + 10 * number, 300, 40 * number + 1, 7, 7] for number in range(8)]  # of every step's batch


@dataclass
class Coming:
    """A step's plans that the planner's process makes; submitted and done are moments of this process."""

    planner: InitVar[ProcessPoolExecutor]
    lengths: InitVar[list[int]]
    submitted: float = field(default_factory=perf_counter)
    done: float = 0.0

    def __post_init__(self, planner: ProcessPoolExecutor, lengths: list[int]) -> None:
        self.plans = planner.submit(zbench.plan, lengths, cluster="local_2x2", model=MODEL, system="nodewise")
        self.plans.add_done_callback(self._note)

    def _note(self, _: object) -> None:
        self.done = perf_counter()

    def wait(self) -> tuple[zbench.StepPlans, float, float]:
        """Returns (the plans, seconds that they took, seconds that this took)."""
        began = perf_counter()
        step = self.plans.result()
        waited = perf_counter() - began
        return step, max(self.done - self.submitted, waited), waited


def planned(batches: list[list[int]], rank: int) -> Iterator[tuple[zbench.StepPlans, float, float]]:
    """Yields (plans, seconds that they took, seconds that rank 0 waited for them) of every batch, on every rank."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as planner:
        coming = Coming(planner, batches[0]) if rank == 0 else None
        for following in [*batches[1:], None]:
            box: list[Any] = [None]
            if coming is not None:
                box[0] = coming.wait()
                coming = Coming(planner, following) if following else None
            dist.broadcast_object_list(box, src=0)
            yield box[0]


class Network(nn.Module):
    """One layer of attention without positions, and a head: what matters here is the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(MODEL.vocab, MODEL.hidden), nn.Linear(MODEL.hidden, 8 * MODEL.head_dim)
        self.head = nn.Linear(MODEL.hidden, MODEL.vocab)

    def forward(self, tokens: Tensor, batch: zbench.torch.PlannedBatch) -> Tensor:
        q, k, v = self.qkv(self.embedding(tokens)).unflatten(1, (8, MODEL.head_dim)).split((4, 2, 2), 1)
        return self.head(batch.attention(q, k, v).flatten(1))


def train(runtime: zbench.torch.Runtime) -> tuple[list[float], float, float]:
    """Returns (the loss of every step, seconds of planning, seconds of it that were waited for)."""
    torch.manual_seed(0)
    model, losses, planning, waiting = Network(), [], 0.0, 0.0
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    for number, (step, took, waited) in enumerate(planned(LENGTHS, runtime.rank)):
        if number:  # nothing can be hidden of the first, in which the planner starts
            planning, waiting = planning + took, waiting + waited
        tokens = torch.arange(int(step.lengths.sum())) % 97
        labels = zbench.torch.next_tokens(tokens, step.lengths)
        loss = torch.zeros(())
        for batch in runtime.micro_batches(step):
            logits = model(batch.scatter(tokens), batch)
            part = zbench.torch.token_loss(logits, batch.scatter(labels), (labels >= 0).sum())
            part.backward()
            loss += part.detach()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses, planning, waiting


if __name__ == "__main__":
    dist.init_process_group("gloo")
    runtime = zbench.torch.Runtime()
    losses, planning, waiting = train(runtime)
    if runtime.rank == 0:
        print("loss of every step:", *(f"{loss:.3f}" for loss in losses))
        waited = f"{waiting * 1e3:.1f} ms were waited for: {1 - waiting / planning:.0%} hidden"
        print(f"planning took {planning * 1e3:.1f} ms, of which {waited}")
    runtime.close()
    dist.destroy_process_group()
