"""The times of a whole step, by a clock that the test turns."""

import pytest

from zbench.runtime.clocks import pace as pace_module
from zbench.runtime.clocks.pace import Paced
from zbench.runtime.clocks.step_times import WAITS, StepTimes
from zbench.step.operations import QUEUES


class TurnedClock:
    """A clock that stands until it is turned."""

    moment = 0.0

    def now(self) -> float:
        return self.moment

    def between(self, began: float, ended: float) -> float:
        return ended - began


def test_parts_sum_to_the_step_whatever_is_inside_of_what() -> None:
    clock = TurnedClock()
    times = StepTimes(clock)

    def passes(seconds: float) -> None:
        clock.moment += seconds

    times.turn_to("attention")  # before the step: of no part
    passes(100)
    times.begin()
    passes(1)
    times.posted(2)
    before = times.turn_to("attention")
    passes(2)
    inner = times.turn_to("waiting_messages")  # an operand that has not come
    passes(4)
    times.arrived()
    times.turn_to(inner)
    passes(8)
    times.turn_to(before)
    passes(16)
    times.arrived()
    passes(32)
    times.end()
    passes(64)
    assert times.seconds == {"interpreter": 49, "attention": 10, "waiting_messages": 4}
    assert sum(times.seconds.values()) == 63
    assert times.under_way == 30
    assert [part for part, _, _ in times.spans()] == [
        "interpreter",
        "attention",
        "waiting_messages",
        "attention",
        "interpreter",
    ]


def test_a_message_that_comes_in_a_later_step_is_under_way_until_then() -> None:
    """Messages of an average that is used a round late do (zbench.runtime.stepping.round_rank)."""
    clock = TurnedClock()
    times = StepTimes(clock)
    times.begin()
    times.posted(1)
    clock.moment = 3.0
    times.end()
    assert times.under_way == 3
    times.begin()
    clock.moment = 4.0
    times.arrived()
    clock.moment = 6.0
    times.end()
    assert times.under_way == 1
    times.begin()
    clock.moment = 7.0
    times.end()
    assert times.under_way == 0


def test_every_queue_has_a_part_that_waiting_for_it_is() -> None:
    assert dict(zip(QUEUES, WAITS, strict=True)) == {
        "compute": "waiting_messages",
        "attention": "waiting_messages",
        "tensor_parallel": "waiting_messages",
        "parameters": "waiting_parameters",
        "gradients": "waiting_gradients",
        "experts": "waiting_experts",
        "stages": "waiting_stages",
        "host": "waiting_host",
    }


def test_a_paced_device_has_its_own_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process does between two computes is no time of the device's; what it waits for is."""
    now = [100.0]
    monkeypatch.setattr(pace_module, "clock_gettime", lambda clock: now[0])
    monkeypatch.setattr(Paced, "_sleep", lambda pace, until: now.__setitem__(0, until))
    pace = Paced()
    times = StepTimes(TurnedClock(), pace)

    def passes(seconds: float) -> str:
        now[0] += seconds
        return "data"

    def computes(part: str, seconds: float) -> None:
        before = times.turn_to(part)
        pace.spend(seconds)
        times.turn_to(before)

    pace.begin()
    times.begin()
    computes("linear", 2.0)
    passes(0.25)  # the interpreter's, while the device has nothing to wait for
    assert times.wait(QUEUES.index("attention"), lambda: passes(0.0)) == "data"  # it is there
    computes("linear", 1.0)
    times.wait(QUEUES.index("gradients"), lambda: passes(4.0))
    computes("optimizer", 0.5)
    times.end()
    assert times.seconds == {
        "interpreter": 0.0, "linear": 3.0, "waiting_messages": 0.0, "waiting_gradients": 4.0, "optimizer": 0.5
    }  # fmt: skip
    assert now[0] == 107.5
