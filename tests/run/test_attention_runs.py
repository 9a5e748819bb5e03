"""What runs of attention's plans take is predicted by whole steps that are told how these executors train."""

from dataclasses import replace
from typing import Any

import pytest

from tests.run.test_replay import recorded
from zbench.describe.overlap import FLAT, HIERARCHICAL
from zbench.record.record import Run
from zbench.run.replay import Replay

TORCH = "zbench.runtime.attention_executor.TorchAttention"
PACKS = ("system=local_packing", "system.pack_tokens=512", "workload=fixed", "workload.length=256")


def as_if_measured(run: Run, backend: str = "gloo", staged: bool = False, **executor: Any) -> Run:
    run.start["facts"]["simulated"] = False
    run.start["config"]["executor"] = {"_target_": TORCH, **executor}
    about = {"kind": "about", "run": run.start["run"], "ranks": [{"backend": backend, "staged": staged}]}
    return replace(run, about=about)


@pytest.fixture
def run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    return recorded(tmp_path, monkeypatch, "system=ring", "sharding=zero1")


@pytest.mark.parametrize(("parameters", "sharding"), [(None, "none"), ("replicated", "none"), ("sharded", "zero3")])
def test_parameters_are_whole_or_cut_as_the_executor_has_them(run: Run, parameters: str | None, sharding: str) -> None:
    """Planners go by the run's own strategy."""
    replay = Replay.of(as_if_measured(run, parameters=parameters))
    assert replay.whole_steps.cost.model.sharding == sharding
    assert replay.cost.model.sharding == "zero1"
    found = replay.played(run.steps[0])
    assert ("parameters" in found.nic_tx_for) == (sharding == "zero3")


@pytest.mark.parametrize(
    ("backend", "staged", "collectives"),
    [("gloo", False, HIERARCHICAL), ("gloo", True, FLAT), ("nccl", False, FLAT)],
)
def test_on_cpus_gradients_are_reduced_in_two_levels(run: Run, backend: str, staged: bool, collectives: str) -> None:
    measured = as_if_measured(run, backend, staged)
    assert Replay.of(measured).whole_steps.collectives == collectives
    assert Replay.of(replace(measured, about=None)).whole_steps.collectives == FLAT


def test_as_much_is_made_again_as_was(run: Run) -> None:
    replay, line = Replay.of(as_if_measured(run)), run.steps[0]
    none, full = (replay.played({**line, "recompute": {"level": level}}) for level in ("none", "full"))
    assert replay.played({**line, "recompute": {}}) == none
    assert "recomputation" not in none.seconds_for
    assert min(full.seconds_for["recomputation"]) > 0
    assert full.seconds > none.seconds


def test_what_no_whole_step_describes_is_a_sentence(run: Run) -> None:
    replay, line = Replay.of(as_if_measured(run)), run.steps[0]
    told = rf"^step 0 of run {run.start['run']} recomputed 'linear', all of a layer but its attention; whole steps, "
    with pytest.raises(ValueError, match=told):
        replay.played({**line, "recompute": {"level": "linear"}})


def test_sharded_parameters_are_reduced_once_a_step_by_the_executor_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path, monkeypatch, *PACKS, "sharding=zero3")
    replay = Replay.of(as_if_measured(run))
    with pytest.raises(ValueError, match=r"^step 0 of run \S+ has \d+ micro-batches and sharded parameters; executor="):
        replay.played(run.steps[0])
