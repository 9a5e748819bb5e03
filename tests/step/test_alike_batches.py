"""Micro-batches of a training step that are alike share what is equal, and nothing else of the step is another."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, fault, plan_of
from zbench.api.parts import cluster_named
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import play_step
from zbench.step.passes.build import whole_step
from zbench.step.passes.recompute import SomeLayers
from zbench.step.template import ITEM_COLUMNS
from zbench.step.text import step_text

DEEP = replace(MODEL, num_layers=4)
LENGTHS = ([7], [7], [5], [7], [5], [7])


def none_alike(plans: list[Plan], shares: tuple[tuple[float, ...], ...]) -> list[int]:
    return list(range(len(plans)))


@pytest.mark.parametrize(
    ("degree", "zero", "how"),
    [
        (2, "1", {"stages": 2}),
        (1, "none", {"stages": 4, "recompute": "selective"}),
        (1, "3", {}),
        (2, "2", {"window": 2}),
        (2, "1", {"window": StepOverlap(1, "end")}),
        (1, "1", {"window": StepOverlap("all")}),
        (1, "3", {"recompute": SomeLayers("full", (2,))}),
    ],
)
def test_the_step_is_as_without_sharing(
    degree: int, zero: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [plan_of(lengths, 2, 4 // degree, first=at) for at, lengths in enumerate(LENGTHS)]
    step = whole_step(DEEP, plans, degree, zero, **how)
    assert step.same_layouts == (0, 0, 2, 0, 2, 0)
    monkeypatch.setattr("zbench.step.passes.build.first_alike", none_alike)
    apart = whole_step(DEEP, plans, degree, zero, **how)
    assert apart.same_layouts == (0, 1, 2, 3, 4, 5)
    assert step_text(step) == step_text(apart)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    cluster = cluster_named("a100_80g_16x8", {"num_nodes": 1, "gpus_per_node": step.num_gpus, "nics_per_node": 1})
    cost = Cost(cluster=cluster, model=DEEP)
    shared, each = (play_step(one, plans, cost) for one in (step, apart))
    assert (shared.seconds, shared.ends, shared.inside) == (each.seconds, each.ends, each.inside)
    for name in ("busy", "nic_tx", "nic_rx", "spent"):
        for what, values in getattr(each, name).items():
            np.testing.assert_array_equal(getattr(shared, name)[what], values)
    np.testing.assert_array_equal(shared.memory.peak, each.memory.peak)


def test_all_but_counts_of_contributions_is_shared_in_the_middle() -> None:
    plans = [plan_of(lengths, 2, 4, first=at) for at, lengths in enumerate(LENGTHS)]
    by_name = {one.name: one for one in whole_step(DEEP, plans, zero="1").templates}
    for name in ("embedding", "forward", "head", "backward", "embedding_backward"):
        one, other = by_name[f"{name}.1"], by_name[f"{name}.3"]
        assert one.operations is other.operations
        for contract in ("needs", "leaves"):
            for column in ITEM_COLUMNS:
                same = getattr(getattr(one, contract), column) is getattr(getattr(other, contract), column)
                assert same or column == "count"
    assert by_name["backward.1"].leaves.count is not by_name["backward.3"].leaves.count
    assert by_name["backward.3"].operations is not by_name["backward.5"].operations  # which completes the gradients


def test_experts_are_drawn_for_each() -> None:
    plans = [plan_of([7], 2, 4, first=at) for at in range(3)]
    assert whole_step(EXPERTS, plans).same_layouts == (0, 1, 2)
