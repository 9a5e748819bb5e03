"""python -m zbench.correctness loop: generation and training on processes come to one process; differences are told."""

import os
import re
import signal
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from zbench.correctness import __main__
from zbench.correctness.loop import command
from zbench.correctness.loop.cases import AloneReport, Loop
from zbench.correctness.loop.chosen import LAYOUTS, SYSTEMS, each_layout, every_loop, paired_loops
from zbench.correctness.loop.command import compared_loop, judged_again, judged_loop
from zbench.correctness.loop.driver import LoopDriver, LoopIteration, NumbersMoved
from zbench.describe.job import ONE_STEP_OFF, STREAMED
from zbench.describe.rollouts.stages import COLOCATE, SPLIT
from zbench.describe.rollouts.stages import STANDALONE as STANDALONE_MODELS
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, EVERY_ENGINE, HYBRIDFLOW, STANDALONE
from zbench.rollouts.experience import CRITICS, GRPO, LEARNT_BY, PPO, REMAX, SAFE_RLHF
from zbench.runtime.job.job import AdamW
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.rollouts.policy_job import LOOP_SCHEDULES, TAIL

pytestmark = pytest.mark.usefixtures("one_thread")

SHARED = Loop(HYBRIDFLOW, TrainDegrees(2, 2, 1), GenerateDegrees(1, 2), 1, "verl_balance")
SPLIT_PPO = Loop(
    HYBRIDFLOW,
    TrainDegrees(1, 2, 1),
    GenerateDegrees(1, 1),
    1,
    "zeppelin",
    PPO,
    placement=SPLIT,
    beside=(2,),
    has_reward_model=True,
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "loop",
    [
        SHARED,
        Loop(DS_CHAT, TrainDegrees(1, 2, 1), GenerateDegrees(1, 2), 1, "nodewise", SAFE_RLHF),
        Loop(STANDALONE, TrainDegrees(1, 1, 1), GenerateDegrees(1, 1), 1, "zeppelin", PPO, ONE_STEP_OFF),
        Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "flexsp", REMAX, TAIL),
        Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "zeppelin", GRPO, STREAMED),
        SPLIT_PPO,
        replace(SPLIT_PPO, train=TrainDegrees(1, 1, 1), placement=STANDALONE_MODELS, beside=(1, 1, 1)),
    ],
    ids=str,
)
def test_a_loop_comes_to_one_process(loop: Loop) -> None:
    found = compared_loop(loop, loop.job(3), 3, resumed=loop.schedule == ONE_STEP_OFF or loop.placement == SPLIT)
    assert found.fault == ""
    assert found.tokens > 200
    assert found.clipped > 10
    assert len(loop.job(0).critics) == {PPO: 1, SAFE_RLHF: len(CRITICS)}.get(loop.algorithm, 0)
    assert (abs(found.multiplier - 1) > 1e-3) == (loop.algorithm == SAFE_RLHF)
    assert (found.age > 0, found.given_up > 0) == (loop.schedule == ONE_STEP_OFF, loop.schedule == TAIL)
    inside, every = found.shared
    assert inside == (0 if loop.engine == STANDALONE else every) < every + 1
    assert (found.between > 0) == (loop.placement != COLOCATE)
    assert found.numbers >= found.between
    trains_apart = bool(loop.job(0).critics) and (loop.placement != COLOCATE or loop.engine == STANDALONE)
    assert (found.busy[0] > 0) == trains_apart


def test_sets_of_models_train_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set waits in turns until the other one has ended the same update, which would never be, one after the
    other."""
    monkeypatch.setattr(command, "RANK", "tests.correctness.loop.waiting:WaitingRank")
    loop = replace(SPLIT_PPO, train=TrainDegrees(1, 1, 1), beside=(1,))
    found = compared_loop(loop, loop.job(1), 1)
    assert found.fault == ""
    assert found.busy[0] > 0


def test_bytes_between_sets_are_those_of_what_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one process of critic and reward model: tokens go to it, values and rewards to the actor's set, and from
    there what the critic is trained to; its values it has."""
    iterations = list[LoopIteration]()
    iterate = LoopDriver.iterate

    def noted(driver: LoopDriver, iteration: int, compared: bool = True) -> LoopIteration:
        iterations.append(iterate(driver, iteration, compared))
        return iterations[-1]

    monkeypatch.setattr(LoopDriver, "iterate", noted)
    loop = replace(SPLIT_PPO, train=TrainDegrees(1, 1, 1), beside=(1,))
    found = compared_loop(loop, loop.job(2), 2)
    assert found.fault == ""
    tokens = sum(len(one) for iteration in iterations for one in iteration.sequences)
    responses = sum(len(iteration.sequences) for iteration in iterations)
    assert found.numbers == found.between == 8 * (tokens + found.tokens + responses + found.tokens)


