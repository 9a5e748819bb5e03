"""The gate: what became worse is named, what cannot be compared is one sentence, and 3 % does not pass."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.compare.test_compare import call
from tests.record.test_record import end_line, write
from tests.record.test_rows import MINE, RING, run_of, start
from zbench.compare.gate import Change, gate, percentage
from zbench.record.fingerprint import ROOT
from zbench.record.record import Line, Run, read

PLACE = ("the_system", "the_workload", "the_cluster num_nodes=16", "the_model", "the_executor")
RAN = run_of(start("a", RING), 2.0, 2.0)


def worse(base: Run, new: Run, limit: float = 0.02, **options: Any) -> list[tuple[str, str, str]]:
    return [(one.metric, one.before, one.after) for one in gate([base], [new], limit, **options).worse]


def test_only_what_is_over_the_limit_is_worse() -> None:
    assert worse(RAN, run_of(start("b", RING), 2.0, 2.08)) == []
    assert worse(RAN, run_of(start("b", RING), 2.0, 2.1)) == [("step_seconds", "2 s", "2.05 s")]
    assert worse(RAN, run_of(start("b", RING), 1.0, 1.0)) == []
    assert worse(RAN, RAN, 0.0) == []


def test_a_change_is_named_in_full() -> None:
    (change,) = gate([RAN], [run_of(start("b", RING), 2.0, 2.1)], 0.02).worse
    assert (change.place, change.share) == (PLACE, pytest.approx(0.025))
    assert str(change) == (
        "the_system on the_workload, the_cluster num_nodes=16, the_model, the_executor: step_seconds from 2 s to "
        "2.05 s (+2.50%)"
    )


def test_worlds_and_what_planners_know_of_them_are_kept_apart() -> None:
    choices = {**RAN.start["config"]["choices"], "world": "slow"}
    slow = run_of(start("s", RING, choices=choices, world={"latency": 3}), 4.0, 4.0)
    unknown = run_of(start("u", RING, choices=choices, world={"latency": 3}, planners_see="nominal"), 9.0, 9.0)
    assert gate([RAN], [RAN, slow, unknown], 0.02).worse == ()
    assert [place[5:] for place in gate([RAN], [RAN, slow, unknown], 0.02).added] == [
        ("world slow",),
        ("world slow", "planners nominal"),
    ]
    (change,) = gate(
        [RAN, slow], [RAN, run_of(start("t", RING, choices=choices, world={"latency": 3}), 4.0, 5.0)], 0.02
    ).worse
    assert "the_executor, world slow: step_seconds from 4 s to 4.5 s" in str(change)


def test_a_system_may_have_other_settings_and_another_order() -> None:
    new = [run_of(start("b", MINE), 2.0, 2.0), RAN]
    assert gate([RAN], new, 0.02).compared == 1  # of the two of one name the last counts


def test_memory_and_bytes() -> None:
    more = run_of(start("b", RING), 2.0, 2.0, peak_bytes=[10**9, 1], nic_tx_bytes=[10**6] * 2)
    names = ("peak_bytes", "nic_bytes")
    assert [name for name, *_ in worse(RAN, more, metrics=names)] == list(names)
    assert worse(RAN, run_of(start("b", RING), 2.0, 2.0, nic_tx_bytes=[10**6] * 2)) == []  # not asked for


def test_nothing_that_became_something_has_no_share() -> None:
    none, some = (run_of(start("a", RING), 2.0, nic_tx_bytes=[size] * 2, nic_rx_bytes=[size] * 2) for size in (0, 5))
    (change,) = gate([none], [some], 0.02, ["nic_bytes"]).worse
    assert (change.before, change.after, change.share) == ("0 bytes", "10 bytes", None)


def test_what_no_longer_fits_is_worse_and_what_never_did_is_not() -> None:
    lost = run_of(start("b", RING), 1.0, 1.0, out_of_memory=True)
    assert worse(RAN, lost, 10.0) == [("memory", "enough in steps 0, 1", "out of memory")]
    assert worse(lost, lost) == []
    assert worse(lost, RAN) == []


def test_steps_that_fit_in_both_are_still_compared() -> None:
    base, new = run_of(start("a", RING), 2.0, 2.0), run_of(start("b", RING), 4.0, 4.0)
    new.steps[1]["out_of_memory"] = True
    assert worse(base, new) == [
        ("memory", "enough in step 1", "out of memory"),
        ("step_seconds", "2 s", "4 s"),
    ]


def test_steps_that_do_not_count_are_left_out() -> None:
    base, new = run_of(start("a", RING), 2.0, 2.0), run_of(start("b", RING), 2.0, 9.0)
    new.steps[1]["valid"] = False
    assert worse(base, new) == []
    new.steps[0]["valid"] = False
    with pytest.raises(ValueError, match="no step in common that counts in both"):
        gate([base], [new], 0.02)


def test_a_run_that_failed_or_is_missing_is_worse() -> None:
    failed = Run(start("b", RING), [], {**end_line("b", "failed"), "message": "step 0: no"}, "n.jsonl", 1)
    assert worse(RAN, failed) == [("status", "finished", "failed (step 0: no)")]
    other = run_of(start("c", RING, choices={"system": "other"}), 1.0)
    found = gate([RAN, other], [RAN], 0.02)
    assert [(one.metric, one.before, one.after) for one in found.worse] == [("run", "finished", "missing")]
    assert found.worse[0].place[0] == "other"
    assert [place[0] for place in gate([RAN], [RAN, other], 0.02).added] == ["other"]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (run_of(start("b", RING, choices={}), 2.0), "have no run in common: the baseline has the_system on"),
        (run_of(start("b", RING, seed=1), 2.0), "seed is 0 in the baseline and 1 in the new record"),
        (run_of(start("b", RING, workload={"mu": 2}), 2.0), "workload.mu is 1 in the baseline and 2 in"),
        (run_of(start("b", RING, model={"tied": 1}), 2.0), "model.tied is None in the baseline and 1 in"),
        (run_of(start("b", RING), 2.0, batch="other"), "step 0 was batch b0 in the baseline and other0 in"),
        (Run(start("b", RING), [], end_line("b"), "n.jsonl", 1), "have no step in common"),
    ],
    ids=["runs", "seed", "workload", "model", "batches", "steps"],
)
def test_what_cannot_be_compared_is_one_sentence(new: Run, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as told:
        gate([RAN], [new], 0.02)
    assert "\n" not in str(told.value)


def test_percentages() -> None:
    assert [percentage(text) for text in ("2%", "0 %", "0.5%", "100%")] == [0.02, 0.0, 0.005, 1.0]
    for text in ("2", "-2%", "0.02", "%", "two%", "1e3%", "nan%", ""):
        with pytest.raises(ValueError, match="it takes a percentage of at least 0, as in 2%"):
            percentage(text)


def test_a_change_without_a_share() -> None:
    assert str(Change(("s", "w", "c"), "run", "finished", "missing")) == "s on w, c: run from finished to missing"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    base, new = tmp_path / "base.jsonl", tmp_path / "new.jsonl"
    for path, seconds in ((base, 2.0), (new, 2.06)):
        run = run_of(start("a", RING), seconds)
        write(path, run.start, *run.steps, end_line("a"))
    return base, new


def test_exit_codes(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = files
    assert call(monkeypatch, base, new, "--fail-over", "2%") == 1
    worse, total = capsys.readouterr().out.splitlines()
    assert worse.startswith("worse: the_system on the_workload")
    assert worse.endswith("step_seconds from 2 s to 2.06 s (+3.00%)")
    assert total == "1 run compared by step_seconds, peak_bytes; worse by more than 2%: 1"
    assert call(monkeypatch, base, new, "--fail-over", "5%") == 0
    assert call(monkeypatch, base, new, "--fail-over=2%", "--metrics", "nic_bytes,imbalance") == 0
    assert call(monkeypatch, new, base, "--fail-over", "2%") == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["base", "new", "--fail-over", "fast"], "--fail-over is 'fast'; it takes a percentage"),
        (["base", "--fail-over", "2%"], "compares two records, a baseline and a new one; 1 were given"),
        (["base", "missing", "--fail-over", "2%"], "cannot be read: No such file"),
        (["base", "new", "--fail-over", "2%", "--metrics", "speed"], "--metrics is 'speed'; it takes names"),
        (["base", "new", "--metrics", "nic_bytes"], "it needs --fail-over"),
        (["base", "new", "--fail-over", "-2%"], "argument --fail-over: expected one argument (see --help)"),
        (["base", "new", "--fail-over", "2%", "--json"], "argument --json: not allowed with argument --fail-over"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    arguments: list[str],
    reason: str,
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {path.stem: path for path in files} | {"missing": files[0].parent / "missing"}
    assert call(monkeypatch, *(named.get(word, word) for word in arguments)) == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


# -- a change of a user's planner, end to end -----------------------------------------------------
_PLANNER = """
from dataclasses import dataclass
import numpy as np
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.passes import reverse

