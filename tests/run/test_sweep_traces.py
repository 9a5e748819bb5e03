"""Traces of a sweep: each run has a file of its own, whatever trace= says."""

from pathlib import Path

import pytest

from tests.run.test_main import SMALL, call, recorded

WORDS = ("-m", *SMALL, "steps=1", "baseline=null", "tracker=none", "out=r.jsonl", "workload=fixed")


def traces(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> list[str]:
    """The traces that records of a sweep name, in order; each is there."""
    monkeypatch.chdir(folder)
    assert call(monkeypatch, *WORDS, *words) == 0
    runs = recorded()
    found = [run.steps[0]["trace"]["file"] for run in runs]
    assert all((folder / one).is_file() for one in found)
    assert [run.start["config"]["trace"] for run in runs] == found
    return found


def test_each_run_has_a_file_with_its_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("system=ring,zeppelin", "workload.length=64,128", "cluster.nic_bandwidth='80 Gbit/s'", "trace=t.v2.json")
    found = traces(monkeypatch, tmp_path, *words)
    assert found == [f"t.v2_{system}_{length}.json" for system in ("ring", "zeppelin") for length in (64, 128)]


def test_values_that_the_name_has_stand_there_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "trace='t_${hydra:runtime.choices.system}.json'"
    found = traces(monkeypatch, tmp_path, "system=ring,zeppelin", "mask=causal,'window:32'", name)
    assert found == [f"t_{system}_{mask}.json" for system in ("ring", "zeppelin") for mask in ("causal", "window-32")]


def test_the_number_of_a_run_tells_runs_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = traces(monkeypatch, tmp_path, "system=ring,zeppelin", "trace='t_${hydra:job.num}.json'")
    assert found == ["t_0.json", "t_1.json"]


def test_files_that_are_the_same_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of a sweep whose values differ in nothing that a file's name has would write one file twice."""
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *WORDS, "system=ring", "mask='window:32','window::32'", "trace=t.json") == 2
    told = capsys.readouterr().err
    assert "trace is 't_window-32.json', which an earlier run of this sweep has; it takes a name that differs" in told
