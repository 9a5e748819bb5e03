"""Schedules as frameworks exchange them, and their JSON form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zbench.contracts.schedule import ContractError, RingGroup, SampleSchedule, TokenPermutation, ring_groups
from zbench.contracts.schedule_file import SCHEDULE_FORMAT, read_schedule, schedule_of, schedule_values, write_schedule


def test_lists_of_a_framework_are_groups_and_lists_again() -> None:
    made = SampleSchedule.of([(7, 50), ("b", 60), (9, 3)], [[[7], [7], ["b"], [9]]])
    assert made.groups() == ((RingGroup(0, 2, (7,)), RingGroup(2, 1, ("b",)), RingGroup(3, 1, (9,))),)
    assert SampleSchedule.of_groups(made.lengths, made.groups()) == made
    assert made.lists() == [[[7], [7], ["b"], [9]]]
    assert (made.ranks, SampleSchedule.of([3], []).ranks) == (4, 0)


def test_lengths_alone_are_samples_by_number_and_numpy_s_numbers_are_numbers() -> None:
    made = SampleSchedule.of(np.array([5, 6]), [[[np.int64(0)], [1]]])
    assert made.lengths == {0: 5, 1: 6}
    assert made.micro_batches == (((0,), (1,)),)


def test_groups_are_runs_of_equal_lists() -> None:
    assert ring_groups([(1,), (1,), (1,), (2, 3), (2, 3), (1,)]) == [
        RingGroup(0, 3, (1,)),
        RingGroup(3, 2, (2, 3)),
        RingGroup(5, 1, (1,)),
    ]


def test_a_permutation_s_rank_owns_as_many_positions_in_a_row() -> None:
    made = TokenPermutation((4, 2), 3, np.array([5, 0, 4, 1, 3, 2]))
    assert [made.owned(rank).tolist() for rank in range(3)] == [[5, 0], [4, 1], [3, 2]]


@pytest.mark.parametrize(
    ("samples", "micro_batches", "told"),
    [
        ([0], [], "sample 0 has 0 tokens; it takes a whole number of at least 1"),
        ([True], [], "sample 0 has True tokens"),
        ([(1, 5), (1, 6)], [], "sample 1 is twice among the samples"),
        ([(1.5, 5)], [], r"samples\[0\] has 1.5, which is no sample's id"),
        (5, [], "samples is 5; it takes a list"),
        ([5], 7, "micro_batches is 7; it takes a list"),
        ([5], [7], "micro-batch 0 is 7; it takes a list"),
        ([5], [["01"]], "micro-batch 0, rank 0 is '01'; it takes a list"),
        ([5], [[[0], [None]]], "micro-batch 0, rank 1 has None, which is no sample's id"),
    ],
)
def test_what_is_no_schedule_is_a_sentence(samples: Any, micro_batches: Any, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        SampleSchedule.of(samples, micro_batches)


@pytest.mark.parametrize(
    "schedule",
    [
        SampleSchedule.of([(7, 50), ("b", 60)], [[[7], [7], ["b"], ["b"]]]),
        TokenPermutation((4, 2), 3, np.array([5, 0, 4, 1, 3, 2])),
    ],
    ids=["samples", "order"],
)
def test_a_file_has_all_of_a_schedule(schedule: SampleSchedule | TokenPermutation, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_schedule(schedule, path)
    found = read_schedule(path)
    assert schedule_values(found) == schedule_values(schedule)
    assert json.loads(path.read_text())["format"] == SCHEDULE_FORMAT
    assert type(found) is type(schedule)


def test_ranks_of_a_permutation_may_be_told_beside_its_file() -> None:
    found = schedule_of({"lengths": [2, 2], "order": [3, 2, 1, 0]}, ranks=2)
    assert isinstance(found, TokenPermutation)
    assert found.ranks == 2


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([], "the schedule is .*; it takes an object"),
        ({"format": "zbench-schedule/9"}, "this zbench reads 'zbench-schedule/1'"),
        ({"lengths": [1], "order": [0], "rounds": []}, "rounds is no key of a schedule"),
        ({"micro_batches": []}, "needs lengths .* or samples"),
        ({"lengths": [1], "samples": [[0, 1]], "order": []}, "needs lengths .* or samples"),
        ({"lengths": [1]}, "needs micro_batches .* or order"),
        ({"lengths": [1], "order": [0]}, "ranks of the schedule is None"),
        ({"lengths": [1], "order": [0.5], "ranks": 1}, "order of the schedule is no list of whole numbers"),
        ({"lengths": [1], "order": [10**30], "ranks": 1}, "order of the schedule is no list of whole numbers"),
    ],
)
def test_what_is_no_file_of_a_schedule_is_a_sentence(found: object, told: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=told):
        schedule_of(found)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ContractError, match=f"the schedule file .*{told}"):
        read_schedule(path)


def test_files_that_are_not_there_or_no_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"none\.json'; it cannot be read"):
        read_schedule(tmp_path / "none.json")
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(ContractError, match="which is no JSON"):
        read_schedule(tmp_path / "s.json")
    with pytest.raises(ValueError, match="cannot be written"):
        write_schedule(SampleSchedule.of([1], [[[0]]]), tmp_path)


def test_schedules_are_told_in_lines() -> None:
    made = SampleSchedule.of([("a", 900), ("b", 500), ("c", 60), ("d", 400)], [[["a"], ["a"], ["b", "c"], ["d"]]])
    assert str(made).splitlines() == [
        "schedule of 4 samples, 1,860 tokens, for 4 ranks: 1 micro-batch",
        "  micro-batch 0: ranks 0 to 1 have a; rank 2 has b, c; rank 3 has d",
    ]
    many = SampleSchedule.of([1] * 40, [[[*range(20)], [*range(20, 40)]]] * 11)
    assert str(many).splitlines()[-1] == "  3 more"
    assert "rank 0 has 0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in str(many)
    assert str(TokenPermutation((5, 3), 2, np.arange(8))) == "order of 8 tokens of 2 documents: 4 on each of 2 ranks"
