"""When Python looks for garbage while a command runs."""

import gc
import weakref

import pytest

from zbench.console.garbage import collect_from_now_on, without_collection


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_what_is_made_before_is_looked_through_no_more_and_what_is_made_later_is() -> None:
    with without_collection():
        assert not gc.isenabled()
        collect_from_now_on()
        assert gc.isenabled()
        before = gc.get_freeze_count()
        assert before > 10_000
        later = weakref.ref(Cycle())
        gc.collect()
        assert later() is None
        collect_from_now_on()
        assert gc.get_freeze_count() == before
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_command_that_fails_before_its_job_leaves_all_as_it_was() -> None:
    with pytest.raises(ValueError, match="typo"), without_collection():
        raise ValueError("typo")
    assert gc.isenabled()
