"""Names of operations in field words: every tensor that a model's steps have is told in words, and none twice."""

import re

import pytest

from tests.runtime.test_step_executor import EXPERTS, WORKLOAD, cost_of, systems
from zbench.cost.cost import Cost
from zbench.describe.expert_schedule import Experts
from zbench.simulated.executor import Simulated
from zbench.step.passes.rounds.outer_step import SHARE
from zbench.step.template import Step
from zbench.trace.words import tensor_words

LETTERS = re.compile(r"\w{1,4}~?")


def steps_of(cost: Cost, **settings: object) -> Step:
    batch = WORKLOAD.batch(0)
    return Simulated(cost, **settings).built(batch, systems(cost).plan(batch))  # type: ignore[arg-type]


CHOOSING = Experts(routing="token_choice")
STEPS = {
    "dense, again": steps_of(cost_of(sharding="zero3", recompute="full")),
    "experts": steps_of(cost_of(model=EXPERTS, sharding="zero1"), expert_parallel=2),
    "chosen experts": steps_of(cost_of(model=EXPERTS, sharding="zero1"), expert_parallel=2, experts=CHOOSING),
    "two levels": steps_of(
        cost_of(2, 2, model=EXPERTS, sharding="zero1"), expert_parallel=4, experts=Experts(dispatch="two_level")
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_tensor_of_a_step_has_words(name: str) -> None:
    for layout in STEPS[name].layouts:
        names = [one.name for one in layout.tensors]
        words = [tensor_words(one, names) for one in names]
        assert all(told not in names or told == "loss" for told in words)
        assert not [told for told in words if LETTERS.fullmatch(told) and told != "loss"]
        again = [told for one, told in zip(names, words, strict=True) if one.endswith("~")]
        assert all(told.endswith(", recomputed") for told in again)


def test_gradients_and_states_are_of_what_they_are_of() -> None:
    told = {name: tensor_words(name) for name in ("dkv", "dwq", "swq", "dx~", "ed", "ded")}
    assert told == {
        "dkv": "gradients of keys and values",
        "dwq": "gradients of query weights",
        "swq": "optimizer state of query weights",
        "dx~": "gradients of hidden states, recomputed",
        "ed": "experts' down weights",
        "ded": "gradients of experts' down weights",
    }


def test_where_a_round_ends_d_is_an_average() -> None:
    assert [tensor_words(one, [SHARE]) for one in ("dwq", "pwq", "mwq", "cwq")] == [
        "averages of query weights",
        "outer parameters of query weights",
        "outer momentum of query weights",
        "outer parameters of query weights",
    ]


def test_names_of_others_stay() -> None:
    assert [tensor_words(one, ["h1", "dh1"]) for one in ("h1", "dh1", "dh2")] == ["h1", "gradients of h1", "dh2"]
