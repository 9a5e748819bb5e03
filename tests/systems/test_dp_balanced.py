"""Megatron's dp_balanced: packs in the order of the batch, a multiple of the groups."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.dp_balanced import DpBalanced, assign_packs, balanced_packs

A = [812, 90, 33, 415, 1200, 77, 64, 5, 300, 210, 48, 950]
B = [3000, 20, 20, 20, 700, 701, 699, 40]
C = [9, 9, 9, 9, 9, 9, 30, 1]
# Lengths, groups, tokens of a pack, and the packs of every group in turn, as DpBalancedScheduler.get_groups_and_
# subsamples of Megatron-LM d48bd6be gives them (with context parallelism of 1). It agreed on 1,958 random batches too.
# Kept as examples because megatron-core up to 0.19.2, its last release, has not got the class.
MEGATRON = [
    (A, 2, 1300, [[[0, 1, 2], [4, 5], [11]], [[3], [6, 7, 8, 9], [10]]]),
    (A, 4, 1300, [[[0, 1, 2], [11]], [[3], [10]], [[4, 5], [9]], [[6, 7], [8]]]),
    (B, 2, 3000, [[[0]], [[1, 2, 3, 4, 5, 6, 7]]]),
    (C, 4, 30, [[[0, 1, 2]], [[3, 4, 5]], [[6]], [[7]]]),
    (C, 3, 30, [[[0, 1, 2], [7]], [[3], [5]], [[6], [4]]]),
]


@pytest.mark.parametrize(("lengths", "groups", "most", "theirs"), MEGATRON)
def test_packs_are_megatron_s(lengths: list[int], groups: int, most: int, theirs: list[list[list[int]]]) -> None:
    found = assign_packs(np.array(lengths), groups, most)
    for group, turns in enumerate(theirs):
        for turn, seqs in enumerate(turns):
            assert np.flatnonzero((found == [turn, group]).all(axis=1)).tolist() == seqs


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 6000))
def test_packs_hold_what_they_may_and_groups_have_as_many(lengths: list[int], groups: int, most: int) -> None:
    found = balanced_packs(list(lengths), groups, most)
    assert sorted(seq for pack in found for seq in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[seq] for seq in pack) <= most for pack in found)
    assert len(found) % groups == 0 or all(len(pack) == 1 for pack in found)


def test_the_degree_has_room_for_what_a_ring_receives(cost: Cost) -> None:
    """Half a sequence fits each of two GPUs, but not with the keys of the other half."""
    limit = 2 * fitting_tokens(cost)
    batch = Batch(np.array([limit]), seed=0, step=0)
    assert not StepEstimate(cost).fits(batch, DpBalanced(cost, degree=2).plan(batch))
    assert StepEstimate(cost).fits(batch, DpBalanced(cost, context_limit=limit).plan(batch))


def test_packs_are_as_large_as_memory_allows(cost: Cost) -> None:
    batch = Batch(np.array([fitting_tokens(cost) // 2] * 12), seed=0, step=0)
    for degree in (1, 2, 4):
        plans = DpBalanced(cost, degree=degree).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("pack_tokens", 0, "system.pack_tokens is 0; it takes a whole number of at least 1, or null"),
        ("context_limit", "4K", "system.context_limit is '4K'; it takes a whole number of at least 1, or null"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        DpBalanced(cost, **{key: value})  # type: ignore[arg-type]
