"""A training loop whose plans are made one batch ahead, by a planner in a process of its own.

    torchrun --nproc-per-node=4 examples/planned_ahead.py

Rank 0 has the planner and sends each plan to all ranks. Printed is how long planning took in all, how much of it the
ranks waited for - the rest was hidden behind training - and how many plans were there when they were asked for. All of
it is hidden where a step takes longer than a plan, which these batches are long enough for. With --nproc-per-node=1
there is one rank, and on two cores one for the planner.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import InitVar, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zbench
import zbench.torch
from zbench.describe.model import Model

MODEL = Model("own", 1, 64, 4, 2, 16, 128, 256, element_bytes=4)
Plan = Callable[[list[int]], zbench.StepPlans]
LENGTHS = [[3600 + 40 * number, 1200, 160 * number + 4, 28, 28] for number in range(8)]  # of every step's batch
READY = 1e-3  # seconds that asking for a plan takes at most, where it is there


@dataclass
class Coming:
    """A step's plans that `plan` makes in the planner's process; submitted and done are moments of this process."""

    planner: InitVar[ProcessPoolExecutor]
    lengths: InitVar[list[int]]
    plan: InitVar[Plan]
    submitted: float = field(default_factory=perf_counter)
    done: float = 0.0

    def __post_init__(self, planner: ProcessPoolExecutor, lengths: list[int], plan: Plan) -> None:
        self.plans = planner.submit(plan, lengths)
        self.plans.add_done_callback(self._note)

    def _note(self, _: object) -> None:
        self.done = perf_counter()

    def wait(self) -> tuple[zbench.StepPlans, float, float]:
        """Returns (the plans, seconds that they took, seconds that this took)."""
        began = perf_counter()
        step = self.plans.result()
        waited = perf_counter() - began
        done = self.done or perf_counter()  # a callback may come later than the result
        return step, max(done - self.submitted, waited), waited


def plan_nodewise(lengths: list[int], cluster: str = "local_2x2") -> zbench.StepPlans:
    """Returns the plans of a step; what the planner's process runs."""
    return zbench.plan(lengths, cluster=cluster, model=MODEL, system="nodewise", pipelines=False)


def planned(batches: list[list[int]], rank: int, plan: Plan) -> Iterator[tuple[zbench.StepPlans, float, float]]:
    """Yields (plans, seconds that they took, seconds that rank 0 waited for them) of every batch, on every rank."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as planner:
        coming = Coming(planner, batches[0], plan) if rank == 0 else None
        for following in [*batches[1:], None]:
            box: list[Any] = [None]
            if coming is not None:
                box[0] = coming.wait()
                coming = Coming(planner, following, plan) if following else None
            dist.broadcast_object_list(box, src=0)
            yield box[0]


class TokenModel(nn.Module):
    """One layer of attention without positions, and a head: what matters here is the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(MODEL.vocab, MODEL.hidden), nn.Linear(MODEL.hidden, 8 * MODEL.head_dim)
        self.head = nn.Linear(MODEL.hidden, MODEL.vocab)

    def forward(self, tokens: Tensor, batch: zbench.torch.PlannedBatch) -> Tensor:
        q, k, v = self.qkv(self.embedding(tokens)).unflatten(1, (8, MODEL.head_dim)).split((4, 2, 2), 1)
        return self.head(batch.attention(q, k, v).flatten(1))


def train(runtime: zbench.torch.Runtime, plan: Plan = plan_nodewise) -> tuple[list[float], list[tuple[float, float]]]:
    """Returns (the loss of every step; of every step but the first, seconds of planning and of waiting for it)."""
    torch.manual_seed(0)
    model, losses, times = TokenModel(), [], []
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    for step, took, waited in planned(LENGTHS, runtime.rank, plan):
        times.append((took, waited))
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
    return losses, times[1:]  # nothing can be hidden of the first, in which the planner starts


if __name__ == "__main__":
    dist.init_process_group("gloo")
    runtime = zbench.torch.Runtime()
    losses, times = train(runtime, partial(plan_nodewise, cluster="one_gpu" if runtime.num_ranks == 1 else "local_2x2"))
    if runtime.rank == 0:
        planning, waiting = (sum(column) for column in zip(*times, strict=True))
        print("loss of every step:", *(f"{loss:.3f}" for loss in losses))
        hidden = f"{waiting * 1e3:.1f} ms were waited for: {1 - waiting / planning:.0%} hidden"
        ready = sum(waited < READY for _, waited in times)
        print(f"planning took {planning * 1e3:.1f} ms, of which {hidden}; {ready} of {len(times)} plans were there")
    runtime.close()
    dist.destroy_process_group()
