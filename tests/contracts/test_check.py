"""Checkers: what an engine runs passes, and everything else is told with micro-batch, rank and sample."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings, AnyRings, Contract, EqualTokenPermutation, WholeOnDP
from zbench.contracts.schedule import ContractError, SampleSchedule, TokenPermutation

Lists = list[list[list[int]]]
LENGTHS = [8, 6, 5, 4, 3, 2]
GOOD: Lists = [[[0], [0], [1, 2], [3]], [[4], [4], [5], [5]]]
RINGS = AlignedPow2Rings(4, max_tokens=11)


def refused(lists: Lists, contract: Contract = RINGS) -> ContractError:
    with pytest.raises(ContractError) as caught:
        check_schedule(SampleSchedule.of(LENGTHS, lists), contract)
    return caught.value


def test_what_an_engine_runs_passes() -> None:
    check_schedule(SampleSchedule.of(LENGTHS, GOOD), RINGS)
    check_schedule(SampleSchedule.of(LENGTHS, GOOD), AlignedPow2Rings(4, multiple=2))
    check_schedule(SampleSchedule.of(LENGTHS, [[[0], [1], [1], [1]], [[2, 3, 4], [5], [5], [5]]]), AnyRings(4))
    check_schedule(SampleSchedule.of([3] * 3, [[[0, 1, 2]] * 3]), AlignedPow2Rings(3, least=2))
    check_schedule(SampleSchedule.of(LENGTHS, [[[0], [1, 4]], [[2, 5], [3]]]), WholeOnDP(2, equal_size=True))
    check_schedule(TokenPermutation((4, 2), 3, np.array([5, 0, 4, 1, 3, 2])), EqualTokenPermutation(3))


@pytest.mark.parametrize(
    ("lists", "contract", "told", "where"),
    [
        ([], RINGS, "the schedule has no micro-batch", (None, None, None)),
        (GOOD[:1], RINGS, "sample 4 and 1 more are in no micro-batch", (None, None, 4)),
        ([GOOD[0], [[4], [4], [], [5]]], RINGS, "micro-batch 1, rank 2 has no sample", (1, 2, None)),
        ([GOOD[0], [[4], [4], [5], [5], [5]]], RINGS,
         "micro-batch 1 has lists for 5 ranks; the contract has 4", (1, None, None)),
        ([GOOD[0], [[4], [4, 3], [5], [5]]], RINGS,
         "micro-batch 1: rank 1 has sample 4 together with rank 0", (1, 1, 4)),
        ([GOOD[0], [[4], [4], [5], [5, 3]]], RINGS,
         "micro-batch 1: rank 3 has sample 5 together with rank 2", (1, 3, 5)),
        ([[[0], [0], [2, 1], [1, 2]]], RINGS,
         "rank 3 has sample 1 together with rank 2.* in the same order", (0, 3, 1)),
        ([GOOD[0], [[4], [4], [5, 3], [5, 3]]], RINGS,
         "micro-batch 1, rank 2 has sample 3, which micro-batch 0, rank 3 has too", (1, 2, 3)),
        ([GOOD[0], [[4], [5], [4], [4]]], RINGS, "rank 2 has sample 4, which micro-batch 1, rank 0 has too", (1, 2, 4)),
        ([GOOD[0], [[4], [4], [5], [9]]], RINGS,
         "micro-batch 1, rank 3 has sample 9, which is none of the batch's", (1, 3, 9)),
        ([GOOD[0], [[4, 4], [4, 4], [5], [5]]], RINGS,
         "rank 0 has sample 4, which micro-batch 1, rank 0 has too", (1, 0, 4)),
        ([[[1], [0], [0], [3]], [[2], [2], [4], [5]]], RINGS,
         "ranks 1 to 2 are a ring of 2 .*begin at a multiple of 2", (0, 1, 0)),
        ([[[0], [0], [0], [1]], [[2], [3], [4], [5]]], RINGS, "ring of 3 .* a power of two, or all 4 ranks", (0, 0, 0)),
        ([GOOD[0], [[4], [4], [5], [5]]], AlignedPow2Rings(4, least=2),
         "rank 2 is a ring of 1 .*; the contract's least is 2, so a ring has at least 2 ranks", (0, 2, 1)),
        (GOOD, AlignedPow2Rings(4, max_tokens=10),
         "micro-batch 0, rank 2 has 11 tokens on 1 rank, of sample 1 the most", (0, 2, 1)),
        (GOOD, AlignedPow2Rings(4, multiple=3),
         "2 micro-batches; with virtual stages it takes a multiple of 3", (None, None, None)),
        ([[[0], [1], [2], [2]], [[3], [4], [5], [5]]], AlignedPow2Rings(4, multiple=2),
         "the ring at rank 2 .* sizes do not grow", (0, 2, 2)),
        ([[[0], [1, 4]], [[2], [3, 5]]], WholeOnDP(2, equal_size=True),
         "rank 1 has 4 samples .* rank 0 has 2", (None, 1, None)),
        ([[[0], [0]], [[1, 2, 3], [4, 5]]], WholeOnDP(2),
         "rank 1 has sample 0, which micro-batch 0, rank 0 has too", (0, 1, 0)),
        ([[[0, 1], [2, 3, 4, 5]]], WholeOnDP(2, max_tokens=13), "rank 0 has 14 tokens on 1 rank", (0, 0, 0)),
    ],
)  # fmt: skip
def test_what_would_deadlock_or_lose_a_sample_is_told(
    lists: Lists, contract: Contract, told: str, where: tuple[int | None, int | None, int | None]
) -> None:
    error = refused(lists, contract)
    assert re.search(told, str(error)), str(error)
    assert (error.micro_batch, error.rank, error.sample) == where


@pytest.mark.parametrize(
    ("order", "lengths", "ranks", "told"),
    [
        ([0, 1, 2, 3], (4,), 3, "the schedule is for 3 ranks; the contract has 2"),
        ([0, 1, 2], (3,), 2, "3 tokens, which 2 ranks cannot share evenly"),
        ([0, 1, 2], (4,), 2, "order has 3 entries of int64; it takes the 4 positions"),
        ([0, 1, 2, 4], (4,), 2, r"order\[3\], rank 1, is 4; positions are 0 to 3"),
        (
            [0, 1, 2, 2],
            (3, 1),
            2,
            r"position 2 of the pack, of document 0, is 2 times in order \(ranks \[1\] have it\)",
        ),
        ([0, 1, 3, 3], (3, 1), 2, r"position 2 .*is 0 times in order \(no rank has it\)"),
    ],
)
def test_an_order_that_is_no_permutation_is_told(
    order: list[int], lengths: tuple[int, ...], ranks: int, told: str
) -> None:
    with pytest.raises(ContractError, match=told):
        check_schedule(TokenPermutation(lengths, ranks, np.array(order)), EqualTokenPermutation(2))


def test_a_schedule_of_the_other_kind_is_told() -> None:
    permutation = TokenPermutation((4,), 4, np.arange(4))
    with pytest.raises(ContractError, match="contract aligned_pow2_rings takes micro_batches"):
        check_schedule(permutation, RINGS)
    with pytest.raises(ContractError, match="contract equal_token_permutation takes a permutation"):
        check_schedule(SampleSchedule.of(LENGTHS, GOOD), EqualTokenPermutation(4))
    for contract in (RINGS, EqualTokenPermutation(4)):
        with pytest.raises(ContractError, match=r"^the schedule is of type list; contract "):
            check_schedule(GOOD, contract)  # type: ignore[arg-type]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], Lists, AlignedPow2Rings]:
    """A schedule inside the contract: rounds of halved groups of 2 to 16 ranks, a few samples each."""
    ranks = 2 ** draw(st.integers(1, 4))
    lists: Lists = []
    lengths: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = [ranks]
        for _ in range(draw(st.integers(0, 4))):
            widest = draw(st.integers(0, len(sizes) - 1))
            if sizes[widest] > 1:
                sizes[widest : widest + 1] = [sizes[widest] // 2] * 2
        turn: list[list[int]] = []
        for size in sizes:
            mine = list(range(len(lengths), len(lengths) + draw(st.integers(1, 3))))
            lengths += draw(st.lists(st.integers(1, 99), min_size=len(mine), max_size=len(mine)))
            turn += [list(mine) for _ in range(size)]
        lists.append(turn)
    most = max(-(-sum(lengths[one] for one in mine) // turn.count(mine)) for turn in lists for mine in turn)
    return lengths, lists, AlignedPow2Rings(ranks, max_tokens=most)


def lose(lists: Lists, turn: int, rank: int, new: int) -> None:
    one = lists[turn][rank][0]
    for mine in lists[turn]:
        if one in mine:
            mine.remove(one)


def double(lists: Lists, turn: int, rank: int, new: int) -> None:
    lists.append([list(mine) for mine in lists[turn]])


def empty(lists: Lists, turn: int, rank: int, new: int) -> None:
    lists[turn][rank] = []


def differ(lists: Lists, turn: int, rank: int, new: int) -> None:
    lists[turn][rank] = [*lists[turn][rank], new]


def shift(lists: Lists, turn: int, rank: int, new: int) -> None:
    """The widest group one rank on, with a new sample before it."""
    lists[turn].pop()
    lists[turn].insert(0, [new])


def burden(lists: Lists, turn: int, rank: int, new: int) -> None:
    mine = lists[turn][rank]
    for other in lists[turn]:
        if other == mine and other is not mine:
            other.append(new)
    mine.append(new)


def drop(lists: Lists, turn: int, rank: int, new: int) -> None:
    del lists[turn][rank]


@given(schedules(), st.data())
@pytest.mark.parametrize(
    "change", [lose, double, empty, differ, shift, burden, drop], ids=lambda change: change.__name__
)
def test_every_mutation_of_a_schedule_is_caught(
    change: Callable[[Lists, int, int, int], None],
    made: tuple[list[int], Lists, AlignedPow2Rings],
    data: st.DataObject,
) -> None:
    lengths, lists, contract = made
    check_schedule(SampleSchedule.of(lengths, lists), contract)
    turn = data.draw(st.integers(0, len(lists) - 1))
    rank = data.draw(st.integers(0, contract.ranks - 1))
    assert contract.max_tokens is not None
    lengths = [*lengths, contract.max_tokens * contract.ranks + 1]  # the new sample, which is too long for any group
    if change in (lose, double, empty, drop):
        lengths.pop()
    change(lists, turn, rank, len(lengths) - 1)
    with pytest.raises(ContractError):
        check_schedule(SampleSchedule.of(lengths, lists), contract)
