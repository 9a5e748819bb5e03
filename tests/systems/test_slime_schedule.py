"""slime's schedule: packs first, groups then."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import MODELS
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.slime_schedule import SlimeSchedule, forward_flops, halve, slime_packs

A = [812, 90, 33, 415, 1200, 77, 64, 5, 300, 210, 48, 950]
B = [3000, 20, 20, 20, 700, 701, 699, 40]
C = [9, 9, 9, 9, 9, 9, 30, 1]
# Lengths, groups, tokens of a pack, balance_data, balance_by_flops, and every group's packs in turn, as
# build_dp_schedule of slime 624b824a gives them for the model "gqa" of tests/helpers/oracles.py. It agreed on 6,000
# random batches too, 2,000 of each way to balance. Kept as examples because no package has slime's code: `slime` 0.0.0
# is a library of mixed-effects models.
SLIME = [
    (A, 2, 1200, False, False, [[[0, 1, 2, 5, 6, 7, 10], [4]], [[3, 8, 9], [11]]]),
    (A, 2, 1200, True, False, [[[3, 8, 9], [4]], [[0, 1, 2, 5, 6, 7, 10], [11]]]),
    (A, 2, 1200, True, True, [[[4], [3, 6, 7, 8, 9]], [[0, 1, 2, 5], [10, 11]]]),
    (A, 4, 1200, False, False, [[[0, 1, 2, 5, 6, 7, 10]], [[3, 8, 9]], [[4]], [[11]]]),
    (A, 4, 1200, True, False, [[[4]], [[0, 1, 2, 5, 6, 7, 10]], [[11]], [[3, 8, 9]]]),
    (A, 4, 1200, True, True, [[[4]], [[0, 1, 2, 5]], [[10, 11]], [[3, 6, 7, 8, 9]]]),
    (B, 2, 1000, False, False, [[[0], [5]], [[1, 2, 3, 4, 7], [6]]]),
    (B, 2, 1000, True, False, [[[0], [6]], [[1, 2, 3, 4, 7], [5]]]),
    (B, 2, 1000, True, True, [[[0], [6], [7]], [[5], [4], [1, 2, 3]]]),
    (C, 2, 20, False, False, [[[0, 1, 7], [4, 5]], [[2, 3], [6]]]),
    (C, 2, 20, True, False, [[[2, 3], [6]], [[0, 1, 7], [4, 5]]]),
    (C, 2, 20, True, True, [[[6], [1], [2]], [[0, 3], [4, 7], [5]]]),
]


@pytest.mark.parametrize(("lengths", "groups", "most", "data", "by_flops", "theirs"), SLIME)
def test_the_schedule_is_slime_s(
    lengths: list[int], groups: int, most: int, data: bool, by_flops: bool, theirs: list[list[list[int]]]
) -> None:
    flops = [forward_flops(MODELS["gqa"], length) for length in lengths]
    found = slime_packs(lengths, flops, groups, most, data, by_flops)
    for group, turns in enumerate(theirs):
        for turn, seqs in enumerate(turns):
            assert np.flatnonzero((found == [turn, group]).all(axis=1)).tolist() == seqs


def test_operations_are_slime_s() -> None:
    """calculate_fwd_flops of slime 624b824a, for sequences of 1, 1,000 and 32,768 tokens."""
    assert [forward_flops(MODELS["mha"], n) for n in (1, 1000, 32768)] == [1881178112, 1913913344000, 96825742721024]
    assert [forward_flops(MODELS["gqa"], n) for n in (1, 1000, 32768)] == [2795536384, 2828271616000, 126787434577920]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 6000))
def test_packs_hold_what_they_may_and_groups_have_as_many(lengths: list[int], groups: int, most: int) -> None:
    for data in (False, True):
        found = slime_packs(lengths, [length**2 for length in lengths], groups, most, data, balance_by_flops=False)
        number = found[:, 0] * groups + found[:, 1]
        held, count = np.bincount(number, lengths), np.bincount(number)
        assert (held[count > 1] <= most).all()
        packs = (count > 0).sum()
        assert packs % groups == 0 or (count <= 1).all()
        assert found[:, 1].max() < groups


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 40))
def test_halving_ends_where_no_pack_has_two(lengths: list[int], count: int) -> None:
    packs = [list(range(len(lengths)))]
    halve(packs, count, lengths)
    assert sorted(seq for pack in packs for seq in pack) == list(range(len(lengths)))
    assert len(packs) == min(count, len(lengths))


def test_packs_are_as_large_as_memory_allows(cost: Cost) -> None:
    batch = Batch(np.array([fitting_tokens(cost) // 2] * 12), seed=0, step=0)
    for degree in (1, 2, 4):
        plans = SlimeSchedule(cost, degree=degree).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("pack_tokens", 2.5, "system.pack_tokens is 2.5; it takes a whole number of at least 1, or null"),
        ("balance_data", "yes", "system.balance_data is 'yes'; it takes true or false"),
        ("balance_by_flops", 1, "system.balance_by_flops is 1; it takes true or false"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        SlimeSchedule(cost, **{key: value})  # type: ignore[arg-type]
