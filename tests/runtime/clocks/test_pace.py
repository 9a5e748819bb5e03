"""A device's clock: work takes as long as modelled, late work is recorded, and lateness does not add up."""

import time

import pytest

from zbench.runtime.clocks import pace as module
from zbench.runtime.clocks.pace import Paced


def test_work_takes_as_long_as_modelled() -> None:
    pace, began = Paced(), time.monotonic()
    pace.begin()
    for _ in range(5):
        time.sleep(0.01)
        pace.spend(0.04)
    assert time.monotonic() - began >= 0.2  # at least: a busy machine takes longer
    assert pace.modelled == pytest.approx(0.2)


def test_work_that_is_slower_is_recorded() -> None:
    pace = Paced()
    pace.begin()
    time.sleep(0.05)
    pace.spend(0.01)
    assert pace.overrun >= 0.04
    pace.begin()
    assert pace.overrun == pace.modelled == 0


def test_data_that_comes_late_is_no_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept_until = [100.0], []
    monkeypatch.setattr(module, "clock_gettime", lambda clock: now[0])
    monkeypatch.setattr(Paced, "_sleep", lambda pace, until: slept_until.append(until))
    pace = Paced()
    pace.begin()
    now[0] += 0.5
    pace.came()
    pace.spend(0.25)
    assert pace.overrun == 0
    assert slept_until == [100.75]


def test_in_a_hurry_nothing_is_waited_for() -> None:
    pace = Paced()
    pace.begin(hurries=True)
    pace.spend(1000.0)  # longer than a test may take
    assert (pace.modelled, pace.overrun) == (1000.0, 0.0)
