"""python -m zbench.predicted: a row a workload, nothing measured twice; real runs are
tests/project/test_gpu_session.py's."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

import zbench.__main__
from zbench import CONF
from zbench.predicted import __main__ as predicted
from zbench.predicted.__main__ import WORKLOADS, error
from zbench.run.parts import TORCH


class Ranks:
    """Stands for python -m zbench executor=torch: its steps are a simulated run's, and take `slower` times as long."""

    def __init__(self, base: Path, slower: float = 1.0) -> None:
        self.lines = [json.loads(line) for line in base.read_text().splitlines()]
        self.slower, self.ran, self.fails = slower, [], ()  # type: ignore[var-annotated]
        self.code = 0

    def run(self, command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        words = command[3:]
        path = Path(words[-1].removeprefix("out="))
        self.ran.append(path.stem)
        if self.code:
            return subprocess.CompletedProcess(command, self.code)
        lines = self.lines[:-1] if path.stem in self.fails else self.lines  # a failed one has no end
        with path.open("a") as file:
            for line in lines:
                own: dict[str, Any] = {"run": f"{path.stem}-{len(self.ran)}"}
                if line["kind"] == "start":
                    own["command"] = shlex.join(["python", "-m", "zbench", *words])
                    own["facts"] = line["facts"] | {"simulated": False}
                    own["config"] = line["config"] | {"executor": {"_target_": TORCH}}
                if line["kind"] == "step":
                    own["seconds"] = self.slower * line["seconds"]
                file.write(json.dumps(line | own) + "\n")
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.chdir(tmp_path)
    asked = [
        "cluster=one_gpu",
        "model=tiny",
        "workload=fixed",
        "workload.length=300",
        "steps=2",
        "baseline=null",
        "tracker=none",
        "tokens_per_gpu=512",
        "out=base.jsonl",
    ]
    monkeypatch.setattr(sys, "argv", ["zbench", *asked])
    assert zbench.__main__.main() == 0
    found = Ranks(tmp_path / "base.jsonl")
    monkeypatch.setattr(predicted.subprocess, "run", found.run)
    monkeypatch.setattr(predicted, "_has_gpu", lambda: True)
    return found


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench.predicted", "--out", "records", *arguments])
    return predicted.main()


def test_all_workloads_are_measured_once(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert call(monkeypatch, "steps=2") == 0
    out = capsys.readouterr().out
    assert ranks.ran == list(WORKLOADS)
    assert out.count("+0.0%") >= len(WORKLOADS)
    assert out.splitlines()[-1].endswith("worst 0.0%; 6 of 6 measured workloads are within 7%")
    assert call(monkeypatch, "steps=2") == 0
    assert len(ranks.ran) == 6
    ranks.slower = 1.25
    assert call(monkeypatch, "steps=3", "--workloads", "wikipedia") == 0  # other words, another run
    assert ranks.ran[6:] == ["wikipedia"]
    assert "worst 20.0%; 0 of 1 measured workloads are within 7%" in capsys.readouterr().out
    monkeypatch.setattr(predicted, "source_digest", lambda: "changed")
    assert call(monkeypatch, "steps=2", "--workloads", "wikipedia") == 1  # the stand-in's sources are the old ones
    assert ranks.ran[7:] == ["wikipedia"]


def test_a_run_that_failed_is_told_and_tried_again(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.fails = ("pystdlib",)
    assert call(monkeypatch, "--workloads", "fixed_4k,pystdlib") == 1
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith("1 of 1 measured workloads are within 7%; not measured: pystdlib")
    )
    ranks.fails = ()
    assert call(monkeypatch, "--workloads", "fixed_4k,pystdlib") == 0
    assert ranks.ran == ["fixed_4k", "pystdlib", "pystdlib"]


def test_bad_input_of_one_is_that_of_all(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    ranks.code = 2
    assert call(monkeypatch, "steps=none") == 2
    assert ranks.ran == ["fixed_4k"]
    assert capsys.readouterr().out == ""
    ranks.code = 1
    assert call(monkeypatch, "--workloads", "wikipedia") == 1
    assert capsys.readouterr().out == "predicted: nothing was measured; not measured: wikipedia\n"


def test_what_is_refused_leaves_no_folder_that_it_made(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither --out nor those above it; one that was there stays, and so does one with a record."""
    ranks.code = 2
    assert call(monkeypatch, "steps=none", "--out", "above/records") == 2
    assert not (tmp_path / "above").exists()
    (tmp_path / "above").mkdir()
    assert call(monkeypatch, "steps=none", "--out", "above/records") == 2
    assert list((tmp_path / "above").iterdir()) == []
    ranks.code = 0
    assert call(monkeypatch, "steps=2", "--workloads", "wikipedia", "--out", "above/records") == 0
    ranks.code = 2
    assert call(monkeypatch, "steps=none", "--out", "above/records") == 2
    assert [one.name for one in (tmp_path / "above" / "records").iterdir()] == ["wikipedia.jsonl"]


def test_without_a_gpu_nothing_is_measured_unless_a_cpu_is_to_do(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--workloads", "wikipedia")
    assert call(monkeypatch, "steps=2", *one) == 0
    monkeypatch.setattr(predicted, "_has_gpu", lambda: False)
    assert call(monkeypatch, "steps=2", *one) == 0  # of the record that is there
    capsys.readouterr()
    assert call(monkeypatch) == 2
    assert "torch finds no CUDA device on this machine (executor.device=cpu model=tiny" in capsys.readouterr().err
    assert ranks.ran == ["wikipedia"]
    assert call(monkeypatch, "executor.device=cpu", *one) == 0
    assert ranks.ran == ["wikipedia", "wikipedia"]


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--workloads", "github") == 2
    assert capsys.readouterr().err.startswith("zbench: --workloads has 'github'; it takes fixed_4k, fixed_32k")


def test_whole_steps_are_measured_whose_elementwise_work_is_charged_as_it_is_done() -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["experiment=one_gpu"])
    assert config.executor._target_ == TORCH
    assert config.model.kernels == "eager"


def test_errors_are_of_the_simulated_against_the_measured() -> None:
    assert error((2.0, 1.0)) == -0.5
    assert error((0.0, 1.0)) == 0.0
