"""Simulated seconds of every system and workload, on a clock that only the simulator advances: no noise.

Not collected by default: `make bench`. The runs are those of results/ci/base.jsonl, made again from their
configuration. Beside each time stand the exact counts of transfers and NIC bytes, asserted against that record: where
a change moves them on purpose, `make baseline` writes a new one.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.proof.verify import verify_step
from zbench.record.record import Run, read
from zbench.record.rows import label
from zbench.run.replay import Replay

RUNS = read(str(Path(__file__).parents[2] / "results" / "ci" / "base.jsonl"))[0]


class Clock:
    """Stands still but for what is simulated."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{label(run.start, 'system')}-{label(run.start, 'workload')}")
def test_step(benchmark: Callable, run: Run) -> None:
    """A round a recorded step: least, mean and largest are over batches."""
    replay, steps = Replay.of(run), iter(run.steps)
    executor = replay.parts.executor
    executor.start()

    def step(line: dict) -> None:
        batch, plans = replay.step(line)
        verify_step(batch, plans)
        result = executor.step(batch, plans)
        CLOCK.seconds += result.seconds
        assert sum(plan.num_transfers for plan in plans) == line["num_transfers"]
        assert (result.nic_tx_bytes, result.nic_rx_bytes) == (line["nic_tx_bytes"], line["nic_rx_bytes"])

    benchmark.pedantic(step, setup=lambda: ((next(steps),), {}), rounds=len(run.steps))
    benchmark.extra_info["transfers"] = [line["num_transfers"] for line in run.steps]
    benchmark.extra_info["nic_bytes"] = [sum(line["nic_tx_bytes"]) for line in run.steps]
