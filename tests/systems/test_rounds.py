"""Congestion-free rounds: matchings, and as few as there can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.systems.common.rounds import colour_rounds


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=80))
def test_every_round_is_a_matching_and_none_is_too_many(ranks: int, edges: list[tuple[int, int]]) -> None:
    src, dst = (np.array([edge[end] % ranks for edge in edges], np.int64) for end in (0, 1))
    found = colour_rounds(src, dst, ranks)
    assert len(found) == len(edges)
    if edges:
        assert found.min() >= 0
        assert found.max() < max(np.bincount(src).max(), np.bincount(dst).max())
    for end in (src, dst):
        assert len(set(zip(end.tolist(), found.tolist(), strict=True))) == len(edges)


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_an_all_to_all_takes_one_round_fewer_than_ranks(ranks: int) -> None:
    here, there = (axis.reshape(-1) for axis in np.indices((ranks, ranks)))
    other = here != there
    assert colour_rounds(here[other], there[other], ranks).max() == ranks - 2


def test_the_first_transfers_go_first_where_they_can() -> None:
    assert colour_rounds(np.array([0, 1, 0, 1]), np.array([2, 3, 3, 2]), 4).tolist() == [0, 0, 1, 1]
