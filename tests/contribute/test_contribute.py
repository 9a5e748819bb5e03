"""Records that are taken, and what is told of those that are not: the field and its value."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.record.test_record import end_line, start_line, step_line, write
from zbench.api.words import run_sub_command
from zbench.contribute.__main__ import FOLDER
from zbench.runtime.measured import COUNTED

Lines = list[dict[str, Any]]
RANK = {"torch": "2.13.0", "device": "NVIDIA H200", "backend": "nccl", "kernel": "flash", "sharing": 1}


@pytest.fixture(scope="module")
def whole() -> Lines:
    """A run as the torch executor records it on one node of two GPUs."""
    start = start_line(
        config={
            "steps": 2,
            "tokens_per_gpu": 4,
            "executor": {"_target_": "zbench.runtime.step_executor.Torch"},
            "choices": {"system": "ring", "workload": "github", "cluster": "h200_4x8"},
        },
        fingerprint={
            "commit": "0123456789abcdef",
            "dirty": False,
            "sources": "a" * 64,
            "python": "3.11.7",
            "zbench": "0.1.0",
            "numpy": "2.4.6",
            "numba": "0.68.1",
            "platform": "Linux",
            "processor": "CPU",
        },
    )
    start["facts"] |= {
        "simulated": False,
        "num_ranks": 2,
        "num_gpus": 2,
        "num_nodes": 1,
        "gpus_per_node": 2,
        "nics_per_node": 1,
        "model": "tiny",
        "peak_flops": 1e15,
    }
    about = {"kind": "about", "run": start["run"], "nic_bytes": COUNTED, "ranks": [dict(RANK)]}
    steps = [
        step_line(
            number=number,
            tokens=8,
            sum_squared=34,
            max_length=5,
            seconds=2.0,
            bound_seconds=1.0,
            attention_seconds=[0.5, 0.5],
            linear_seconds=[0.5, 0.5],
            communication_seconds=[0.1, 0.1],
            exposed_seconds=[0.1, 0.1],
            nic_tx_bytes=[7],
            nic_rx_bytes=[7],
            peak_bytes=[5, 6],
            capacity_bytes=10,
            out_of_memory=False,
        )
        for number in range(2)
    ]
    return [start, about, *steps, end_line()]


def told(tmp_path: Path, lines: Lines, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    path = tmp_path / "record.jsonl"
    write(path, *lines)
    code = run_sub_command("contribute", [str(path)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_whole_record_is_taken_and_where_it_goes_is_told(
    whole: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(tmp_path, whole, capsys)
    assert (code, err) == (0, "")
    assert "record.jsonl: 1 run can be taken." in out
    assert "NVIDIA H200, torch 2.13.0, nccl, zbench 0.1.0 at 0123456789." in out
    assert f"{FOLDER}/" in out
    assert "-tiny-2026-01-01.jsonl and open a pull request" in out


def _set(number: int, *keys: str, value: Any) -> Callable[[Lines], None]:
    """Sets a field of line `number`."""

    def change(lines: Lines) -> None:
        place = lines[number]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def _drop(number: int) -> Callable[[Lines], None]:
    return lambda lines: lines.pop(number) and None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set(0, "facts", "simulated", value=True), "facts.simulated is true"),
        (
            _set(0, "config", "executor", "_target_", value="zbench.desk.step_executor.Desk"),
            "config.executor._target_ is 'zbench.desk.step_executor.Desk'",
        ),
        (_set(0, "fingerprint", "commit", value=None), "fingerprint.commit is None"),
        (_set(0, "fingerprint", "dirty", value=True), "fingerprint.dirty is True"),
        (_set(0, "fingerprint", "sources", value="abc"), "fingerprint.sources is 'abc'"),
        (_set(0, "fingerprint", "numba", value=None), "fingerprint.numba is None"),
        (_drop(1), "about.ranks is None"),
        (_set(1, "ranks", value=[{**RANK, "torch": None}]), "about.ranks[0].torch is None"),
        (_set(1, "ranks", value=[{**RANK, "sharing": 4}]), "about.ranks[0].sharing is 4"),
        (_drop(4), "status is interrupted"),
        (_drop(3), "the run has 1 step; config.steps is 2"),
        (_set(0, "facts", "num_nodes", value=2), "facts.num_gpus is 2"),
        (
            _set(2, "attention_seconds", value=[0.5, 0.5, 0.5]),
            "linear_seconds has 2 elements; it takes as many as attention_seconds, 3",
        ),
        (_set(2, "peak_bytes", value=[5]), "step 0: peak_bytes has 1 number; the cluster has 2"),
        (_set(2, "tokens", value=9), "step 0: tokens is 9"),
        (_set(3, "seconds", value=0.0), "seconds is 0.0"),
        (_set(3, "seconds", value=-1.0), "seconds is -1.0"),
        (_set(3, "bound_seconds", value=2.5), "step 1: seconds is 2, below bound_seconds, 2.5"),
        (_set(3, "linear_seconds", value=[0.5, 2.1]), "step 1: linear_seconds is 2.1 on a rank"),
        (_set(0, "facts", "peak_flops", value=1.0), "MFU is "),
        (_set(2, "out_of_memory", value=True), "out_of_memory is true"),
        (_set(2, "peak_bytes", value=[5, 11]), "step 0: peak_bytes is 11; capacity_bytes is 10"),
        (_set(2, "nic_rx_bytes", value=[6]), "nic_tx_bytes add up to 7 and nic_rx_bytes to 6"),
    ],
)
def test_what_cannot_have_been_measured_is_refused_with_field_and_value(
    change: Callable[[Lines], None], fault: str, whole: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = copy.deepcopy(whole)
    change(lines)
    code, out, err = told(tmp_path, lines, capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert fault in err


def test_counters_of_nics_need_not_agree(whole: Lines, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = copy.deepcopy(whole)
    lines[1]["nic_bytes"] = "counters of the machines' NICs"
    lines[2]["nic_rx_bytes"] = [6]
    assert told(tmp_path, lines, capsys)[0] == 0


def test_a_record_that_cannot_be_read_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sub_command("contribute", [str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    assert run_sub_command("contribute", [str(tmp_path / "empty.jsonl")]) == 2
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "torn.jsonl").write_text('{"kind":')
    assert run_sub_command("contribute", [str(tmp_path / "torn.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "the record is not taken: " in said
    assert "skipped" not in said
