"""The words of zbench check, and what it says to bad ones."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.check import examples
from zbench.__main__ import main

HERE = examples.__name__
GOOD = {"lengths": [100, 50, 60, 7], "micro_batches": [[[0], [0], [1], [2]], [[3], [3], [3], [3]]]}
# Takes the words behind `zbench check`; returns the exit code and what is printed.
Call = Callable[[str], tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def of(line: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["zbench", "check", *line.split()])
        code = main()
        out, error = capsys.readouterr()
        assert "Traceback" not in error
        return code, out + error

    return of


def test_exit_codes_and_the_line_that_shows_it_again(call: Call) -> None:
    code, told = call("loss torch case=even,masked")
    assert code == 0
    assert "torch: 2 of 2 cases exact" in told
    code, told = call(f"loss {HERE}:mean_of_means case=even,masked")
    assert code == 1
    assert f"{HERE}:mean_of_means: 1 of 2 cases exact" in told
    assert f"again: zbench check loss {HERE}:mean_of_means case=masked\n" in told
    assert call(f"loss {HERE}:refuses_odd case=odd")[0] == 1  # nothing was found to be exact


@pytest.mark.parametrize("line", ["--help", "loss --help", "attention -h", "loss torch --help", "schedule --help"])
def test_help_stands_anywhere(call: Call, line: str) -> None:
    code, told = call(line)
    assert code == 0
    assert "zbench check schedule FILE.json" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("los", "'los'; it takes one of attention, loss, schedule (did you mean loss?)"),
        ("loss", "it takes one function, as MODULE:FUNCTION"),
        ("loss torch torch_chunks", "it takes one function"),
        ("loss nope.nope:f", "no module 'nope' is found (its folder has to be on PYTHONPATH)"),
        (f"loss {HERE}:nope", f"{HERE} has no function 'nope'"),
        (f"loss {HERE}:HERE", f"{HERE} has no function 'HERE'"),
        (f"loss {HERE}:other_arguments", "would be called with 4 arguments by place"),
        ("loss torch ranks=2", "would be called with 5 arguments by place"),
        ("attention deepspeed", "attention is 'deepspeed'; it takes one of torch_sdpa, or MODULE:FUNCTION"),
        ("loss torch case=evn", "case is 'evn'; it takes one of"),
        ("loss torch case=empty_share", "case is 'empty_share'; it takes one of"),
        ("loss torch dtype=float16", "dtype is 'float16'; it takes one of"),
        ("loss torch ranks=0", "ranks is '0'; it takes a whole number from 1 to 64"),
        ("loss torch rank=1", "rank is not a setting of zbench check loss; did you mean ranks?"),
        ("loss torch dtype=float32 dtype=float64", "dtype is given twice"),
        ("schedule", "it takes one FILE.json"),
        ("schedule @ ranks=4", "has no contract"),
        ("schedule @ contract=aligned_pow2_rings", "has no ranks"),
        ("schedule @ contract=pow2_rings ranks=4", "contract is 'pow2_rings'; it takes one of"),
        ("schedule @ contract=any_rings ranks=4 equal_size=true", "equal_size is no key of contract any_rings"),
        ("schedule @ contract=whole_on_dp ranks=4 equal_size=1", "equal_size is '1'; it takes true or false"),
        ("schedule nope.json contract=any_rings ranks=4", "cannot be read: No such file"),
        ("schedule %text contract=any_rings ranks=4", "which is no JSON"),
    ],
)
def test_bad_words(call: Call, line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(GOOD))
    (tmp_path / "text").write_text("a b c")
    code, found = call(line.replace("@", str(tmp_path / "s.json")).replace("%", f"{tmp_path}/"))
    assert code == 2
    assert told in found


def test_schedules(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(GOOD))
    code, told = call(f"schedule {path} contract=aligned_pow2_rings ranks=4")
    assert (code, told) == (
        0,
        f"{path} keeps to aligned_pow2_rings ranks=4: 2 micro-batches, 4 samples, 217 tokens\n",
    )
    code, told = call(f"schedule {path} contract=aligned_pow2_rings ranks=4 max_tokens=40")
    assert code == 1
    assert "breaks aligned_pow2_rings ranks=4 max_tokens=40: micro-batch 0, rank 0 has 100 tokens" in told
    lost = {**GOOD, "micro_batches": GOOD["micro_batches"][:1]}
    path.write_text(json.dumps(lost))
    code, told = call(f"schedule {path} contract=aligned_pow2_rings ranks=4")
    assert code == 1
    assert "sample 3 is in no micro-batch" in told
    path.write_text(json.dumps({"lengths": [3, 1], "order": [0, 3, 1, 2]}))
    code, told = call(f"schedule {path} contract=equal_token_permutation ranks=2")
    assert (code, told) == (0, f"{path} keeps to equal_token_permutation ranks=2: 2 documents, 4 tokens\n")
