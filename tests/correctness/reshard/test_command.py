"""python -m zbench.correctness reshard: weights arrive to the bit and the byte; what differs is told."""

import re
import sys
from dataclasses import replace

import pytest

from zbench.correctness import __main__
from zbench.correctness.reshard.cases import Reshard, cover, expected_gpu, layouts
from zbench.correctness.reshard.command import judged_reshard, kept_twice
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import EVERY_ENGINE, HYBRIDFLOW, HYBRIDFLOW_V, STANDALONE


def test_weights_arrive_on_processes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "reshard", "--ranks", "4", "--some", "40"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert __main__.main() == 0
    told = capsys.readouterr().out
    assert "40 layouts, 0 of them FAILED" in told
    rows = [[word.strip() for word in line.split("│")[1:-1]] for line in told.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == list(EVERY_ENGINE)
    inside, apart = ({row[0]: int(row[at].replace(",", "")) for row in rows} for at in (4, 5))
    assert inside[HYBRIDFLOW] > 0 == apart[HYBRIDFLOW]  # the training shard is a view of the generation shard
    assert apart[HYBRIDFLOW_V] > 0 == inside[STANDALONE]


def test_arithmetic_by_hand_is_that_of_the_step() -> None:
    """Both are of different sources: elements from degrees here, flags of parts there."""
    for case in layouts(6):
        made = case.made.bytes
        wanted = [expected_gpu(case, gpu) for gpu in range(case.num_gpus)]
        assert [one.received for one in wanted] == made.received.tolist()
        assert [one.peak for one in wanted] == made.peak.tolist()
        assert [kept_twice(one) for one in wanted] == made.redundant.tolist()


def test_a_cover_has_all_engines_in_turn() -> None:
    chosen = cover(4, 3, 20)
    assert len(chosen) == 20
    assert chosen == cover(4, 3, 20) != cover(4, 4, 20)
    assert {one.engine for one in chosen[:4]} == set(EVERY_ENGINE)


def test_what_differs_is_told() -> None:
    case = Reshard(HYBRIDFLOW_V, TrainDegrees(1, 4, 1), GenerateDegrees(1, 2), norms=False)
    right, step = [expected_gpu(case, gpu) for gpu in range(4)], case.made.step
    assert judged_reshard(case, right, step).fault == ""
    assert [kept_twice(one) for one in right] == [0, 3360, 3360, 0]
    for changed, told in (
        (replace(right[1], received=1), "GPU 1 has received=1; it takes 10080; GPU 1 received 1 bytes; the step says"),
        (replace(right[1], kept=99999), "GPU 1 has kept=99999; it takes 10080; GPU 1 keeps 93279 bytes twice"),
        (replace(right[1], inside=(True, True)), "GPU 1 has inside=.True, True.; it takes .False, False."),
        (replace(right[1], fault="what GPU 1 has again of w0 is not"), "what GPU 1 has again of w0 is not"),
    ):
        fault = judged_reshard(case, [right[0], changed, *right[2:]], step).fault
        assert re.search(told, fault), fault


def test_bad_words_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "reshard", "--ranks", "9"])
    assert __main__.main() == 2
    assert "--ranks is 9" in capsys.readouterr().err
