"""A thread's slice is what it asked for, and threads that it starts have the same; other policies are left alone."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from zbench.runtime.clocks import slices
from zbench.runtime.clocks.pace import Paced

Found = TypeVar("Found")


def in_a_thread(call: Callable[[], Found]) -> Found:
    """What a thread asks for ends with it."""
    found: list[Found] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def able() -> None:
    if in_a_thread(slices.asked) is None:
        pytest.skip("this kernel has no slices of a thread's own")
    if os.sched_getscheduler(0) not in (os.SCHED_OTHER, os.SCHED_BATCH):
        pytest.skip("these tests run under a policy that has no slices")


def test_threads_take_over_the_slice_of_the_one_that_starts_them() -> None:
    def found() -> tuple[float | None, float | None, float | None]:
        slices.ask(0.2e-3)
        own = slices.asked()
        other = in_a_thread(slices.asked)
        slices.ask(7e-3)
        return own, other, slices.asked()

    assert in_a_thread(found) == pytest.approx((0.2e-3, 0.2e-3, 7e-3))


def test_messages_have_shorter_slices_than_arithmetic() -> None:
    def found() -> list[float | None]:
        pace = Paced()
        made = slices.asked()
        pace.begin()
        began = slices.asked()
        pace.spend(0.0)
        spent = slices.asked()
        pace.work()
        return [made, began, spent, slices.asked()]

    made, began, spent, worked = in_a_thread(found)
    assert made == spent
    assert began == worked
    assert made is not None
    assert worked is not None
    assert made < worked / 10


def test_a_policy_without_slices_is_left_as_it_is() -> None:
    def found() -> tuple[int, float | None, float | None]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        before = slices.asked()
        slices.ask(0.2e-3)
        return os.sched_getscheduler(0), before, slices.asked()

    policy, before, after = in_a_thread(found)
    assert policy == os.SCHED_IDLE
    assert before == after