@dataclass(frozen=True)
class Mine:
    cost: object

    def plan(self, batch):
        {body}
"""
_SPREAD = """seqs = np.arange(len(batch.lengths))
        ranks = seqs % self.cost.cluster.num_ranks
        {change}
        builder = Builder(batch.lengths, self.cost.cluster.num_ranks, self.cost.model.num_heads)
        local(builder, seqs, ranks)
        return (reverse(builder.build(), "keep"),)"""
_ZEPPELIN = "return Zeppelin(self.cost{change}).plan(batch)"
_SHORT = ["workload=fixed", "workload.length=128", "steps=1"]  # 32 sequences on each of 32 ranks


def recorded(folder: Path, name: str, body: str, *settings: str) -> str:
    """The record of a run of the user's planner with this body."""
    conf = folder / "conf" / "system"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "mine.yaml").write_text("_target_: mine.Mine\n")
    (folder / "mine.py").write_text(_PLANNER.format(body=body))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "zbench",
            "--config-dir",
            str(conf.parent),
            "system=mine",
            "tracker=none",
            "baseline=null",
            f"out={name}.jsonl",
            *settings,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        timeout=240,
    )
    return str(folder / f"{name}.jsonl")


def seconds(path: str) -> float:
    return sum(step["seconds"] for run in read(path)[0] for step in run.steps)


