"""python -m zbench executor=torch, as a user types it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, called
from tests.helpers.processes import until
from zbench.record.record import read
from zbench.run.replay import Replay

SMALL = (
    "executor=torch",
    "model=tiny",
    "cluster=local_2x2",
    "workload=pystdlib",
    "steps=2",
    "tokens_per_gpu=100",
    "tracker=none",
)


def command(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, *before, "-m", "zbench", *words]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def lines(path: Path, kind: str) -> list[dict[str, object]]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == kind]


def test_two_systems_train_alike_and_pass_both_checks(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = command(*SMALL, "system=zeppelin", f"out={out}", "check=[exact,bytes]", before=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)  # the driver never imports it
    assert "check=exact holds" in done.stdout
    assert "check=bytes holds" in done.stdout
    assert "MEASURED, executor torch" in done.stdout
    about, steps = lines(out, "about"), lines(out, "step")
    assert [one["ranks"][0]["tokens"] for one in about] == ["text", "text"]  # type: ignore[index]
    ring, zeppelin = ([step["loss"] for step in steps[at : at + 2]] for at in (0, 2))
    assert ring == pytest.approx(zeppelin, rel=1e-12)
    assert ring[0] != ring[1]


def test_whole_steps_train_in_groups_and_shards(tmp_path: Path) -> None:
    """The record has every account of the step, and the table shows them; the run is made again as it is played."""
    out, trace = tmp_path / "runs.jsonl", tmp_path / "step.json"
    words = ("parallel.tensor_parallel=2", "sharding=zero3", "sharding.window=0")
    done = command(
        *SMALL, *words, "baseline=null", "check=[exact,bytes]", f"out={out}", f"trace={trace}",
        before=("-X", "importtime"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)  # the driver never imports it
    for told in (
        "check=exact holds",
        "what the step says of every queue",
        "2 tensor-parallel groups of 2 GPUs each",
        "NICs send for",
    ):
        assert told in done.stdout
    ((run,), problems) = read(str(out))
    assert not problems
    for step in run.steps:
        assert {"parameters", "gradients"} <= step["nic_tx_for"].keys()
        assert {"attention", "linear", "waiting_link", "waiting_rank", "waiting_parameters"} <= step[
            "seconds_for"
        ].keys()
        assert [len(step[name]) for name in ("attention_seconds", "peak_bytes", "nic_tx_bytes")] == [4, 4, 2]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {one["pid"] for one in events if one["name"].startswith("optimizer ")} == {0, 1}
    batch, plans = Replay.of(run).step(run.steps[0])
    assert Replay.of(run).parts.executor.step(batch, plans).nic_tx_for.keys() == run.steps[0]["nic_tx_for"].keys()


def test_plans_of_attention_train_alike(tmp_path: Path) -> None:
    """executor=torch_attention, with torch's modules around plans, has the losses of whole steps."""
    out = tmp_path / "runs.jsonl"
    for executor in ("torch_attention", "torch"):
        words = (*SMALL[1:], f"executor={executor}", "cluster.num_nodes=1", "baseline=null", f"out={out}")
        done = called(*words, "check=[exact,bytes]")
        assert done.returncode == 0, done.stderr
        assert f"MEASURED, executor {executor};" in done.stdout
    losses = [step["loss"] for step in lines(out, "step")]
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-12)


TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
)


def test_torchrun_joins(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = command(*SMALL, "cluster.num_nodes=1", "baseline=null", f"out={out}", before=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert len(lines(out, "step")) == 2
    assert done.stdout.count("MEASURED") == 1  # rank 0 alone speaks


def test_torchruns_report_ends_with_our_sentence(tmp_path: Path) -> None:
    done = command(*SMALL, f"out={tmp_path / 'runs.jsonl'}", before=TORCHRUN)
    told = "cluster.num_nodes x cluster.gpus_per_node is 4; 2 processes were started"
    assert done.returncode == 1  # torchrun's, whatever ours was
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert f"zbench: {told}" in said
    assert said[-2].split(" : ") == ["  traceback", told]


def test_a_sweep_measures_its_baseline_once(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = called("-m", *SMALL, "steps=1", "cluster.num_nodes=1", "system=ulysses,zeppelin", f"out={out}")
    assert done.returncode == 0, done.stderr
    runs, _ = read(str(out))
    assert [run.start["config"]["choices"]["system"] for run in runs] == ["static_best", "ulysses", "zeppelin"]
    assert "1 run was not made again, as it was made or recorded before." in done.stdout


def test_a_checkpoint_is_resumed(tmp_path: Path) -> None:
    out, folder = tmp_path / "runs.jsonl", tmp_path / "point"
    common = (*SMALL, "cluster.num_nodes=1", "baseline=null", f"out={out}")
    done = called(*common, "executor.checkpoint_every=1", f"executor.checkpoint={folder}")
    assert done.returncode == 0, done.stderr
    done = called(*common, "steps=3", f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert [step["step"] for step in lines(out, "step")] == [0, 1, 2]
    runs, problems = read(str(out))
    assert not problems
    assert [run.about is not None for run in runs] == [True, True]
    for words, told in (
        (("steps=2",), "steps is 2; resume="),
        (("steps=4", "seed=7"), "its run had seed 0, and this one has 7"),
        (("steps=4", "model.ffn_hidden=100"), "its run had model.ffn_hidden 192, and this one has 100"),
    ):
        done = called(*common, *words, f"resume={folder}")
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
    assert len(read(str(out))[0]) == 2  # nothing was begun


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_was_finished(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    line = [sys.executable, "-m", "zbench", *SMALL, "steps=100000", "baseline=null", f"out={out}"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert until(lambda: out.exists() and out.read_bytes().count(b"\n") > 3, 200)
            run.send_signal(signal.SIGINT)
            _, told = run.communicate(timeout=200)
        finally:
            run.kill()
    assert run.returncode == 130
    assert "stopped" in told
    assert "Traceback" not in told
    assert lines(out, "end")[0]["status"] == "interrupted"
    assert lines(out, "step")


def test_bad_input_is_told_in_a_sentence(tmp_path: Path) -> None:
    """The command as a process of its own says it, too; more lines are in tests/helpers/bad_inputs.txt."""
    done = command(*SMALL, "executor.kernel=flash-attn-2", f"out={tmp_path / 'runs.jsonl'}")
    assert done.returncode == 2, done.stderr
    assert "takes bfloat16, and model.element_bytes is 4 here" in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("zbench:")]) == 1