def test_another_update_is_found() -> None:
    """A loop that learns at another rate comes to other weights after its first update, and then to other words."""
    loop = Loop(STANDALONE, TrainDegrees(1, 1, 1), GenerateDegrees(1, 1), 1, "local_packing")
    job = loop.job(0)
    found = compared_loop(loop, replace(job, steps=replace(job.steps, optimizer=AdamW(lr=2e-2))), 0)
    assert re.search("of iteration 1 have other tokens; .*the weights differ by", found.fault), found.fault


@pytest.mark.parametrize(
    "loop",
    [
        Loop(STANDALONE, TrainDegrees(1, 1, 1), GenerateDegrees(1, 1), 1, "local_packing"),
        replace(SPLIT_PPO, train=TrainDegrees(1, 1, 1), beside=(1,)),  # rank 1 has the critic and the reward model
    ],
    ids=str,
)
def test_a_killed_rank_is_told(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = LoopDriver.iterate

    def killed(driver: LoopDriver, iteration: int, compared: bool = True) -> LoopIteration:
        assert isinstance(driver.fleet, LocalFleet)
        os.kill(driver.fleet.pids[1], signal.SIGKILL)
        return iterate(driver, iteration, compared)

    monkeypatch.setattr(LoopDriver, "iterate", killed)
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
        (replace(right, age=2), "iteration 0 .* of 2 updates before generated, and gave 0 tokens up; .* it is 0 and 0"),
        (replace(right, moved=((0, 8), (0, 0))), "ranks have .* bytes of weights; the step says"),
        (
            replace(right, numbers=(NumbersMoved(((0, 8), (8, 0)), ((0, 16), (8, 0)), 8),)),
            "ranks have .* bytes of tokens' numbers in iteration 0; the step says",
        ),
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


def test_every_pair_is_there() -> None:
    given = SYSTEMS, LEARNT_BY, LOOP_SCHEDULES
    every, few = every_loop(*given), paired_loops(*given)
    for of in combinations(("engine", "algorithm", "schedule", "system", "placement"), 2):
        pairs, wanted = ({tuple(getattr(one, name) for name in of) for one in some} for some in (few, every))
        assert pairs == wanted
    colocated, beside = (
        [one for one in LAYOUTS if (one[4] == COLOCATE) == is_colocated] for is_colocated in (True, False)
    )
    assert len(few) < 30 < len(every)
    every_of_layouts = 3 * len(colocated) + 3 + 3 * len(beside)  # one step off policy on three, and on one of these
    assert len(every) == every_of_layouts * len(SYSTEMS) * len(LEARNT_BY)  # streamed on all but one
    assert {one.engine for one in every} == set(EVERY_ENGINE)
    once = each_layout(*given)
    told = [(one.engine, str(one.train), str(one.generate), one.replicas, one.placement) for one in once]
    assert told == [one[:-1] for one in LAYOUTS]
    for name, values in (("algorithm", LEARNT_BY), ("schedule", LOOP_SCHEDULES), ("system", SYSTEMS)):
        assert {getattr(one, name) for one in once} == set(values)
    assert max(one.num_ranks for one in every if one.algorithm == PPO) == 4
    assert all(one.has_reward_model == (one.placement != COLOCATE) == bool(one.beside) for one in every)
    assert max(one.num_ranks for one in every) == 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--placements both", "--placements has 'both'; it takes colocate, split, standalone"),
        ("--placements split --beside 0", "beside is [0]; the set of reward, critic has 0 GPUs, and takes at least 1"),
        ("--placements split --beside 1,1", "beside is [1, 1]; with placement=split it takes 1 number"),
        ("--placements split --beside two", "--beside is 'two'; it takes a whole number for each set"),
        ("--placements colocate --beside 2", "--beside is 2; with --placements colocate all models share processes"),
        ("--placements standalone --schedules one_step_off", "no layout goes with all of"),
    ],
)
def test_bad_placements_are_told(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "loop", "--quick", "--algorithms", "ppo", *words.split()])
    assert __main__.main() == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("word", "value"), [("--systems", "nodewize"), ("--algorithms", "dpo"), ("--schedules", "late")]
)
def test_bad_words_are_told(
    word: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", "loop", word, value])
    assert __main__.main() == 2
    assert value in capsys.readouterr().err
