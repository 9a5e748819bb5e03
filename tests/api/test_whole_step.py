"""zbench step: the whole step of a plan file as text that reads back; what is wrong with another in one sentence."""

import json
import re
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


MACHINE = ("cluster=local_2x2", "model=tiny")


@pytest.mark.parametrize("setting", ["system=zeppelin", "sharding=zero1", "parallel=tp2", "recompute=full"])
def test_a_step_is_written_reads_back_to_the_same_and_is_played_as_planned(
    tmp_path: Path, capsys: Printed, setting: str
) -> None:
    text = step_file(tmp_path, setting)
    told = capsys.readouterr().out.splitlines()
    settings = [*MACHINE, *([] if setting.startswith("system") else [setting])]
    assert run_sub_command("step", [str(text), "--out", str(tmp_path / "again.txt"), *settings]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0].startswith("step of 2 layers on 4 GPUs")
    assert [line for line in told[-len(again) :] if "written to" not in line] == [
        line for line in again if "written to" not in line
    ]
    assert (tmp_path / "again.txt").read_text() == text.read_text()
    assert run_sub_command("simulate", [str(tmp_path / "step.plan")]) == 0
    seconds = capsys.readouterr().out.splitlines()[-1].split()[1]
    (played,) = (line for line in again if line.startswith("simulated on local_2x2, model tiny: "))
    assert played.split(": ")[1].split()[0] == seconds


def test_a_step_tells_bytes_and_memory_and_draws_a_trace(tmp_path: Path, capsys: Printed) -> None:
    text, trace = step_file(tmp_path), tmp_path / "trace.json"
    capsys.readouterr()
    assert run_sub_command("step", [str(text), *MACHINE, "--trace", str(trace)]) == 0
    told = capsys.readouterr().out
    for words in ("  attention: ", "  parameters: ", "  gradients: ", " over NICs, ", "  most memory of GPUs 0 to 3: "):
        assert words in told
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert any(name.startswith("attend") for name in names)


def test_a_text_is_proven_without_a_machine_and_told_how_it_is_played(tmp_path: Path, capsys: Printed) -> None:
    text = step_file(tmp_path)
    capsys.readouterr()
    assert run_sub_command("step", [str(text)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("names no cluster and no model, and is played with cluster=NAME model=NAME")


def test_a_machine_that_is_none_of_the_steps_is_told(tmp_path: Path) -> None:
    text = str(step_file(tmp_path))
    for words, wrong in (
        ([text, "cluster=local_2x2"], "is given 'cluster=local_2x2' and no model=NAME"),
        ([text, "recompute=full"], "is given 'recompute=full' and no cluster=NAME"),
        ([text, "--trace", "t.json"], "--trace is 't.json', of a step that is played; a step's text names no cluster"),
        ([text, *MACHINE, "cluster.num_nodes=4"], "cluster is local_2x2, of 8 GPUs; the step is on 4 GPUs"),
        ([text, *MACHINE, "model.num_layers=3"], "model is tiny, of 3 layers; the step has 2 layers"),
        ([text, *MACHINE, "system=ring"], "'system=ring' is no setting of zbench step"),
        ([str(tmp_path / "step.plan"), "cluster=local_2x2"], "is no setting of zbench step with a plan file"),
    ):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            run_sub_command("step", words)
    with pytest.raises(ValueError, match="which is a whole step's text; zbench step reads, proves and plays one"):
        run_sub_command("simulate", [text])


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
