"""What `make test` tries of tests that take long; with --hypothesis-profile=thorough they try all, or much more.

Three kinds of tests are tried in part, the same part each time: properties of drawn examples (`examples`), loops over
combinations in a test (`chequered`), and combinations that a test is parametrised by (`@pytest.mark.sampled`).
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
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


def outside_sample(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Returns the cases that the profile `ci` leaves out, of tests marked `sampled(one_in)`.

    Of what such a test is parametrised by it tries the combinations that a chessboard of so many colours has in one
    colour, which the test's name says. Of two parametrisations or more of at least as many values each, every value is
    among them, and of three every pair. Of a test of which a command line names some cases none is left out.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: set[pytest.Item] = set()
    for name, cases in tests.items():
        (one_in,) = next(cases[0].iter_markers("sampled")).args
        sizes = [len(mark.args[1]) for mark in cases[0].iter_markers("parametrize")]
        if len(cases) == prod(sizes):
            offset = crc32(name.encode())
            every = zip(cases, product(*map(range, sizes)), strict=True)
            found |= {case for case, at in every if not _is_tried(at, offset, one_in)}
    return found


def _is_tried(at: Sequence[int], offset: int, one_in: int) -> bool:
    return settings.get_current_profile_name() != CI or (sum(at) + offset) % one_in == 0
