"""A recorded run made again: the same batches, plans and simulated seconds; a sentence where it cannot be."""

import sys
from pathlib import Path

import pytest

from zbench import __main__
from zbench.record.record import Run, read
from zbench.run.known import Unknown
from zbench.run.parts import TORCH
from zbench.run.replay import Replay

SMALL = ["tracker=none", "baseline=null", "cluster=a800_2x8", "model=llama_3b", "tokens_per_gpu=1024", "steps=2"]


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zbench", *SMALL, "out=r.jsonl", *settings])
    assert __main__.main() == 0
    return read("r.jsonl")[0][-1]


@pytest.mark.parametrize(("system", "tp"), [("zeppelin", 1), ("hydraulis", 1), ("flexsp", 1), ("hydraulis", 2)])
def test_a_step_is_what_it_was(system: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, monkeypatch, f"system={system}", f"parallel.tensor_parallel={tp}")
    replay = Replay.of(run)
    executor = replay.parts.executor
    for line in run.steps:
        batch, plans = replay.step(line)
        result = executor.step(batch, plans)
        assert sum(plan.num_transfers for plan in plans) == line["num_transfers"]
        assert (result.seconds, result.nic_tx_bytes) == (line["seconds"], line["nic_tx_bytes"])


def test_a_record_of_older_keys_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, monkeypatch, "system=zeppelin", "system.routed_transfers=serial", "system.route=false")
    text = Path("r.jsonl").read_text()
    assert text.count('"routed_transfers":') == 2  # in the configuration, and in what was changed of its yaml
    older = text.replace('"routed_transfers":', '"legs":').replace('"list_schedule":', '"order":')
    Path("older.jsonl").write_text(older)
    (read_again,), problems = read("older.jsonl")
    assert not problems
    assert (read_again.start, read_again.steps) == (run.start, run.steps)
    step = run.steps[0]
    assert Replay.of(read_again).step(step)[0].digest == step["batch"]


@pytest.mark.parametrize("system", ["bytescale", "ring"])
def test_a_step_of_stages_is_what_it_was(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = ("cluster.num_nodes=4", "model=llama_7b_pp4", "model.micro_batches=5")
    run = recorded(tmp_path, monkeypatch, f"system={system}", *stages)
    replay = Replay.of(run)
    for line in run.steps:
        batch, plans = replay.step(line)
        assert len(plans) == line["num_micro_batches"]
        assert replay.parts.executor.step(batch, plans).seconds == line["seconds"]


def test_a_trained_run_is_made_again_with_the_cost_its_system_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ranks are real whole steps alone have pipelines, and check=exact computes in float64."""
    run = recorded(tmp_path, monkeypatch, "system=ring")
    run.start["facts"]["simulated"] = False
    run.start["config"]["check"] = ["exact"]
    cost = Replay.of(run).cost
    assert (cost.pipelines, cost.model.element_bytes) == (False, 8)
    run.start["config"]["executor"] = {"_target_": TORCH}
    assert Replay.of(run).cost.pipelines


def test_what_is_gone_or_changed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, monkeypatch, "system=ring")
    with pytest.raises(ValueError, match=f"step 1 of run {run.start['run']} was batch other and is "):
        Replay.of(run).step({**run.steps[1], "batch": "other"})
    with pytest.raises(ValueError, match=r"has times of 3 ranks, and its configuration 16$"):
        Replay.of(run).step({**run.steps[1], "attention_seconds": [1.0] * 3})
    with pytest.raises(ValueError, match=rf"^step 1 of run .* has 3 tokens, and its configuration {16 * 1024}$"):
        Replay.of(run).step({**run.steps[1], "tokens": 3})
    run.start["config"]["system"] = {"_target_": "systems_of_mine.Gone"}
    with pytest.raises(Unknown, match=rf"^run {run.start['run']} names systems_of_mine.Gone, .*; --trust runs it$"):
        Replay.of(run)
    with pytest.raises(ValueError, match=r"cannot be made again from its record: .*systems_of_mine"):
        Replay.of(run, trust=True)
    run.start["config"] = {}
    with pytest.raises(ValueError, match="cannot be made again from its record"):
        Replay.of(run)


def test_a_step_too_large_for_this_machine_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path, monkeypatch, "system=ring")
    run.start["config"]["cluster"]["num_nodes"] = 65536
    line = {**run.steps[0], "attention_seconds": [1.0] * 524288, "tokens": 524288 * 1024}
    told = (
        rf"^step 0 of run {run.start['run']} needs an estimated [\d,.]+ GiB of this machine's memory at least, "
        r"for .* on 524,288 ranks, .*: use less than cluster\.num_nodes=65,536 or tokens=536,870,912 "
    )
    with pytest.raises(ValueError, match=told):
        Replay.of(run).step(line)


@pytest.mark.parametrize("name", ["secret.txt", "secret.jsonl"])
def test_what_a_named_file_holds_is_not_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path, monkeypatch, "system=ring")
    Path(name).write_text('{"password": "swordfish"}\n' if name.endswith("l") else "swordfish\n")
    run.start["config"]["workload"] = {"_target_": "zbench.workloads.lengths_file.LengthsFile", "path": name}
    with pytest.raises(ValueError, match=r"from its record: workload\.(path|field) is ") as told:
        Replay.of(run)
    assert "swordfish" not in str(told.value)
    assert "password" not in str(told.value)
