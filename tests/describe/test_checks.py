"""Checks of whole numbers and of what is true or false."""

import pytest

from zbench.describe.checks import check_boolean, check_whole_number, is_whole


@pytest.mark.parametrize(("value", "whole"), [(0, True), (-3, True), (True, False), (1.0, False), ("1", False)])
def test_a_whole_number_is_an_int_that_is_no_bool(value: object, whole: bool) -> None:
    assert is_whole(value) is whole


def test_a_number_within_its_bounds_is_taken() -> None:
    check_whole_number("key", 1, 1)
    check_whole_number("key", 32, 1, 32)
    check_whole_number("key", None, 1, or_null=True)


@pytest.mark.parametrize(
    ("value", "most", "or_null", "takes"),
    [
        (0, None, False, "of at least 1"),
        (33, 32, False, "from 1 to 32"),
        (0, 32, True, "from 1 to 32, or null"),
        (None, None, False, "of at least 1"),
        (True, None, True, "of at least 1, or null"),
        (2.0, None, False, "of at least 1"),
    ],
)
def test_what_is_no_such_number_is_named(value: object, most: int | None, or_null: bool, takes: str) -> None:
    with pytest.raises(ValueError, match=rf"^key is {value}; it takes a whole number {takes}$"):
        check_whole_number("key", value, 1, most, or_null)


def test_true_and_false_are_taken_and_nothing_like_them() -> None:
    check_boolean("key", True)
    check_boolean("key", False)
    for value in (0, 1, None, "yes"):
        with pytest.raises(ValueError, match=f"^key is {value!r}; it takes true or false$"):
            check_boolean("key", value)
