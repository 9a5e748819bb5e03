"""zbench step: the whole step of a plan file as text that reads back; what is wrong with another in one sentence."""

from pathlib import Path

import pytest

from zbench.api.words import run_sub_command

Printed = pytest.CaptureFixture[str]


def step_file(tmp_path: Path, *settings: str) -> Path:
    """Returns the text of the step of three sequences on four GPUs, written by the command."""
    (tmp_path / "lengths.txt").write_text("700\n90\n5\n")
    plans, text = tmp_path / "step.plan", tmp_path / "step.txt"
    words = [str(tmp_path / "lengths.txt"), "--out", str(plans), "cluster=local_2x2", "model=tiny", *settings]
    assert run_sub_command("plan", words) == 0
    assert run_sub_command("step", [str(plans), "--out", str(text)]) == 0
    return text


@pytest.mark.parametrize("setting", ["system=zeppelin", "sharding=zero1", "parallel=tp2", "recompute=full"])
def test_a_step_is_written_and_reads_back_to_the_same(tmp_path: Path, capsys: Printed, setting: str) -> None:
    text = step_file(tmp_path, setting)
    told = capsys.readouterr().out.splitlines()
    assert run_sub_command("step", [str(text), "--out", str(tmp_path / "again.txt")]) == 0
    again = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith(("step of", "proven", "sent for"))][-len(again) + 1 :] == again[
        :-1
    ]
    assert "step of 2 layers on 4 GPUs" in again[0]
    assert (tmp_path / "again.txt").read_text() == text.read_text()


def test_a_step_with_a_fault_is_told_where_and_nothing_is_written(tmp_path: Path) -> None:
    text, out = step_file(tmp_path), tmp_path / "out.txt"
    whole = text.read_text().splitlines(keepends=True)
    at = next(at for at, line in enumerate(whole) if ": send kv" in line)
    misspelt = [*whole[:at], whole[at].replace("send", "sned"), *whole[at + 1 :]]
    column = whole[at].index("send") + 1
    for lines, wrong in (
        (misspelt, f"line {at + 1}, column {column}: it has 'sned' where it takes"),
        ([*whole[:at], *whole[at + 1 :]], "the step is wrong: template forward, operation .* uses kv"),
        ([*whole[:at], whole[at][:column]], f"line {at + 1}, column {column}: it has 's' where it takes"),
        (whole[:at], "the step is wrong: "),
        ([], "line 1, column 1: the text ends before there is a step"),
    ):
        text.write_text("".join(lines))
        with pytest.raises(ValueError, match=wrong):
            run_sub_command("step", [str(text), "--out", str(out)])
    assert not out.exists()
