"""python -m zbench.correctness loop: generation and training on processes come to one process; differences are told."""

import os
import re
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest

from zbench.correctness import __main__
from zbench.correctness.loop.cases import AloneReport, Loop
from zbench.correctness.loop.command import LAYOUTS, SYSTEMS, compared_loop, judged_again, judged_loop, loops
from zbench.correctness.loop.driver import LoopDriver, LoopIteration
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, EVERY_ENGINE, HYBRIDFLOW, STANDALONE
from zbench.rollouts.experience import CRITICS, GRPO, LEARNT_BY, PPO, REMAX, SAFE_RLHF
from zbench.runtime.job.job import AdamW
from zbench.runtime.processes.launch import LocalFleet

SHARED = Loop(HYBRIDFLOW, TrainDegrees(2, 2, 1), GenerateDegrees(1, 2), 1, "verl_balance")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(
    "loop",
    [
        SHARED,
        Loop(DS_CHAT, TrainDegrees(1, 2, 1), GenerateDegrees(1, 2), 1, "nodewise", SAFE_RLHF),
        Loop(STANDALONE, TrainDegrees(1, 1, 2), GenerateDegrees(1, 1), 1, "zeppelin", PPO),
        Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "flexsp", REMAX),
    ],
    ids=str,
)
def test_a_loop_comes_to_one_process(loop: Loop) -> None:
    found = compared_loop(loop, loop.job(3), 3, resumed=loop.engine == DS_CHAT)
    assert found.fault == ""
    assert found.tokens > 200
    assert found.clipped > 10
    assert len(loop.job(0).critics) == {PPO: 1, SAFE_RLHF: len(CRITICS)}.get(loop.algorithm, 0)
    assert (abs(found.multiplier - 1) > 1e-3) == (loop.algorithm == SAFE_RLHF)
    inside, every = found.shared
    assert inside == (0 if loop.engine == STANDALONE else every) < every + 1


def test_another_update_is_found() -> None:
    """A loop that learns at another rate comes to other weights after its first update, and then to other words."""
    loop = Loop(STANDALONE, TrainDegrees(1, 1, 1), GenerateDegrees(1, 1), 1, "local_packing")
    job = loop.job(0)
    found = compared_loop(loop, replace(job, steps=replace(job.steps, optimizer=AdamW(lr=2e-2))), 0)
    assert re.search("of iteration 1 have other tokens; .*the weights differ by", found.fault), found.fault


def test_a_killed_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = LoopDriver.iterate

    def killed(driver: LoopDriver, iteration: int, compared: bool = True) -> LoopIteration:
        assert isinstance(driver.fleet, LocalFleet)
        os.kill(driver.fleet.pids[1], signal.SIGKILL)
        return iterate(driver, iteration, compared)

    monkeypatch.setattr(LoopDriver, "iterate", killed)
    loop = Loop(STANDALONE, TrainDegrees(1, 1, 1), GenerateDegrees(1, 1), 1, "local_packing")
    found = compared_loop(loop, loop.job(0), 0)
    assert re.search("^rank 1 .*signal 9", found.fault), found.fault
    assert found.row()[-1] == "FAILED"


def test_what_differs_is_told() -> None:
    words = [np.array([1, 2, 0])]
    right, stated = (
        LoopIteration(words, 2, ((0.5,), (0.4, 0.4)), ((0, 8), (8, 0)), (True,), 1e-15, ("", "")),
        [(0, 8), (8, 0)],
    )
    alone = [AloneReport(words, [0.5, 0.4], [0.7, 0.7], 1, 1.0)]
    assert judged_loop(SHARED, [right], alone, stated).fault == ""
    for changed, told in (
        (replace(right, sequences=[np.array([1, 3, 0])]), "responses 0 of iteration 0 have other tokens"),
        (replace(right, losses=((0.5,), (0.4, 0.5))), "the losses differ by 1.4e-01, above 1e-12"),
        (replace(right, losses=((0.5,), ())), "the losses differ by nan"),
        (replace(right, multiplier=1 + 1e-11), "the multiplier is 1.00000000001, and in one process 1.0"),
        (replace(right, weights=float("nan")), "the weights differ by nan"),
        (replace(right, moved=((0, 8), (0, 0))), "ranks have .* bytes of weights; the step says"),
        (replace(right, shared=(False,)), "1 shards of training lay apart"),
    ):
        fault = judged_loop(SHARED, [changed], alone, stated).fault
        assert re.search(told, fault), fault


def test_what_is_another_one_after_a_checkpoint_is_told() -> None:
    words = [np.array([1, 2, 0])]
    one = LoopIteration(words, 2, ((0.5,),), (), (), 0.0, ("a", "b"))
    assert judged_again([one, one], [one]) == judged_again([one], []) == ""
    for changed in (
        replace(one, digests=("a", "c")),
        replace(one, multiplier=2.0),
        replace(one, losses=((0.5 + 1e-16 * 2,),)),
    ):
        assert judged_again([one, one], [changed]) == "iteration 1 is another one after a checkpoint"


def test_every_layout_and_every_system_is_there() -> None:
    chosen = loops(SYSTEMS, LEARNT_BY)
    assert {(one.engine, one.algorithm) for one in chosen} == {(a, b) for a in EVERY_ENGINE for b in LEARNT_BY}
    assert {(one.algorithm, one.system) for one in chosen} == {(a, b) for a in LEARNT_BY for b in SYSTEMS}
    assert len(loops(SYSTEMS, [GRPO, PPO], every=True)) == 2 * len(LAYOUTS) * len(SYSTEMS)
    assert len(loops(["ring"] * 20)) == 20
    assert max(one.num_ranks for one in chosen) == 4


@pytest.mark.parametrize(("word", "value"), [("--systems", "nodewize"), ("--algorithms", "dpo")])
def test_bad_words_are_told(
    word: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "loop", word, value])
    assert __main__.main() == 2
    assert value in capsys.readouterr().err
