"""Sentences on a strategy that does less than its words say."""

from dataclasses import replace
from typing import Any

import pytest

from zbench.describe.model import Model
from zbench.run.notes.strategy import (
    idle_stages,
    in_one_level,
    replaced_degrees,
    unmoved_tokens,
    untrained_router,
    unused_micro_batches,
)

MODEL = Model("m", num_layers=2, hidden=16, num_heads=4, num_kv_heads=4, head_dim=4, ffn_hidden=32, vocab=64)
USUAL = {"tensor_parallel": 1, "pipeline_parallel": 4, "expert_parallel": 1, "expert_tensor_parallel": 1}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_experts": 4}, True),
        ({"num_experts": 4, "gate": "sigmoid"}, True),
        ({"num_experts": 4, "gate": "softmax_all"}, False),
        ({"num_experts": 4, "experts_per_token": 2}, False),
        ({}, False),
    ],
)
def test_a_router_whose_only_share_is_one_is_told(fields: dict[str, Any], told: bool) -> None:
    found = untrained_router(replace(MODEL, **fields))
    assert ["routers learn nothing" in line for line in found] == [True] * told


@pytest.mark.parametrize(
    ("chosen", "parallel", "told"),
    [
        ("tp8", {"tensor_parallel": 8, "pipeline_parallel": 1}, ["parallel=tp8 takes its place", "is 1; parallel.pip"]),
        ("tp8", {"tensor_parallel": 8, "pipeline_parallel": 4}, []),
        ("pp4", {"tensor_parallel": 1, "pipeline_parallel": 1}, []),  # the key itself, not another choice
        ("none", {"tensor_parallel": 1, "pipeline_parallel": 2}, []),
    ],
)
def test_degrees_that_another_choice_replaced_are_told(chosen: str, parallel: dict[str, int], told: list[str]) -> None:
    found = " ".join(replaced_degrees("m", "pp4", USUAL, chosen, parallel))
    assert bool(found) == bool(told)
    assert all(words in found for words in told)


def test_a_pipeline_with_as_many_micro_batches_as_stages_is_full() -> None:
    assert idle_stages(4, 4) == []
    assert idle_stages(1, 4)[0].startswith("1 micro-batch for 4 stages: at any time 3 or more of them wait; ")


def test_a_number_of_micro_batches_that_nobody_takes_is_told() -> None:
    assert unused_micro_batches(1, 3, 1, "ring") == unused_micro_batches(4, 4, 4, "bytescale") == []
    assert unused_micro_batches(4, 1, 1, "ring") == [
        "model.micro_batches is 4, and without stages a system chooses a number by itself, which is 1 at most here."
    ]
    assert (
        "and bytescale chooses a number by itself, which is 9 at most" in unused_micro_batches(4, 9, 2, "bytescale")[0]
    )


def test_popular_experts_that_every_gpu_has_are_told() -> None:
    assert unmoved_tokens(0, 1) == unmoved_tokens(1.2, 4) == []
    assert unmoved_tokens(1.2, 1)[0].startswith("experts.skew is 1.2, and every GPU has all experts")


def test_rows_go_in_two_levels_where_experts_have_several_nodes() -> None:
    assert in_one_level("two_level", 16, 8) == in_one_level("flat", 8, 8) == []
    assert in_one_level("2dh", 8, 8)[0].endswith("in one node of 8, so rows go as with flat.")
