"""Candidates: by what the clock says where that is asked, by their estimates elsewhere, built only when wanted."""

import numpy as np
import pytest

from tests.helpers.oracles import small
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Plan
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.common import best_first as module
from zbench.systems.common.best_first import LAYERS, best_first

COST = small(1, 4)


def plan(width: int) -> Plan:
    """A long sequence over `width` ranks: the wider, the faster."""
    builder = Builder(np.array([16_000]), 4, 32)
    ring(builder, np.zeros(1, np.int64), np.zeros(1, np.int64), np.arange(width).reshape(1, -1))
    return reverse(builder.build(), "carry")


def widths(estimates: list[float], near: float, most: int, num_ops: int = 10) -> tuple[list[int], list[int]]:
    """(widths in the order given back, widths built by the time of the first).

    estimates: of each width, in what the fastest of all takes.
    """
    seconds = np.array(estimates) * layer_seconds(plan(4), COST, LAYERS)
    built: list[int] = []

    def build(index: int) -> Plan:
        built.append(index + 1)
        return plan(index + 1)

    found = best_first(seconds, np.full(len(seconds), num_ops), build, COST, near, most)
    first = next(found)
    early = built.copy()
    return [len(set(one.blocks.home.tolist())) for one in (first, *found)], early


def test_the_near_ones_are_played_and_the_others_follow_unbuilt() -> None:
    assert widths([1.0, 1.1, 1.2, 9.0], 1.3, 3) == ([3, 2, 1, 4], [1, 2, 3])


def test_no_more_than_asked_are_played() -> None:
    assert widths([1.0, 1.1, 1.2, 1.25], 1.3, 2) == ([2, 1, 3, 4], [1, 2])


def test_one_far_over_the_best_played_is_not_played() -> None:
    """Its estimate is higher than any estimate was above what was played."""
    assert widths([1.6, 9.0, 9.0, 1.0], 2.0, 4) == ([4, 1, 2, 3], [4])
    assert widths([1.4, 9.0, 9.0, 1.0], 2.0, 4) == ([4, 1, 2, 3], [4, 1])


def test_large_ones_rest_on_their_estimate() -> None:
    assert widths([1.2, 1.0, 1.1, 1.3], 9.0, 4, module.MOST_PLAYED) == ([2, 3, 1, 4], [2])


@pytest.mark.parametrize("last", [9.0, np.inf])
def test_one_that_cannot_be_comes_last(last: float) -> None:
    assert widths([last, 1.0], 1.3, 3) == ([2, 1], [2])
