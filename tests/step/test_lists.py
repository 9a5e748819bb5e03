"""Lists of parts while a step is built."""

import numpy as np
import pytest

from zbench.plans.columns import Lists
from zbench.step.lists import PLACE, ListTable


@pytest.mark.parametrize("rows", [[[0, 1], [2], [0, 1], [3, 4]], [[4, 1], [0]], [[], [2, 3], []], []])
def test_several_lists_have_the_numbers_that_they_have_one_by_one(rows: list[list[int]]) -> None:
    at_once, one_by_one = ListTable({"t": 5}), ListTable({"t": 5})
    for table in (at_once, one_by_one):
        table.number("t", [2])
    numbers = [one_by_one.number("t", row) for row in rows]
    assert at_once.all_of("t", Lists.of(rows)).tolist() == numbers
    np.testing.assert_array_equal(at_once.lists().parts, one_by_one.lists().parts)
    assert at_once.numbers == one_by_one.numbers


@pytest.mark.parametrize(
    ("rows", "word"),
    [([[0], [5]], "names part 5 of index t, which has 5"), ([[-1, 0]], "names part -1"), ([[1, 1]], "part 1 .* twice")],
)
def test_wrong_parts_are_refused(rows: list[list[int]], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ListTable({"t": 5}).all_of("t", Lists.of(rows))


def test_a_table_begun_anew_leaves_the_first_as_it_is() -> None:
    first = ListTable({PLACE: 3, "t": 2})
    first.number(PLACE, [1])
    second = first.begun_anew()
    assert (second.begun, second.number(PLACE, [1]), second.number("t", [0, 1])) == (1, 0, 1)
    assert (len(first.rows), first.begun) == (1, 0)
    assert second.places.tolist() == [2, 0, 3]
