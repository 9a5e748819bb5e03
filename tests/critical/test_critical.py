"""python -m zbench.critical: a path of a recorded step, and what cannot be."""

import sys
from pathlib import Path

import pytest

from tests.report.test_report import made, of_attention
from zbench.critical import __main__ as critical
from zbench.record.record import read


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of two whole steps, then one by the other clock."""
    folder = tmp_path_factory.mktemp("critical")
    made(folder, "system=ring", "workload=prolong64k", "baseline=null")
    path = made(folder, "system=ring", "workload=prolong64k", "baseline=null", "steps=1")
    of_attention(path, 1)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench critical", *words])
    return critical.main()


def test_a_recorded_step_s_path_is_printed_and_written(
    record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "path.md"
    assert run(monkeypatch, record, "--run", "1", "--step", "1", "-o", str(path)) == 0
    out, written = capsys.readouterr().out, path.read_text()
    seconds = read(record)[0][0].steps[1]["seconds"]  # two layers, which are all played
    head = f"Critical path of step 1, ring on prolong64k: {seconds:.6g} s"
    assert out.startswith(head)
    assert written.startswith(head)
    assert "matmul gate and up projections" in out
    rows = [line.split("|") for line in written.split("**From")[1].splitlines() if line.startswith("| ")][1:]
    assert sum(float(row[2]) for row in rows) == pytest.approx(1e3 * seconds, abs=1e-3 * len(rows))
    assert run(monkeypatch, record, "--run", "1", "-o", str(path)) == 0  # over a path of before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            [],
            "the run has executor=simulated_attention; a critical path takes a run of whole steps, as of executor="
            "simulated, or of torch or desk, whose steps are played as they are described",
        ),
        (["--run", "3"], "--run is 3; the record has runs 1 to 2"),
        (["--step", "5"], "--step is 5; the run has steps 0"),
        (["-o", "nowhere/p.md"], "--out is 'nowhere/p.md'; its folder nowhere does not exist"),
        (["-o", "RECORD"], "--out is 'RECORD'; that file is not a critical path of zbench's, so it is not replaced"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_nothing_is_written(
    record: str, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(record).read_bytes()
    assert run(monkeypatch, record, *(record if word == "RECORD" else word for word in words)) == 2
    found = capsys.readouterr()
    assert found.err == f"zbench: {told.replace('RECORD', record)}\n"
    assert not found.out
    assert Path(record).read_bytes() == before
