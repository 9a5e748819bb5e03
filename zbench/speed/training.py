"""Times and profiles one rank's training steps: a rank of executor=torch_attention, in this process and alone.

Not of executor=torch: whole steps compile no elementwise work, have no fused optimizer, and cannot make a layer again
but for its attention. Asked here is how fast one GPU trains by zbench; what whole steps take, python -m
zbench.predicted measures.

A batch is one plan, all of its sequences on the rank: what that executor does with any system on one GPU, whose
planner's micro-batches would follow the cost model's memory instead of the executor's.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import Workload
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.record.flops import Facts, flops
from zbench.runtime.job.footprint import LevelChoice, choose_level
from zbench.runtime.job.job import AdamW, Job, Report
from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.processes.host import taken_bytes
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.runtime.training.trainer import Trainer
from zbench.speed.profile import time_shares

HOST = "127.0.0.1"
PARAMETERS = "replicated"  # on one rank there is nothing to share
PATIENCE = 600.0  # seconds for a collective of one rank: never needed


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured steps of one training. seconds, loss: of each step. mfu: of all of them, causal FLOPs that the
    result needs over the peak's. attention_seconds: of all. peak_bytes: of tensors. taken_bytes: of the device, after
    all steps; what that is more are the context and the allocator's fragments. profile: device seconds by what they
    were spent on, and idle ones, of a further step."""

    layers: int
    choice: LevelChoice
    kernel: str
    elementwise: str
    seconds: list[float]
    loss: list[float]
    tokens: int
    mfu: float
    attention_seconds: float
    peak_bytes: int
    taken_bytes: int
    launches: int
    profile: dict[str, float]

    def told(self) -> dict[str, Any]:
        """Returns the measurements as plain values."""
        return asdict(self)


def single_rank_plan(batch: Batch, num_heads: int) -> Plan:
    """Plans all sequences on one rank, one attend."""
    builder = Builder(batch.lengths, 1, num_heads)
    everyone = np.arange(len(batch.lengths))
    local(builder, everyone, np.zeros_like(everyone))
    return reverse(builder.build(), "keep")


def most_layers(cost: Cost, tokens: int, capacity_bytes: int, levels: tuple[str, ...]) -> int:
    """Returns as many of the model's layers as are predicted to fit with one of `levels`; 0 where not even one does."""
    batch = Batch(np.array([tokens]), 0, 0)
    for layers in range(cost.model.num_layers, 0, -1):
        fewer = replace(cost, model=replace(cost.model, num_layers=layers))
        plans = (single_rank_plan(batch, cost.model.num_heads),)
        if choose_level(plans, fewer, PARAMETERS, capacity_bytes, levels).fits:
            return layers
    return 0


@contextmanager
def trainer_of(cost: Cost, workload: Workload, kernel: str) -> Iterator[Trainer]:
    """Makes a rank that is all ranks, on this process's GPU if there is one."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    board = Board(bytearray(SLOT_BYTES), 0)
    rendezvous = Rendezvous(0, 1, 0, 1, HOST, store.port, "speed", PATIENCE, False, board)
    job = Job(cost, workload, 0, kernel, PARAMETERS, AdamW(), False)
    trainer = Trainer(0, 1, rendezvous, job)
    try:
        yield trainer
    finally:
        trainer.close()


def train(trainer: Trainer, workload: Workload, facts: Facts, steps: int, levels: tuple[str, ...]) -> Measured:
    """Trains `steps` steps of the workload's batches, and one more under a profiler.

    Each was run once before, which does not count: kernels that are made for a shape are made then.
    """
    trainer.job = replace(trainer.job, workload=workload)
    cost, about = trainer.job.cost, trainer.about()
    batches = [workload.batch(step) for step in range(steps + 1)]
    plans = [(single_rank_plan(batch, cost.model.num_heads),) for batch in batches]
    choices = [choose_level(plan, cost, PARAMETERS, about.memory_bytes, levels) for plan in plans]
    choice = max(choices, key=lambda one: one.predicted_bytes)

    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)  # or a workload would have the one's before it

    def step(at: int) -> Report:
        return trainer.step(batches[at], plans[at], train=True, recompute=choice.level)

    for at in range(len(batches)):
        step(at)
    reports = [step(at) for at in range(steps)]
    counted = batches[:steps]
    needed = sum(flops(facts, one.num_tokens, one.sum_squared, int(one.lengths.max())) for one in counted)
    seconds = [report.seconds for report in reports]
    with torch.profiler.profile() as profiler:
        seen = step(steps)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        found = time_shares(json.loads(trace.read_text())["traceEvents"])
    return Measured(
        layers=cost.model.num_layers,
        choice=choice,
        kernel=about.kernel,
        elementwise=about.elementwise,
        seconds=seconds,
        loss=[report.loss for report in reports],
        tokens=sum(one.num_tokens for one in counted),
        mfu=needed / (sum(seconds) * facts.num_gpus * facts.peak_flops),
        attention_seconds=sum(report.attention_seconds for report in reports),
        peak_bytes=max(report.peak_bytes for report in reports),
        taken_bytes=taken_bytes(trainer.device),
        launches=found.launches,
        profile={**found.seconds, "idle": max(0.0, seen.seconds - found.busy)},
    )