def test_one_sequence_more_on_one_rank_is_3_percent_and_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank with 33 sequences of 128 tokens where the others have 32: 1/32 more work on it, and no communication."""
    base = recorded(tmp_path, "base", _SPREAD.format(change=""), *_SHORT)
    new = recorded(tmp_path, "new", _SPREAD.format(change="ranks[0] = 1"), *_SHORT)
    assert seconds(new) / seconds(base) == pytest.approx(1.03, abs=0.003)
    assert call(monkeypatch, base, new, "--fail-over", "2%") == 1
    told = capsys.readouterr().out.splitlines()[0]
    assert told.startswith("worse: mine on fixed length=128, a800_4x8, llama_7b, simulated: step_seconds from ")
    assert call(monkeypatch, base, new, "--fail-over", "4%") == 0


def test_zeppelin_without_its_routing_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = (
        recorded(tmp_path, name, _ZEPPELIN.format(change=change), "workload=prolong64k", "steps=1")
        for name, change in (("base", ""), ("new", ", route=False"))
    )
    assert call(monkeypatch, base, new, "--fail-over", "2%") == 1
    assert "worse: mine on prolong64k" in capsys.readouterr().out
    assert call(monkeypatch, base, base, "--fail-over", "0%") == 0


# -- the committed baseline -----------------------------------------------------------------------
def test_the_baseline_is_whole_and_has_every_system() -> None:
    """It has all runs of experiment=ci, finished, as `make baseline` leaves them."""
    runs, problems = read(str(ROOT / "results" / "ci" / "base.jsonl"))
    asked = OmegaConf.load(ROOT / "conf" / "experiment" / "ci.yaml").hydra.sweeper.params

    def pair(line: Line) -> tuple[str, str]:
        return line["config"]["choices"]["workload"], line["config"]["choices"]["system"]

    assert problems == []
    assert {run.status for run in runs} == {"finished"}
    assert [pair(run.start) for run in runs] == [
        (workload, system) for workload in asked.workload.split(",") for system in asked.system.split(",")
    ]
    assert set(asked.system.split(",")) == {path.stem for path in (ROOT / "conf" / "system").glob("*.yaml")}
