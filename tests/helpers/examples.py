"""What `make test` tries of tests that take long; with --hypothesis-profile=thorough they try all, or much more."""

from collections.abc import Iterable
from itertools import product
from typing import Any

from hypothesis import settings

CI = "ci"
USUAL = 20  # examples of a test that says nothing, in the profile `ci`


def examples(count: int) -> settings:
    """Returns settings of a test that draws `count` examples in the profile `ci`, and in another one as many times more
    as that draws of tests that say nothing."""
    return settings(max_examples=count * settings.default.max_examples // USUAL)


def chequered(*choices: Iterable[Any], offset: int) -> list[tuple[Any, ...]]:
    """Returns the combinations of some choices that a chessboard has white, of an odd offset those that it has black.

    With three choices or more of two values each, every pair of values is among them; a test that is called with even
    and with odd offsets has all. In other profiles than `ci` all are returned.
    """
    every = product(*map(enumerate, choices))
    is_whole = settings.get_current_profile_name() != CI
    return [
        tuple(value for _, value in one) for one in every if is_whole or (sum(at for at, _ in one) + offset) % 2 == 0
    ]
