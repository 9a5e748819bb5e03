"""Sets of models: which models share GPUs, where each set lies, and what is refused in a sentence."""

import re

import pytest

from zbench.describe.rollouts.stages import COLOCATE, SPLIT, STANDALONE
from zbench.rollouts.model_sets import ModelSets

PPO = ("reference", "reward", "critic")


def test_sets_follow_one_another() -> None:
    split = ModelSets.of(SPLIT, PPO, 4, [2])
    assert split.models == (("actor", "reference"), ("reward", "critic"))
    assert [split.place_of(one) for one in ("actor", *PPO)] == [(0, 4), (0, 4), (4, 2), (4, 2)]
    assert split.of_ranks == [0, 0, 0, 0, 1, 1]
    apart = ModelSets.of(STANDALONE, PPO, 2, [1, 3, 2])
    assert [apart.place_of(one) for one in ("actor", *PPO)] == [(0, 2), (2, 1), (3, 3), (6, 2)]
    assert ModelSets.of(COLOCATE, PPO, 3, []).of_ranks == [0, 0, 0]


@pytest.mark.parametrize(
    ("placement", "models", "beside", "told"),
    [
        ("both", PPO, [2], "placement is 'both'; it takes colocate, split or standalone"),
        (
            SPLIT,
            ("reference",),
            [1],
            "placement is split and the models are actor, reference; there is no critic and no reward model for GPUs "
            "beside the actor's, so it takes colocate",
        ),
        (
            SPLIT,
            PPO,
            [1, 1],
            "beside is [1, 1]; with placement=split it takes 1 number, the GPUs of each set behind the actor's "
            "(actor, reference; reward, critic)",
        ),
        (STANDALONE, PPO, [1], "beside is [1]; with placement=standalone it takes 3 numbers, the GPUs of each set"),
        (COLOCATE, PPO, [1], "beside is [1]; with placement=colocate it takes 0 numbers"),
        (STANDALONE, PPO, [1, 0, 1], "beside is [1, 0, 1]; the set of reward has 0 GPUs, and takes at least 1"),
    ],
)
def test_what_cannot_be_is_told(placement: str, models: tuple[str, ...], beside: list[int], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        ModelSets.of(placement, models, 2, beside)
