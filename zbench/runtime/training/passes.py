"""Runs one rank's forward and backward of a micro-batch: how its attention runs, and how long its device takes.

Not gradients' sums, nor the optimizer (zbench.runtime.training.trainer).
"""

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.plans.plan import Plan
from zbench.runtime.job.job import Job
from zbench.runtime.training.attention import Attention, programs_of
from zbench.runtime.training.deepspeed import Attend, DeepSpeed
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.training.parameters import Parameters
from zbench.runtime.training.text import Text

BURSTS = 3  # the first warms up


@dataclass
class Passes:
    """One rank's forward and backward passes."""

    job: Job
    rank: int
    engine: Engine
    parameters: Parameters
    device: torch.device
    deepspeed: DeepSpeed | None = field(default=None, init=False)

    def open(self, plans: tuple[Plan, ...]) -> None:
        """Opens the package that plans ask for. Collective, and once: it takes seconds, which are not the step's."""
        if self.deepspeed is None and any(plan.attention for plan in plans):
            self.engine.board.say("opening deepspeed")
            self.deepspeed = DeepSpeed(self.rank, dist.get_world_size(), self.engine)

    def attends(self, plans: tuple[Plan, ...], where: str) -> list[Attend]:
        """Returns, for every plan, a function that runs its attention."""
        self.engine.board.say(f"{where}, compiling plans")
        return [self._attend(plan) for plan in plans]

    def run(self, one: Text, attend: Attend, num_labels: int, where: str) -> Tensor:
        """Runs forward and backward; returns the rank's part of the loss. num_labels: that the loss is the mean of."""
        part = self._forward(one, attend, num_labels, where)
        self.engine.pace.spend(float(self.job.cost.head_seconds(np.array([len(one.tokens)]))[0]))
        part.backward()
        return part.detach()

    def burst(self, plan: Plan) -> tuple[float, float]:
        """Returns (seconds that this rank's work takes here, all ranks at it at once; seconds that it takes its
        device).

        plan: without messages; a sequence a rank. Gradients are left as they come out.
        """
        nothing = np.zeros(int(plan.tokens_per_rank[self.rank]), np.int64)
        one = Text(nothing, np.arange(len(nothing)), nothing)
        (attend,) = self.attends((plan,), "burst")
        taken, pace = [], self.engine.pace
        for _ in range(BURSTS):
            self.engine.board.wait("burst, barrier before it")
            dist.barrier()
            pace.begin(hurries=True)
            began = perf_counter()
            self.parameters.begin(last=False)
            self.run(one, attend, len(nothing), "burst")
            taken.append(perf_counter() - began)
        return min(taken[1:]), pace.modelled

    def _attend(self, plan: Plan) -> Attend:
        if plan.attention:
            assert self.deepspeed is not None
            return self.deepspeed.attend(plan)
        pair = programs_of(self.engine, plan, self.rank, self.job.cost, self.job.is_paced)
        return lambda q, k, v, where: Attention.apply(q, k, v, self.engine, pair, where)

    def _forward(self, one: Text, run: Attend, num_labels: int, where: str) -> Tensor:
        board, network = self.engine.board, self.parameters.network
        tokens, positions, targets = (
            torch.from_numpy(x).to(self.device) for x in (one.tokens, one.positions, one.targets)
        )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            o = run(q, k, v, f"{where}, layer {layer}")
            board.say(f"{where}, layer {layer}")
            return o

        board.say(where)
        counted = None if one.counted is None else torch.from_numpy(one.counted).to(self.device)
        part: Tensor = network(tokens, positions, targets, attend, num_labels, counted)
        return part
