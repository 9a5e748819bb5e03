"""Layouts that processes do not generate with are refused in a sentence."""

from dataclasses import replace

import pytest

from zbench.correctness.loop.cases import Loop
from zbench.describe.job import ONE_STEP_OFF, STREAMED
from zbench.describe.rollouts.stages import SPLIT
from zbench.describe.rollouts.stages import STANDALONE as STANDALONE_MODELS
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import HYBRIDFLOW, STANDALONE
from zbench.rollouts.experience import GRPO, PPO


def test_generation_without_stages_and_of_whole_slices() -> None:
    with pytest.raises(ValueError, match=r"^generate is 2-1; processes generate without stages, so it takes 1-1$"):
        Loop(HYBRIDFLOW, TrainDegrees(2, 1, 1), GenerateDegrees(2, 1), 1, "ring").job(0)
    with pytest.raises(ValueError, match=r"^generate is 1-2; its tensor degree has to divide that of train=1-1-2, 1$"):
        Loop(STANDALONE, TrainDegrees(1, 1, 2), GenerateDegrees(1, 2), 1, "ring").job(0)


def test_generation_beside_training_takes_gpus_of_its_own() -> None:
    layout = HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1
    with pytest.raises(ValueError, match=r"^schedule is one_step_off and engine hybridflow; .*: engine standalone$"):
        Loop(*layout, "ring", GRPO, ONE_STEP_OFF).job(0)


def test_sets_have_all_ranks_and_none_is_bare() -> None:
    loop = Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "ring", PPO, placement=SPLIT, beside=(2,))
    job = loop.job(0)
    job.check_ranks(4)
    assert (job.own_ranks, job.num_ranks, job.others["critic"].first) == (2, 4, 2)
    with pytest.raises(ValueError, match=r"^the sets of models have 4 ranks together, and there are 5$"):
        job.check_ranks(5)
    with pytest.raises(ValueError, match=r"^the sets of models have 4 ranks together, and there are 3$"):
        job.check_ranks(3)
    apart = replace(job, others={"critic": replace(job.others["critic"], first=3)})
    with pytest.raises(ValueError, match=r"^rank 2 has no model; the sets of models .* have all 5$"):
        apart.check_ranks(5)


def test_sets_that_have_no_models_are_told() -> None:
    layout = HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1
    with pytest.raises(ValueError, match=r"^placement is split and .*no critic and no reward model .*takes colocate$"):
        Loop(*layout, "ring", GRPO, placement=SPLIT, beside=(1,)).job(0)
    with pytest.raises(ValueError, match=r"^beside is \[0\]; the set of critic has 0 GPUs, and takes at least 1$"):
        Loop(*layout, "ring", PPO, placement=SPLIT, beside=(0,)).job(0)
    with pytest.raises(
        ValueError, match=r"^schedule is streamed and placement standalone; .*, so it takes colocate or split$"
    ):
        Loop(*layout, "ring", PPO, STREAMED, STANDALONE_MODELS, (1, 1)).job(0)


def test_what_a_checkpoint_has_to_have_in_common() -> None:
    one = Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "ring")
    told = one.job(0).told()
    assert (told["engine"], told["train"], told["generate"], told["GPUs"]) == ("hybridflow", "1-2-1", "1-1", 2)
