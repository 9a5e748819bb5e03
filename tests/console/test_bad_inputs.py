"""Every command, given what cannot be, says so in a sentence: tests/helpers/bad_inputs.txt, and every fault of a
record."""

import importlib
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.helpers.bad_inputs import LONG, Bad, make_files, table
from tests.record.test_record import FAULTS
from zbench import CONF
from zbench.__main__ import JobsOutcome
from zbench.run.presets import Presets

SMALL = (
    "steps=1",
    "tracker=none",
    "baseline=null",
    "model=tiny",
    "tokens_per_gpu=64",
    "cluster.num_nodes=1",
    "out=r.jsonl",
)
READERS = (
    "compare @",
    "compare @ --json",
    "compare @ --pivot mfu",
    "compare @ @ --fail-over 2%",
    "standing @",
    "report @",
    "fidelity --out @",
    "desk overlap @",
    "desk waits @",
    "track sync @ --tracker tensorboard",
)
MOST_LINES = 3  # on stderr
COMPOSED = Presets()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


def refused(
    bad: Bad, inputs: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs it, in an empty folder, and looks at what it says and leaves."""
    monkeypatch.chdir(here)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    words = [word.replace("@", str(inputs)).replace("%long", "a" * LONG) for word in shlex.split(bad.line)]
    before = sorted(inputs.rglob("*"))
    assert main(_whole(words), monkeypatch) == bad.code
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    lines = err.splitlines()
    assert lines[-1].startswith("zbench: ")
    assert len(lines) <= MOST_LINES, err
    assert bad.told.replace("@", str(inputs)) in err
    assert list(here.iterdir()) == []
    assert sorted(inputs.rglob("*")) == before


def main(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of python -m, in this process.

    Where hydra searches no folder of the user's, the yamls that the command composes beside its own configuration, to
    tell what was changed in them, are those of the lines before (tests/run/test_presets.py has how they are composed).
    """
    monkeypatch.setattr(sys, "argv", list(words))
    if not any(word.startswith("--c") or "searchpath" in word for word in words):  # --config-dir and its like
        monkeypatch.setattr("zbench.__main__.JobsOutcome", partial(JobsOutcome, presets=COMPOSED))
    code = importlib.import_module(f"{words[0]}.__main__").main()
    assert isinstance(code, int)
    return code


def _whole(words: Sequence[str]) -> Sequence[str]:
    if words[0] != "zbench" or words[1] in (
        "plan",
        "reshard",
        "generate",
        "layers",
        "placement",
        "simulate",
        "step",
        "compare",
        "report",
        "anchors",
    ):
        return words
    given = {word.lstrip("+~").partition("=")[0] for word in words}
    return [*words, *(word for word in SMALL if word.partition("=")[0] not in given)]


def test_the_table_is_large_and_has_every_command_and_no_line_twice() -> None:
    lines = [bad.line for bad in table()]
    assert len(set(lines)) == len(lines) >= 300
    mains = {path.parent.name for path in Path(importlib.import_module("zbench").__path__[0]).glob("*/__main__.py")}
    assert {line.split()[0] for line in lines} == {"zbench", *(f"zbench.{name}" for name in mains)}


def test_only_experiments_ask_for_a_sweep() -> None:
    asking = {path.parent.name for path in CONF.rglob("*.yaml") if "mode" in OmegaConf.load(path).get("hydra", {})}
    assert asking == {"experiment"}


@pytest.mark.parametrize("bad", table(), ids=lambda bad: bad.line)
def test_bad_input_is_a_sentence(
    bad: Bad, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(bad, inputs, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault[3] for fault in FAULTS])
def test_every_reader_tells_of_a_records_fault(
    number: int, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for reader in READERS:
        bad = Bad(2, f"zbench.{reader}".replace("@", f"@/fault{number}.jsonl"), FAULTS[number][3])
        refused(bad, inputs, tmp_path, monkeypatch, capsys)
