"""Cuts of layers into stages against trying all of them."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest

from zbench.cost.by_layer.stage_cuts import balance, balanced_cut, even_cut, moved_cut, pipeline_seconds


def every_cut(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for ends in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, layers)))


def test_even_cuts_differ_by_one_layer() -> None:
    assert even_cut(8, 4) == (2, 2, 2, 2)
    assert even_cut(60, 8) == (7, 8, 7, 8, 7, 8, 7, 8)
    assert even_cut(5, 5) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("seed", range(12))
def test_the_heaviest_stage_of_a_balanced_cut_is_as_light_as_can_be(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages, layers = int(rng.integers(1, 5)), int(rng.integers(5, 10))
    each, own = rng.uniform(1, 3, stages), rng.uniform(0, 4, stages)

    def weight(stage: int, count: int) -> float:
        return float(own[stage] + count * each[stage])

    def heaviest(cut: tuple[int, ...]) -> float:
        return max(weight(stage, count) for stage, count in enumerate(cut))

    found = balanced_cut(layers, stages, weight)
    assert (sum(found), len(found)) == (layers, stages)
    assert heaviest(found) == pytest.approx(min(map(heaviest, every_cut(layers, stages))))


def test_the_degree_of_balance_is_highest_where_all_are_alike() -> None:
    assert balance([2.0, 2.0, 2.0, 2.0]) == 0.75
    assert balance([5.0, 1.0, 1.0, 1.0]) == 0.375


def test_a_pipeline_waits_for_its_slowest_stage() -> None:
    assert pipeline_seconds([1.0, 3.0, 2.0], 4) == 6.0 + 3 * 3.0


@pytest.mark.parametrize("seed", range(12))
def test_moves_end_at_a_cut_that_no_move_from_the_slowest_stage_betters(seed: int) -> None:
    """Where a stage's seconds grow with its layers, and with it what does not fit, the end is the best of all cuts."""
    rng = np.random.default_rng(seed)
    stages, layers, micro_batches = 3, 9, int(rng.integers(8, 65))
    own, most = rng.uniform(0, 3, stages), rng.integers(4, 8, stages)

    def seconds(stage: int, count: int) -> float:
        return float(own[stage] + count) if count <= most[stage] else inf

    def total(cut: tuple[int, ...]) -> float:
        return pipeline_seconds([seconds(stage, count) for stage, count in enumerate(cut)], micro_batches)

    begun = even_cut(layers, stages)
    found = moved_cut(begun, seconds, micro_batches)
    best = min(map(total, every_cut(layers, stages)))
    assert total(found) <= total(begun)
    assert best <= total(found) <= best * 1.25


def test_a_layer_goes_from_the_slowest_stage_to_the_neighbour_with_room() -> None:
    def seconds(stage: int, count: int) -> float:
        return (inf if stage == 0 and count > 2 else float(count)) + 3.0 * (stage == 2)

    assert moved_cut((2, 2, 2), seconds, 8) == (2, 3, 1)
