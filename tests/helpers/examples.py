"""What `make test` tries of tests that take long; with --hypothesis-profile=thorough they try all, or much more.

Three kinds of tests are tried in part, the same part each time: properties of drawn examples (`examples`), loops over
combinations in a test (`chequered`), and combinations that a test is parametrised by (`@pytest.mark.sampled`).
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

CI = "ci"
USUAL = 10  # examples of a test that says nothing, in the profile `ci`


def examples(count: int) -> settings:
    """Returns settings of a test that draws `count` examples in the profile `ci`, and in another one as many times more
    as that draws of tests that say nothing."""
    return settings(max_examples=count * settings.default.max_examples // USUAL)


def chequered(*choices: Iterable[Any], offset: int, one_in: int = 2) -> list[tuple[Any, ...]]:
    """Returns the combinations of some choices that a chessboard has white, of an odd offset those that it has black;
    with more than two colours those of one of them.

    With three choices or more of as many values as there are colours, every pair of values is among them; a test that
    is called with `one_in` offsets in a row has all. In other profiles than `ci` all are returned.
    """
    every = product(*map(enumerate, choices))
    return [tuple(value for _, value in one) for one in every if _is_tried([at for at, _ in one], offset, one_in)]


def in_sample(case: pytest.Item) -> bool:
    """Returns whether the profile `ci` tries a case of a test marked `sampled(one_in)`: of what the test is
    parametrised by, it has the combinations that a chessboard of so many colours has in one colour, which the test's
    name says. Of two parameters or more of at least as many values each, every value is among them, and of three
    every pair. Every case of another test is tried."""
    mark = case.get_closest_marker("sampled")
    if mark is None:
        return True
    (one_in,) = mark.args
    assert isinstance(case, pytest.Function)
    names = [one.args[0] for one in case.iter_markers("parametrize")]
    first = [one.split(",")[0].strip() if isinstance(one, str) else one[0] for one in names]
    return _is_tried([case.callspec.indices[name] for name in first], crc32(case.originalname.encode()), one_in)


def _is_tried(at: Sequence[int], offset: int, one_in: int) -> bool:
    return settings.get_current_profile_name() != CI or (sum(at) + offset) % one_in == 0
