"""A device's clock: work takes as long as modelled, late work is recorded, and lateness does not add up."""

import time

import pytest

from zbench.runtime.pace import Paced


def test_work_takes_as_long_as_modelled() -> None:
    pace, began = Paced(), time.monotonic()
    pace.begin()
    for _ in range(5):
        time.sleep(0.01)
        pace.spend(0.04)
    assert time.monotonic() - began >= 0.2
    assert pace.modelled == pytest.approx(0.2)


def test_work_that_is_slower_is_recorded() -> None:
    pace = Paced()
    pace.begin()
    time.sleep(0.05)
    pace.spend(0.01)
    assert pace.overrun >= 0.04
    pace.begin()
    assert pace.overrun == pace.modelled == 0


def test_data_that_comes_late_is_no_overrun() -> None:
    pace = Paced()
    pace.begin()
    time.sleep(0.05)
    pace.came()
    began = time.monotonic()
    pace.spend(0.02)
    assert pace.overrun == 0
    assert time.monotonic() - began > 0.015


def test_in_a_hurry_nothing_is_waited_for() -> None:
    pace, began = Paced(), time.monotonic()
    pace.begin(hurries=True)
    pace.spend(100.0)
    assert time.monotonic() - began < 10
    assert (pace.modelled, pace.overrun) == (100.0, 0.0)
