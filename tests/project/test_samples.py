"""What `make test` leaves out of combinations: every value is tried with some others, and in other profiles all are."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import settings

from tests.helpers.examples import CI, chequered, outside_sample

pytest_plugins = ["pytester"]
TESTS = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(("second", "third"), [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)])
def test_some(first, second, third): ...

@pytest.mark.parametrize("first", range(4))
def test_all(first): ...
"""


@pytest.fixture
def profile() -> Iterator[None]:
    """The profile of the run again, whatever a test loads."""
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


@pytest.mark.usefixtures("profile")
def test_a_sample_has_every_value(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = sampled\n")
    items = pytester.getitems(TESTS)
    assert len(items) == 24
    settings.load_profile(CI)
    left_out = outside_sample(items)
    tried = [item.callspec.params for item in items[:20] if item not in left_out]
    assert left_out.isdisjoint(items[20:])
    assert 6 <= len(tried) <= 7
    assert {one["first"] for one in tried} == set(range(4))
    assert {one["second"] for one in tried} == set("abcde")
    assert not outside_sample(items[:19])  # somebody chose which
    settings.load_profile("thorough")
    assert not outside_sample(items)


@pytest.mark.usefixtures("profile")
def test_offsets_share_out_combinations_and_three_choices_have_every_pair() -> None:
    settings.load_profile(CI)
    choices = "ab", (1, 2, 3), (True, False)
    white, black = (chequered(*choices, offset=offset) for offset in (0, 1))
    assert sorted(white + black) == sorted(product(*choices))
    for some in (white, black):
        for at, to in ((0, 1), (0, 2), (1, 2)):
            assert {(one[at], one[to]) for one in some} == set(product(choices[at], choices[to]))
    thirds = [one for offset in range(3) for one in chequered(*choices, offset=offset, one_in=3)]
    assert sorted(thirds) == sorted(product(*choices))
    settings.load_profile("thorough")
    assert chequered(*choices, offset=0) == list(product(*choices))
