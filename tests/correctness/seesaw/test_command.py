"""python -m zbench.correctness seesaw: tokens, changes of layout and bytes are those of one process."""

import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from zbench.correctness import __main__
from zbench.correctness.seesaw.cases import FOUR_LAYERS, SeesawCase, expected_ranks, seesaw_cases, seesaw_prompts
from zbench.correctness.seesaw.command import generated_pairs, judged_seesaw
from zbench.describe.arrays import Ints
from zbench.rollouts.degrees import GenerateDegrees
from zbench.rollouts.seesaw_phases import buffer_fills
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.rollouts.seesaw_job import SeesawReport

pytestmark = pytest.mark.usefixtures("one_thread")

STAGES, SLICES, BOTH = GenerateDegrees(4, 1), GenerateDegrees(1, 4), GenerateDegrees(2, 2)
CASES = [
    SeesawCase(STAGES, SLICES, 1),
    SeesawCase(BOTH, STAGES, 1),
    SeesawCase(GenerateDegrees(1, 2), GenerateDegrees(2, 1), 2),
]
SHORT: Mapping[int, Ints] = {  # responses of one token, but for two
    number: np.append(prompt, [5, 0] if number in (0, 13) else [0]) for number, prompt in enumerate(seesaw_prompts(3))
}


def test_two_layouts_come_to_one_process() -> None:
    found = list(generated_pairs(CASES, 4, 1))
    assert [one.fault for one in found] == [""] * 3
    assert [one.row()[3] for one in found] == ["7", "7", "3"]  # 76 tokens of prompts, 24 of host memory
    for one in found:
        assert sum(report.read for report in one.found) < sum(report.written for report in one.found)
        assert max(report.most for report in one.found) > 1


def test_a_killed_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    call = LocalFleet.call

    def killed(fleet: LocalFleet, name: str, *arguments: object) -> list[object]:
        if name == "run":
            os.kill(fleet.pids[1], signal.SIGKILL)
        return call(fleet, name, *arguments)

    monkeypatch.setattr(LocalFleet, "call", killed)
    (found,) = generated_pairs([SeesawCase(GenerateDegrees(2, 1), GenerateDegrees(1, 2), 1)], 2, 0)
    assert re.search("^rank 1 .*signal 9", found.fault), found.fault
    assert found.row()[-1] == "FAILED"


def test_every_pair_of_layouts_is_there() -> None:
    assert [str(one) for one in seesaw_cases(4)][6:] == [
        "2-1 to 1-2 x 2",
        "1-2 to 2-1 x 2",
        "2-1 to 1-2",
        "1-2 to 2-1",
    ]
    assert len(seesaw_cases(4)) == 10
    assert max(one.job(0).num_ranks for one in seesaw_cases(4)) == 4


def test_a_fill_that_is_not_decoded_changes_nothing() -> None:
    """Only sequences 0 and 13 go on: the layout changes for the first fill and for the last one."""
    case, prompts = SeesawCase(STAGES, SLICES, 1), seesaw_prompts(3)
    wanted = expected_ranks(case, prompts, SHORT)
    assert len(list(buffer_fills(np.array([len(one) for one in prompts]), 24))) == 3
    assert {one.loads for one in wanted} == {4}
    rows = 2 * FOUR_LAYERS.num_kv_heads * FOUR_LAYERS.head_dim * FOUR_LAYERS.num_layers * 8
    assert sum(one.read for one in wanted) == rows * (len(prompts[0]) + len(prompts[13]))


def test_what_differs_is_told() -> None:
    case = SeesawCase(STAGES, SLICES, 1)
    right = [
        SeesawReport(dict(SHORT), one.loads, one.weights, one.written, one.read, 1)
        for one in expected_ranks(case, seesaw_prompts(3), SHORT)
    ]
    assert judged_seesaw(case, right, SHORT, 3).fault == ""
    for changed, told in (
        (replace(right[2], loads=3), "process 2 has loads=3; it takes 4"),
        (replace(right[2], written=0), r"process 2 has written=0; it takes \d+"),
        (replace(right[2], tokens={4: np.array([1])}), "sequence 4 of process 2 has other tokens than in one process"),
    ):
        fault = judged_seesaw(case, [*right[:2], changed, right[3]], SHORT, 3).fault
        assert re.search(told, fault), fault
    some = [replace(one, tokens={0: SHORT[0]}) for one in right]
    assert "13 sequences were not generated" in judged_seesaw(case, some, SHORT, 3).fault


def test_jobs_that_cannot_be_are_a_sentence() -> None:
    job = CASES[0].job(0)
    with pytest.raises(ValueError, match=r"^prefill is 4-1 and decode 2-1; they take as many processes$"):
        replace(job, decode=GenerateDegrees(2, 1))
    with pytest.raises(ValueError, match=r"^decode is 1-8; 8 has to divide 4 of model policy$"):
        replace(job, prefill=GenerateDegrees(4, 2), decode=GenerateDegrees(1, 8))


def test_bad_words_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "seesaw", "--ranks", "5"])
    assert __main__.main() == 2
    assert "--ranks is 5; it takes a whole number from 2 to 4" in capsys.readouterr().err
