"""Layouts that processes do not generate with are refused in a sentence."""

import pytest

from zbench.correctness.loop.cases import Loop
from zbench.describe.job import ONE_STEP_OFF
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import HYBRIDFLOW, STANDALONE
from zbench.rollouts.experience import GRPO


def test_generation_without_stages_and_of_whole_slices() -> None:
    with pytest.raises(ValueError, match=r"^generate is 2-1; processes generate without stages, so it takes 1-1$"):
        Loop(HYBRIDFLOW, TrainDegrees(2, 1, 1), GenerateDegrees(2, 1), 1, "ring").job(0)
    with pytest.raises(ValueError, match=r"^generate is 1-2; its tensor degree has to divide that of train=1-1-2, 1$"):
        Loop(STANDALONE, TrainDegrees(1, 1, 2), GenerateDegrees(1, 2), 1, "ring").job(0)


def test_generation_beside_training_takes_gpus_of_its_own() -> None:
    layout = HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1
    with pytest.raises(ValueError, match=r"^schedule is one_step_off and engine hybridflow; .*: engine standalone$"):
        Loop(*layout, "ring", GRPO, ONE_STEP_OFF).job(0)


def test_what_a_checkpoint_has_to_have_in_common() -> None:
    one = Loop(HYBRIDFLOW, TrainDegrees(1, 2, 1), GenerateDegrees(1, 1), 1, "ring")
    told = one.job(0).told()
    assert (told["engine"], told["train"], told["generate"], told["GPUs"]) == ("hybridflow", "1-2-1", "1-1", 2)
