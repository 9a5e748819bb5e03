"""Runs of workloads that say which labels count: what is recorded, made again and left as it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.run.test_run import Lengths, recorded, request
from zbench.describe.batch import Batch
from zbench.run.checks.contract import PlugInError
from zbench.run.replay import Replay
from zbench.run.run import run_with_baseline
from zbench.simulated.executor import Simulated


class Labelled(Lengths):
    """The same sequences, of which every third label counts, from step `silent` on none."""

    def __init__(self, seed: int, tokens: int, silent: int = 1000) -> None:
        super().__init__(seed, tokens)
        self.silent = silent

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        return replace(batch, counts=(np.arange(batch.num_tokens) % 3 == 0) & (step < self.silent))


def test_labels_that_count_are_recorded_and_seconds_are_as_without(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for name in ("test_run.Lengths", "test_run_labels.Labelled"):
        run_with_baseline(request(out, workload={"_target_": f"tests.run.{name}"}))
    every, some = recorded(out)
    assert len(every.steps) == len(some.steps) > 0
    for one, other in zip(every.steps, some.steps, strict=True):
        assert "counted_labels" not in one
        assert other["counted_labels"] == -(-other["tokens"] // 3)
        assert one["batch"] != other["batch"]
        for name in ("tokens", "seconds", "bound_seconds", "peak_bytes", "nic_tx_bytes", "num_transfers"):
            assert one[name] == other[name], name
    replay = Replay.of(some, trust=True)
    batch, plans = replay.step(some.steps[0])
    assert batch.counted_labels == some.steps[0]["counted_labels"]
    assert Simulated(replay.cost).step(batch, plans).seconds == some.steps[0]["seconds"]


def test_a_batch_without_a_label_that_counts_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    told = r"Labelled\.batch\(1\) gave counts that are all false; the loss is the mean over labels that count, so at "
    with pytest.raises(PlugInError, match=told):
        run_with_baseline(request(out, workload={"_target_": "tests.run.test_run_labels.Labelled", "silent": 1}))
    (found,) = recorded(out)
    assert (found.end or {})["status"] == "failed"
