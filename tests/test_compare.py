"""Rows from records; speed-ups only over the same batches; strict JSON; one sentence for what is wrong."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_record import end_line, start_line, step_line, write

from zbench import compare
from zbench.compare import label, rows
from zbench.record import Line, Run

RING, MINE = {"_target_": "systems.ring.Ring"}, {"_target_": "mine.Mine"}


def start(run: str, system: dict[str, str], time: str = "1", sources: str = "s", **config: Any) -> Line:
    whole = {
        "system": system, "workload": {"mu": 1}, "cluster": {"num_nodes": 4}, "model": {}, "executor": {}, "seed": 0,
        "tokens_per_gpu": 8, "steps": 2, "choices": {group: f"the_{group}" for group in compare.GROUPS},
        "changes": {"cluster": {"num_nodes": 16}}, **config,
    }  # fmt: skip
    return {**start_line(run, config=whole, time=time, baseline={"name": "ring", "system": RING}),
            "fingerprint": {"sources": sources}}  # fmt: skip


def run_of(start: Line, *seconds: float, batch: str = "b", **changes: Any) -> Run:
    steps = [step_line(start["run"], number, seconds=value, batch=f"{batch}{number}", **changes)
             for number, value in enumerate(seconds)]  # fmt: skip
    return Run(start, steps, end_line(start["run"]), "r.jsonl", 1)


def speedups(*runs: Run) -> list[float | None]:
    return [row["speedup"] for row in rows(runs)]


def test_a_row_holds_what_was_asked_for() -> None:
    needed = {
        "run", "system", "workload", "cluster", "model", "executor", "seed", "steps", "status", "tokens_per_second",
        "step_seconds", "mfu", "nic_utilization", "nic_utilization_min", "nic_utilization_max", "imbalance",
        "exposed_communication", "plan_seconds", "peak_bytes", "bound_ratio", "speedup", "out_of_memory", "baseline",
        "mfu_convention",
    }  # fmt: skip
    (row,) = rows([run_of(start("a", RING), 2.0, 4.0)])
    assert needed <= set(row)
    assert row["cluster"] == "the_cluster num_nodes=16"
    assert (row["steps"], row["status"], row["step_seconds"], row["baseline"]) == (2, "finished", 3.0, "ring")


def test_label_without_changes() -> None:
    assert label(start("a", RING), "system") == "the_system"


def test_speedup_over_the_baseline_and_of_the_baseline() -> None:
    assert speedups(run_of(start("a", RING), 6.0, 6.0), run_of(start("b", MINE), 2.0, 4.0)) == [1.0, 2.0]


def test_an_interrupted_run_is_compared_over_the_steps_it_has() -> None:
    assert speedups(run_of(start("a", RING), 6.0, 100.0), run_of(start("b", MINE), 2.0))[1] == 3.0


@pytest.mark.parametrize(
    "baseline",
    [
        run_of(start("a", RING), 6.0, 6.0, batch="other"),
        run_of(start("a", RING), 6.0),
        run_of(start("a", RING, sources="older"), 6.0, 6.0),
        run_of(start("a", RING, seed=1), 6.0, 6.0),
        run_of(start("a", RING, cluster={"num_nodes": 5}), 6.0, 6.0),
        run_of(start("a", {**RING, "backward": "keep"}), 6.0, 6.0),
        run_of(start("a", RING), 6.0, 6.0, out_of_memory=True),
    ],
    ids=["batches", "fewer", "sources", "seed", "cluster", "system", "memory"],
)
def test_what_is_not_the_baseline_on_the_same_batches_gives_no_speedup(baseline: Run) -> None:
    assert speedups(baseline, run_of(start("b", MINE), 2.0, 2.0))[1] is None


def test_a_baseline_by_another_version_of_a_package_gives_no_speedup() -> None:
    ring, mine = start("a", RING), start("b", MINE)
    ring["fingerprint"]["packages"] = {"peer": "1"}
    for version, gain in (("1", 3.0), ("2", None)):
        mine["baseline"]["packages"] = {"peer": version}
        assert speedups(run_of(ring, 6.0), run_of(mine, 2.0))[1] == gain


def test_no_baseline_no_speedup() -> None:
    alone = start("b", MINE)
    alone["baseline"] = None
    (_, row) = rows([run_of(start("a", RING), 6.0), run_of(alone, 2.0)])
    assert (row["speedup"], row["baseline"]) == (None, None)


def test_of_several_baselines_the_last_before_the_run_counts() -> None:
    runs = [run_of(start(name, RING, time=name), seconds) for name, seconds in (("1", 2.0), ("2", 4.0), ("4", 8.0))]
    assert speedups(*runs, run_of(start("3", MINE, time="3"), 2.0))[3] == 2.0
    assert speedups(run_of(start("0", MINE, time="0"), 2.0), *runs)[0] == 1.0


def test_out_of_memory_is_a_verdict_in_place_of_figures() -> None:
    (row,) = rows([run_of(start("a", RING), 2.0, out_of_memory=True)])
    assert (row["tokens_per_second"], row["speedup"], row["out_of_memory"]) == (None, None, True)
    assert row["verdict"].startswith("out of memory: needs")


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
    write(
        path, {**start("a", RING), "facts": {}}, start("b", RING), step_line("b"), step_line("b", 1, nic_tx_bytes=[1])
    )
    write(path, start("c", RING), step_line("c"))
    assert call(monkeypatch, path, "--json") == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert f"{path}:1: the run that starts here cannot be read: facts.num_ranks of the start line is 'missing'" in err
    assert f"{path}:2: the run that starts here cannot be read" in err


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
    assert f"{path}: 490 more lines are skipped" in capsys.readouterr().err
