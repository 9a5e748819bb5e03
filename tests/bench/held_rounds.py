"""Bytes that processes have at their fullest beside those that the same run has simulated: rounds, and emulated nodes.

python -m tests.bench.held_rounds [SYSTEM ...]   # rounds, docs/memory/measured.md's table: five minutes
python -m tests.bench.held_rounds desk           # steps and rounds on emulated nodes, where this machine has these

Four GPUs on two nodes, four layers with feed-forwards of 64 columns, float64, two rounds of four steps of 120 tokens.
Compared is the fullest process of the second round, as the first one has fewer averages under way; measured are cells
and logits after every operation, and of averages under way all that waits to be added to them. On emulated nodes ranks
are weighed here alone, as it takes time that pacing leaves to nobody.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import environ
from typing import Any

import numpy as np

from tests.desk.test_step_executor import cost_of as cost_of_desk
from tests.runtime.test_conformance import MODEL
from tests.runtime.test_rounds import WORKLOAD
from tests.runtime.test_step_executor import cost_of
from tests.step.test_optimizer_on_hosts import HOST
from zbench.api.parts import system_named
from zbench.cost.job import make_cost, worker_cost
from zbench.describe.arrays import Ints
from zbench.describe.batch import Batch
from zbench.describe.sync import CO2, EVERY, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.desk.step_executor import Desk
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.protocols import Executor, System
from zbench.interfaces.result import StepResult
from zbench.runtime.job.step_job import StepJob, StepReport
from zbench.runtime.step_executor import Torch
from zbench.runtime.worker_clocks import StepClock
from zbench.simulated.executor import Simulated

SYSTEMS = ("ring", "ulysses", "zeppelin")
ROUND = 4  # steps
SYNCS: Mapping[str, RoundSync] = {
    "slowmo": RoundSync(SLOWMO, ROUND, "node", lr=0.8, momentum=0.5),
    "co2": RoundSync(CO2, ROUND, "node", momentum=0.4, penalty="gap_aware"),
    "streaming_diloco": RoundSync(STREAMING_DILOCO, ROUND, "node", lr=0.6, momentum=0.7, fragments=2, delay=1),
    "streaming_diloco, ranks": RoundSync(STREAMING_DILOCO, ROUND, "rank", lr=0.6, momentum=0.7, fragments=2, delay=3),
}
MEMORIES: Mapping[str, Mapping[str, Any]] = {
    "ZeRO-2": {"sharding": "zero2"},
    "chunked, 8 tokens, ZeRO-3": {"sharding": "zero3", "recompute": "chunked", "mlp_chunk_tokens": 8},
    "state on hosts, ZeRO-2": {"sharding": "zero2", "offload": "optimizer"},
    "as alst, 8 tokens, ZeRO-3": {
        "sharding": "zero3",
        "recompute": "full",
        "offload": "inputs_and_optimizer",
        "mlp_chunk_tokens": 8,
        "loss_chunk_tokens": 8,
    },
}
WIDE = {"num_layers": 4, "ffn_hidden": 64, "num_kv_heads": 4}


@dataclass(slots=True)
class WeighedDesk(Desk):
    """A desk whose ranks are weighed, whatever time that takes of their processors."""

    def job(self) -> StepJob:
        """Returns what every rank is told."""
        return replace(Desk.job(self), is_weighed=True)

    def result(
        self, batch: Batch, reports: Sequence[StepReport], checks: dict[str, float], clock: StepClock | None = None
    ) -> StepResult:
        """Makes a step's result, however late real work was: seconds do not count here."""
        return Torch.result(self, batch, reports, checks, clock)


@dataclass(frozen=True)
class HeldRounds:
    """The bytes of every GPU at its fullest in the last round, or of all steps, int64 [GPUs]: by the simulated run's
    account, and as measured."""

    accounted: Ints
    measured: Ints

    @property
    def fullest(self) -> tuple[int, int]:
        """The bytes of the fullest process, accounted and measured."""
        return int(self.accounted.max()), int(self.measured.max())

    @property
    def over(self) -> Ints:
        """The bytes by which every process has more than its account says, int64 [GPUs]."""
        return self.measured - self.accounted


def held_rounds(system: str, sync: RoundSync, memory: Mapping[str, Any], desk: bool = False) -> HeldRounds:
    """Runs two rounds on processes and simulated, or two steps where ranks come together in every one."""
    one = (cost_of_desk if desk else cost_of)(2, 2, **({} if desk else {"model": MODEL}))
    model = replace(one.model, **{**WIDE, **memory})
    cost = make_cost(replace(one.cluster, **({} if desk else HOST)), model, pipelines=False)
    settings: dict[str, Any] = {"seed": 3, "warmup": 0, "sync": sync, "check": ()}
    executed = (WeighedDesk if desk else Torch)(cost, WORKLOAD, **settings)
    own, steps = (worker_cost(cost, sync), 2 * ROUND) if sync.in_rounds else (cost, 2)
    planner, _ = system_named(system, own, {})
    if sync.in_rounds:
        planner = WorkerPlans(planner, cost.cluster.num_ranks // own.cluster.num_ranks)
    second = slice(ROUND if sync.in_rounds else 0, None)
    played = list(_results(planner, Simulated(cost, sync=sync), steps))[second]
    found = list(_results(planner, executed, steps))[second]
    accounted, measured = [one.peak_bytes for one in played], [one.store_bytes for one in found]
    return HeldRounds(np.max(accounted, axis=0), np.max(measured, axis=0))


def _results(planner: System, executor: Executor, steps: int) -> Iterator[StepResult]:
    """Yields the results of a run's steps."""
    try:
        executor.start()
        for step in range(steps):
            batch = WORKLOAD.batch(step)
            yield executor.step(batch, planner.plan(batch))
    finally:
        executor.stop()


def main(words: Sequence[str]) -> None:
    """Prints the table: of the fullest process what is accounted, what is measured and the difference."""
    environ["OMP_NUM_THREADS"] = "1"
    desk = "desk" in words
    syncs = {"every_step": EVERY, "slowmo": SYNCS["slowmo"]} if desk else SYNCS
    memories = {name: of for name, of in MEMORIES.items() if not (desk and "offload" in of)}
    print(f"| system | sync | {' | '.join(memories)} |\n" + "|---" * (2 + len(memories)) + "|")
    over = list[float]()
    for system in [one for one in words if one != "desk"] or SYSTEMS:
        for name, sync in syncs.items():
            cells = []
            for memory in memories.values():
                of = held_rounds(system, sync, memory, desk)
                said, has = of.fullest
                cells.append(f"{said:,}, {has:,}, {100 * (has / said - 1):+.1f} %")
                over += (of.over / of.accounted).tolist()
            print(f"| {system} | {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nof any process: {100 * min(over):+.2f} to {100 * max(over):+.2f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
