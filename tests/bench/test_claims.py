"""What tests.bench.claims_worlds says of a ratio, and that what it plays can be."""

import pytest

from tests.bench.claims_cells import PAPERS, WORLDS, Paper
from tests.bench.claims_ratio import Ratio
from zbench.anchors.presets import worlds


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        (1.504, "not touched"),
        (1.6, "survives all"),
        (1.36, "survives all"),
        (1.34, "moves in nic_1"),
        (1.66, "moves in nic_1"),
        (0.9, "turns in nic_1"),
    ],
)
def test_a_ratio_moves_by_a_tenth_and_turns_below_one(elsewhere: float, told: str) -> None:
    assert Ratio("over ring", "", {"nominal": 1.5, "nic_1": elsewhere}).verdict() == told


def test_what_is_level_does_not_turn_by_rounding() -> None:
    assert Ratio("over ring", "", {"nominal": 1.002, "nic_1": 0.998}).verdict() == "not touched"
    assert Ratio("over ring", "", {"nominal": 1.003, "nic_1": 0.99}).verdict() == "turns in nic_1"


def test_a_range_names_its_ends() -> None:
    assert Ratio("", "", {"nominal": 2, "nic_1": 1.5, "nic_3": 3}).range() == "1.50 in nic_1, 3.00 in nic_3"


def test_worlds_are_all_but_the_older_clock_s() -> None:
    assert set(WORLDS) == set(worlds())


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_ratios_are_of_a_paper_s_own_sides(paper: Paper) -> None:
    sides = {side for _, slow, fast, _ in paper.ratios for side in (slow, fast)}
    assert sides == set(paper.sides)
    assert set(paper.without) < set(WORLDS)
