"""Tables of records; strict JSON; one sentence for what is wrong."""

import json
import sys
from pathlib import Path

import pytest

from tests.record.test_record import end_line, step_line, write
from tests.record.test_rows import MINE, RING, run_of, start
from zbench.compare import __main__ as compare


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, arguments)])
    return compare.main()


def test_json_is_strict_and_names_its_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    ring, mine = run_of(start("a", RING), 6.0), run_of(start("b", MINE), 2.0, out_of_memory=True)
    write(path, ring.start, *ring.steps, end_line("a"), mine.start, *mine.steps, start("c", MINE))
    assert call(monkeypatch, path, "--json", "--convention", "6nd") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["status"] for row in found] == ["finished", "interrupted", "interrupted"]
    assert [row["steps"] for row in found] == [1, 1, 0]
    assert found[0]["mfu_convention"] == "6nd"
    assert found[0]["mfu"] == pytest.approx(6 * 70 * 100 / (6 * 2 * 1000))
    assert [row["run"] for row in found] == [1, 2, 3]


def test_a_table_names_runs_convention_and_broken_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "r.jsonl", tmp_path / "s.jsonl"
    ring = run_of(start("a", RING), 6.0)
    write(path, ring.start, *ring.steps, end_line("a"))
    path.write_bytes(path.read_bytes() + b"torn\n")
    write(other, start("b", MINE, seed=7), step_line("b", out_of_memory=True))
    assert call(monkeypatch, path, other) == 0
    out, err = capsys.readouterr()
    assert err == f"zbench: {path}:4: not a line of JSON (cut off); the line is skipped\n"
    assert "1 of 2, interrupted" in out
    assert "run 2, the_system: out of memory: needs" in out
    assert "MFU by convention zbench: 6 x active matmul parameters" in out


def test_a_run_that_does_not_hold_together_is_named_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    steps = step_line("b"), step_line("b", 1, nic_tx_bytes=[1])
    write(path, {**start("a", RING), "facts": {}}, start("b", RING), *steps, start("c", RING), step_line("c"))
    assert call(monkeypatch, path, "--json") == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert f"{path}:1: start line: facts.simulated is missing; it takes true or false; run a is left out" in err
    assert f"{path}:4: step line: nic_rx_bytes has 2 elements; it takes as many as nic_tx_bytes, 1; run b is" in err


def test_a_run_that_is_in_two_files_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, copy, other = (tmp_path / f"{name}.jsonl" for name in "abc")
    write(first, start("a", RING), step_line("a"))
    write(copy, start("a", RING), step_line("a"))
    write(other, start("a", RING), step_line("a", tokens=7))
    assert call(monkeypatch, first, copy, other, "--json") == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert f"{copy}:1: run a is also in {first}:1; it counts once" in err
    assert f"{other}:1: run a is also in {first}:1 with other lines; it is left out here" in err


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read: No such file"), ("", "holds no run"), ("x\n", "holds no run")]
)
def test_a_file_without_runs_is_one_sentence(
    content: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_text(content)
    assert call(monkeypatch, path) == 2
    assert f"record file {str(path)!r} {reason}" in capsys.readouterr().err.splitlines()[-1]


def test_many_broken_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("x\n" * 500)
    assert call(monkeypatch, path) == 2
    assert f"zbench: 490 more lines or runs of {path} are left out\n" in capsys.readouterr().err
