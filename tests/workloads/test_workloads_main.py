"""python -m zbench.workloads."""

import sys

import pytest

from zbench.workloads.__main__ import main, workload_names


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench.workloads", *args])
    return main()


def test_it_prints_a_row_for_every_workload(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--tokens", "100000", "--steps", "2") == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split()[:3] == ["workload", "documents", "mean"]
    need_path = {"corpus", "lengths_file", "responses_file", "rl_traces_file"}
    assert {row.split()[0] for row in rows[1:]} == set(workload_names()) - need_path


def test_it_takes_names_and_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "fixed", "--tokens", "100", "--steps", "1", "--set", "length=20") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["fixed", "5", "20"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing"], "workload is 'nothing'; it must be one of"),
        (["lengths_file"], "workload.path is needed and not given"),
        (["fixed", "--tokens", "0"], "workload.tokens is 0; it takes a whole number of at least 1"),
        (["fixed", "--steps", "0"], "--steps is 0; it takes a whole number of at least 1"),
        (["fixed", "--set", "lenght=5"], "lenght"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert run(monkeypatch, *args) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
