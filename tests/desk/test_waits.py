"""What ranks waited for, measured and simulated, of records by hand."""

from typing import Any

import pytest

from zbench.desk.waits import ComparedWaits, Waits, compared_waits, waits_table
from zbench.record.record import Run


def step(number: int, seconds: float, waits: float, wait: float | None = None, valid: bool = True) -> dict[str, Any]:
    spent = {"linear": [seconds - waits, seconds - 2 * waits], "waiting_messages": [waits, waits], "end": [0.0, waits]}
    phases = {} if wait is None else {"wait": wait}
    return {"step": number, "seconds": seconds, "valid": valid, "seconds_for": spent, "phases": phases}


def run(steps: list[dict[str, Any]], sync: dict[str, Any], simulated: bool = False) -> Run:
    config = {"choices": {"system": "ring", "workload": "fixed"}, "sync": sync}
    start = {"config": config, "facts": {"simulated": simulated}, "fingerprint": {}, "run": "one"}
    return Run(start, steps, None, "file")


def test_steps_have_their_median_and_those_that_do_not_count_are_left_out() -> None:
    steps = [step(0, 4.0, 1.0), step(1, 9.0, 5.0, valid=False), step(2, 4.5, 0.5), step(3, 8.0, 1.5)]
    played = [step(number, 4.0, 0.25 * number) for number in range(4)]
    found = compared_waits(run(steps, {"method": "every_step", "steps": 1}), lambda _: played)
    assert found.measured == Waits(4.5, 3.75, 1.0, 0.0)
    assert found.simulated == Waits(4.0, 3.25, 0.5, 0.0)
    assert found.steps == (3, 4)


def test_rounds_have_their_mean_and_count_whole() -> None:
    """Of three rounds of two steps the second has one that does not count."""
    steps = [step(0, 2.0, 0.0), step(1, 4.0, 1.0, 0.5), step(2, 1.0, 0.0, valid=False), step(3, 9.0, 3.0, 2.0)]
    steps += [step(4, 3.0, 0.0), step(5, 3.0, 2.0, 1.5)]
    found = compared_waits(run(steps, {"method": "local_sgd", "steps": 2}), lambda told: told)
    assert found.measured == found.simulated
    assert found.measured.step == 3.0
    assert found.measured.waiting == 0.75
    assert found.measured.slowest == 0.5
    assert found.steps == (4, 6)


@pytest.mark.parametrize(
    ("steps", "simulated"), [([step(0, 1.0, 0.0)], True), ([step(0, 1.0, 0.0, valid=False)], False), ([], False)]
)
def test_what_was_not_measured_is_not_compared(steps: list[dict[str, Any]], simulated: bool) -> None:
    with pytest.raises(ValueError, match="the run of ring has no measured round of steps that counts"):
        compared_waits(run(steps, {}, simulated), lambda told: told)


def test_a_table_has_what_runs_differ_in() -> None:
    one = ComparedWaits({"system": "ring", "overlap": "none"}, Waits(2, 1, 1, 0), Waits(2.5, 1, 1.5, 0), (2, 3))
    other = ComparedWaits({"system": "ring", "overlap": "sliced"}, Waits(1, 1, 0, 0), Waits(1, 1, 0, 0), (3, 3))
    assert waits_table([one, other]) == [
        "| overlap | steps that count | step, measured | step, simulated | computing, measured | computing, simulated "
        "| waiting, measured | waiting, simulated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| none | 2 of 3 | 2.000 | 2.500 | 1.000 | 1.000 | 1.000 | 1.500 |",
        "| sliced | 3 of 3 | 1.000 | 1.000 | 1.000 | 1.000 | 0.000 | 0.000 |",
    ]
