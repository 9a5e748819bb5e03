"""verl's balancing: shares of a batch for the groups, and micro-batches of a share."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import TRANSFER
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.verl_balance import VerlBalance, group_sequences, pack_shares, sequence_work, split_group

A = [812, 90, 33, 415, 1200, 77, 64, 5, 300, 210, 48, 950]
B = [3000, 20, 20, 20, 700, 701, 699, 40]
C = [900, 20, 870, 30, 500, 500, 420, 11]
D = [7, 7, 6, 7, 7]
# Lengths, groups, tokens of a micro-batch, within_limit, and every group's micro-batches in turn: what _balance_batch
# and rearrange_micro_batches of verl give, 1dda039b where the limit is not kept and 0.9.1 where it is. Both agreed on
# 2,000 random batches too.
VERL = [
    (A, 2, 1300, True, [[[4], [1, 2, 3, 6, 8]], [[0, 9, 10], [5, 7, 11]]]),
    (A, 4, 1200, True, [[[4], [5, 7]], [[11], [1, 2]], [[0], [9, 10]], [[3], [6, 8]]]),
    (B, 2, 3000, True, [[[0], [1, 3, 6]], [[4, 7], [2, 5]]]),
    (B, 4, 3000, False, [[[0], [1]], [[6], [7]], [[5], [2]], [[4], [3]]]),
    (C, 2, 1000, False, [[[4, 6], [2, 7]], [[0], [1, 3, 5]]]),
    (D, 1, 18, False, [[[1, 2, 3], [0, 4]]]),
    (D, 1, 18, True, [[[0], [1, 4], [2, 3]]]),
]


@pytest.mark.parametrize(("lengths", "groups", "most", "within", "theirs"), VERL)
def test_micro_batches_are_verl_s(
    lengths: list[int], groups: int, most: int, within: bool, theirs: list[list[list[int]]]
) -> None:
    found = pack_shares(lengths, group_sequences(lengths, groups), most, within)
    for group, turns in enumerate(theirs):
        for turn, seqs in enumerate(turns):
            assert np.flatnonzero((found == [turn, group]).all(axis=1)).tolist() == seqs


def test_work_is_verl_s() -> None:
    assert [sequence_work(length) for length in (1, 1000, 131072)] == [24577, 25_576_000, 20_401_094_656]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 6000))
def test_groups_have_as_many_sequences_and_micro_batches_keep_the_limit(
    lengths: list[int], groups: int, most: int
) -> None:
    shares = group_sequences(lengths, groups)
    assert sorted(seq for share in shares for seq in share) == list(range(len(lengths)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    found = pack_shares(lengths, shares, most, within_limit=True)
    number = found[:, 0] * groups + found[:, 1]
    held, count = np.bincount(number, lengths), np.bincount(number)
    assert (held[count > 0] <= max(most, *lengths)).all()
    for group, share in enumerate(shares):
        assert np.flatnonzero(found[:, 1] == group).tolist() == sorted(share)


@given(st.lists(st.integers(1, 3000), min_size=3, max_size=40), st.integers(3, 9))
def test_the_lightest_micro_batch_is_at_an_end(lengths: list[int], count: int) -> None:
    works = [sum(sequence_work(lengths[i]) for i in one) for one in split_group(lengths, count)]
    assert min(works) in (works[0], works[-1])


def test_nothing_but_heads_is_exchanged_inside_groups(cost: Cost) -> None:
    batch = Batch(np.array([900, 40, 700, 300]), seed=0, step=0)
    plans = VerlBalance(cost, degree=2).plan(batch)
    for plan in plans:
        moved = plan.forward.take(np.flatnonzero(plan.forward.kind == TRANSFER))
        assert (moved.src // 2 == moved.dst // 2).all()


def test_packs_are_as_large_as_memory_allows(cost: Cost) -> None:
    batch = Batch(np.array([fitting_tokens(cost) // 2] * 12), seed=0, step=0)
    for degree in (1, 2, 4):
        plans = VerlBalance(cost, degree=degree).plan(batch)
        assert len(plans) > 1
        assert StepEstimate(cost).fits(batch, plans)


def test_the_degree_divides_the_heads(uneven: Cost) -> None:
    """15 ranks and 6 heads: groups of 3 at most, however long a sequence is."""
    plan = VerlBalance(uneven, context_limit=10**9).plan(Batch(np.array([600]), seed=0, step=0))[0]
    assert (plan.tokens_per_rank > 0).sum() == 3
    told = re.escape("system.degree is 5; it takes a divisor of the 6 heads as well, or null: verl's Ulysses gives ")
    with pytest.raises(ValueError, match=f"^{told}"):
        VerlBalance(uneven, degree=5)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("degree", 3, "system.degree is 3; it takes a divisor of the 4 ranks, or null"),
        ("pack_tokens", -1, "system.pack_tokens is -1; it takes a whole number of at least 1, or null"),
        ("enforce_pack_tokens", None, "system.enforce_pack_tokens is None; it takes true or false"),
    ],
)
def test_a_bad_key_is_one_sentence(cost: Cost, key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        VerlBalance(cost, **{key: value})  # type: ignore[arg-type]
