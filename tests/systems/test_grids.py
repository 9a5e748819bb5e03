"""Estimates of grids against what they take when built and played."""

import numpy as np
import pytest

from tests.helpers.oracles import A100, H100, batches, small
from zbench.describe.device import Device
from zbench.simulator.estimate.step import layer_seconds
from zbench.systems.common.grids import (
    Grid,
    context_first,
    estimates,
    exchange_degrees,
    grid_plan,
    grid_prices,
    head_first,
)
from zbench.systems.loongtrain import LoongTrain


@pytest.mark.parametrize(
    ("ranks", "heads", "found"), [(8, 32, [1, 2, 4, 8]), (12, 4, [1, 2, 3, 4]), (7, 6, [1]), (1, 1, [1])]
)
def test_degrees_divide_the_ranks_and_leave_heads(ranks: int, heads: int, found: list[int]) -> None:
    assert exchange_degrees(ranks, heads) == found


def test_placements_differ_in_who_is_whose_neighbour() -> None:
    assert head_first(8, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert context_first(8, 4).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("device", [A100, H100], ids=lambda device: device.name)
@pytest.mark.parametrize("model", ["mha", "gqa"])
def test_estimates_are_within_a_third(device: Device, model: str) -> None:
    cost = small(2, 4, device, model)
    grids = LoongTrain(cost).grids()
    ratios = []
    for batch in batches(6):
        every = np.arange(len(batch.lengths))
        played = [layer_seconds(grid_plan(batch.lengths, every, grid, cost, "carry"), cost, 3) for grid in grids]
        ratios += (estimates(batch.lengths, grid_prices(grids, cost), cost, "carry") / played).tolist()
    assert 0.9 < np.median(ratios) < 1.2
    assert min(ratios) > 0.67
    assert max(ratios) < 1.5


def test_num_ops_is_that_of_the_forward() -> None:
    cost = small(2, 4)
    for degree in exchange_degrees(8, 32):
        grid = Grid(head_first(8, degree), 8 // degree)
        assert grid.num_ops == len(grid_plan(np.array([9000, 800]), np.arange(2), grid, cost, "carry").forward)
